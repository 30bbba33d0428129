//! Errors that keep a server on a unix socket from starting.

use std::path::PathBuf;

/// Error that keeps the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Another daemon listens there.
    #[error(
        "failed to listen on {path}: another dyscod answers there; stop it first, or set {key}"
    )]
    InUse {
        /// Path of the socket.
        path: PathBuf,
        /// Configuration key that names the path.
        key: &'static str,
    },
    /// The path, or its permissions, cannot be used.
    #[error("failed to {what} {path}: {source}; set {key} to a path that root can write")]
    Socket {
        /// Attempted operation.
        what: &'static str,
        /// Path of the socket or its directory.
        path: PathBuf,
        /// Configuration key that names the path.
        key: &'static str,
        /// Cause.
        source: std::io::Error,
    },
}
