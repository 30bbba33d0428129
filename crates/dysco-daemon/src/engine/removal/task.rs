//! Removal of one session, as requested.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dysco_api::{Mode, Remove, SessionId, Way};
use dysco_common::Session;
use dysco_explain::Cause;
use dysco_proto::Subsession;

use crate::api::Caller;

/// Requester of a removal, and the statements that are taken on the requester's word.
#[derive(Clone)]
pub(in crate::engine) struct Said {
    /// True if the requester vouches that the proxy only passes bytes on.
    pub word: bool,
    /// Requester, in the words of a session's history.
    pub by: String,
}

impl Said {
    pub(crate) fn of(request: &Remove, caller: &Caller) -> Said {
        Said {
            word: request.transparent && caller.is_root(),
            by: caller.words(),
        }
    }

    /// Returns the requester of removals that the configuration orders.
    pub(super) fn automatic() -> Said {
        Said {
            word: false,
            by: "dyscod, by its configuration".to_owned(),
        }
    }
}

/// Removal of one session, to be begun.
#[derive(Clone)]
pub(in crate::engine) struct Task {
    pub(super) batch: u64,
    pub(super) session: SessionId,
    /// Address of the session on this host.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) subsession: Subsession,
    /// Host to ask, unless it is this one.
    pub(super) ask: Option<IpAddr>,
    pub(super) timeout: Duration,
    /// Mode as requested.
    pub(super) mode: Mode,
    /// True if the request names the mode; false if the configuration does.
    pub(in crate::engine) by_name: bool,
    /// Mode as decided, and the reason.
    pub(super) way: Option<Mode>,
    pub(super) why: Option<String>,
    /// Hosts on both sides, if the proxy is on this host.
    pub(super) neighbours: Option<[IpAddr; 2]>,
    /// True if only the plan is reported.
    pub(in crate::engine) dry: bool,
    /// Obstacles of a task that is only reported.
    pub(super) objections: Vec<Cause>,
    pub(super) said: Said,
    /// True if this host's data plane relays the session already.
    pub(super) relayed: bool,
    /// Way that the session takes now.
    pub(super) from: Way,
    /// Next stage, if the mode is return.
    pub(super) stage: Stage,
    /// Time at which its first stage began, and how long the switch took.
    pub(super) since: Option<Instant>,
    pub(super) switched: Option<Duration>,
    /// State of the session when its removal was accepted.
    pub(super) accepted: Accepted,
    /// Time at which the request was accepted, the same for all of its sessions.
    pub(super) requested: Instant,
    /// Time at which the session's first change began.
    pub(super) begun: Option<Instant>,
}

/// Time after which a session that has sent nothing is silent.
const SILENT: Duration = Duration::from_millis(5);

/// Numbers of a session, and when they were read.
#[derive(Clone)]
pub(super) struct Accepted {
    at: Instant,
    numbers: [u32; 2],
}

impl Accepted {
    pub(super) fn new(s: &Session) -> Accepted {
        Accepted {
            at: Instant::now(),
            numbers: [s.snd_max, s.rcv_max],
        }
    }

    /// Returns true if neither end has sent anything for a while.
    pub(super) fn is_silent(&self, now: &Session) -> bool {
        self.numbers == [now.snd_max, now.rcv_max] && self.at.elapsed() >= SILENT
    }
}

impl Task {
    /// Returns the time from the acceptance of the request to the beginning of the first change.
    pub(super) fn begun_after(&self) -> Option<Duration> {
        let begun = self.begun?;
        Some(begun.saturating_duration_since(self.requested))
    }
}

/// Stages of a removal by `return`, each complete by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before anything is changed, a probe shows that replies arrive.
    Prove,
    /// The proxy leaves, and this host relays.
    Leave,
    /// The probe is repeated, and replies go directly to the client.
    Return,
}
