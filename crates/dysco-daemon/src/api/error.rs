//! Why a server on a unix socket did not start.

use std::path::PathBuf;

/// The server did not start.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Another daemon answers there.
    #[error(
        "failed to listen on {path}: another dyscod answers there; stop it first, or set {key}"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
        /// The key of the configuration that names it.
        key: &'static str,
    },
    /// The path or its rights.
    #[error("failed to {what} {path}: {source}; set {key} to a path that root can write")]
    Socket {
        /// What was tried.
        what: &'static str,
        /// The socket, or its directory.
        path: PathBuf,
        /// The key of the configuration that names it.
        key: &'static str,
        /// Why.
        source: std::io::Error,
    },
}
