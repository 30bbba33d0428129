//! `null`: passes everything on.

use crate::Service;

/// Changes nothing. Benchmarks and tests use it.
#[derive(Debug, Default)]
pub struct Null;

impl Service for Null {
    fn name(&self) -> &'static str {
        "null"
    }
}
