//! `split`: uses another congestion control towards the network than the program's socket has.

use dysco_api::Congestion;
use dysco_explain::Cause;

use crate::{Needs, Service, Session};

/// Passes everything on. The socket towards the network has its own congestion control.
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
