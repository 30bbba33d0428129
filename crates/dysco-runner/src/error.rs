//! Errors of the runner itself. An error of one session is a report.

use std::io;

use dysco_explain::{Explain, Explanation, display_explained};

/// Error after which the runner cannot continue.
#[derive(Debug)]
pub struct Error {
    /// The operation, which completes "failed to …".
    what: &'static str,
    source: io::Error,
}

impl Error {
    /// Returns a function that adds the operation to an error of the kernel.
    pub(crate) fn of<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error {
            what,
            source: source.into(),
        }
    }
}

impl Explain for Error {
    fn explain(&self) -> Explanation {
        Explanation::new(self.what, &self.source)
    }
}

display_explained!(Error);

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}
