//! Failures to start a handler, and of its process.

use std::io;

use dysco_explain::{Explain, Explanation, display_explained};

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub(crate) struct Failed {
    /// The step.
    what: &'static str,
    /// The error.
    source: io::Error,
}

display_explained!(Failed);

impl Failed {
    /// Returns a function that adds the step to an error.
    pub(super) fn of<E>(what: &'static str) -> impl FnOnce(E) -> Failed
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Failed {
            what,
            source: io::Error::other(source),
        }
    }
}

impl Explain for Failed {
    fn explain(&self) -> Explanation {
        Explanation::new(self.what, &self.source)
    }
}
