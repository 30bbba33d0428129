//! Faults of the world.

use std::time::Duration;

use dysco_proto::{HostId, Meddling, Reason, Way};

/// Faults of the world.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub seed: u64,
    /// Percentage of messages that are lost.
    pub lost: u64,
    pub doubled: u64,
    /// Longest delay of a message, in milliseconds.
    pub slowest: u64,
    /// Longest time for which messages wait for the outputs of later inputs, in microseconds, as
    /// those of a daemon that takes several inputs in one step.
    pub held: u64,
    /// Time at which these faults end.
    pub until: Duration,
    /// Number of a message that is lost in any case.
    pub lose: Option<u64>,
    /// Number of segments to a client that are lost, or whose answers are.
    pub unheard: usize,
    /// Names of messages that are always lost.
    pub lose_all: Vec<&'static str>,
    /// Time from which, and until which, the first and the last host do not reach each other.
    pub parted: Option<(Duration, Duration)>,
    /// Hosts that never drain, because the new path carries nothing to them.
    pub stuck: Vec<usize>,
    /// Longest time that old data takes to drain; 0 for three seconds.
    pub slowest_drain: Duration,
    /// True if a device on the new path rejects the right anchor's answers with a reset.
    pub rejects: bool,
    /// Crashes of daemons: the host, the number of the step before which its daemon dies, and the
    /// time until it restarts.
    pub crashes: Vec<(usize, u64, Duration)>,
}

/// Returns the reason for a path that answers with resets.
pub(crate) fn rejected() -> Reason {
    let [from, to] = [1, 2].map(|last| HostId::from([10, 0, 0, last]));
    let through = Vec::new();
    Reason::PathMeddles {
        way: Way { from, to, through },
        does: Meddling::Rejects,
    }
}
