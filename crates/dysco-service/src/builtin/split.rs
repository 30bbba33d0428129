//! `split`: the network gets another congestion control than the program.

use dysco_api::Congestion;
use dysco_explain::Cause;

use crate::{Needs, Service, Session};

/// Passes everything on. The socket towards the network has a congestion control of its own.
#[derive(Debug)]
pub struct Split {
    congestion: Congestion,
}

impl Split {
    /// Creates a service that asks for this congestion control.
    pub fn new(congestion: Congestion) -> Split {
        Split { congestion }
    }
}

impl Service for Split {
    fn name(&self) -> &'static str {
        "split"
    }

    fn needs(&self, _: &Session) -> Result<Needs, Cause> {
        Ok(Needs {
            congestion: Some(self.congestion.name().to_owned()),
            ..Needs::of_observer()
        })
    }
}
