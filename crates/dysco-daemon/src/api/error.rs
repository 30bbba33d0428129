//! Errors that keep a server on a unix socket from starting.

use std::path::PathBuf;

use dysco_explain::{Explain, Explanation, display_explained};

/// Error that keeps the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// Another daemon listens there.
    InUse {
        /// Path of the socket.
        path: PathBuf,
        /// Configuration key that names the path.
        key: &'static str,
    },
    /// The path, or its permissions, cannot be used.
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

display_explained!(ApiError);

impl Explain for ApiError {
    fn explain(&self) -> Explanation {
        match self {
            ApiError::InUse { path, key } => Explanation::new(
                format!("listen on {}", path.display()),
                "another dyscod answers there",
            )
            .hint(format!("stop it first, or set {key}")),
            ApiError::Socket {
                what,
                path,
                key,
                source,
            } => Explanation::new(format!("{what} {}", path.display()), source)
                .hint(format!("set {key} to a path that root can write")),
        }
    }
}
