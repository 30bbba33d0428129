//! Extent of the measurements.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::plot::Plot;

/// Time of the streams of `services`, in seconds, unless the command line says otherwise.
pub(crate) const SECONDS: u32 = 40;
/// Number of single changes of `pause`, unless the command line says otherwise.
pub(crate) const CHANGES: usize = 200;

/// Extent of the measurements, and output of their messages.
pub(crate) struct Effort {
    pub quick: bool,
    /// Time of the streams of `services`, in seconds.
    pub seconds: u32,
    pub speaks: bool,
    /// Number of single changes of `pause`.
    pub changes: usize,
    pub plots: RefCell<Vec<Plot>>,
    pub absent: RefCell<BTreeMap<String, String>>,
}

impl Effort {
    /// Returns the number for a whole run or for a quick one.
    pub(crate) fn pick<T>(&self, whole: T, quick: T) -> T {
        if self.quick { quick } else { whole }
    }

    /// Duration of a turn.
    pub(crate) fn turn(&self) -> Duration {
        Duration::from_millis(60)
    }

    /// Keeps a plot.
    pub(crate) fn plot(&self, plot: Plot) {
        self.plots.borrow_mut().push(plot);
    }

    /// Records that this machine lacks something, so that it is not measured.
    pub(crate) fn lacks(&self, what: &str, why: &str) {
        self.say(&format!("  not available on this machine: {what}, {why}"));
        self.absent.borrow_mut().insert(what.into(), why.into());
    }

    /// Prints the progress.
    pub(crate) fn say(&self, text: &str) {
        if self.speaks {
            eprintln!("{text}");
        }
    }
}
