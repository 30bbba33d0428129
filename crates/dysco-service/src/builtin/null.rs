//! `null`: passes everything on unchanged.

use dysco_explain::Cause;

use crate::{Needs, Service, Session};

/// Changes nothing. Benchmarks and tests use it.
#[derive(Debug, Default)]
pub struct Null;

impl Service for Null {
    fn name(&self) -> &'static str {
        "null"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs::of_observer())
    }
}
