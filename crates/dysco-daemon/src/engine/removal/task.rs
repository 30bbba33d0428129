//! One session's removal, as it was asked for.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use dysco_api::{Mode, Remove, SessionId, Way};
use dysco_proto::Subsession;

use crate::api::Caller;

/// Who asks for a removal, and what of it is taken on their word.
#[derive(Clone)]
pub(in crate::engine) struct Said {
    /// That the proxy only passes bytes on.
    pub word: bool,
    /// In the words of a session's history.
    pub by: String,
}

impl Said {
    pub fn of(request: &Remove, caller: &Caller) -> Said {
        let who = match caller.is_root() {
            true => "root".to_owned(),
            false => format!("user {}", caller.uid),
        };
        Said {
            word: request.transparent && caller.is_root(),
            by: format!("{who} on this host (process {})", caller.pid),
        }
    }

    /// The configuration wants it.
    pub(super) fn automatic() -> Said {
        Said {
            word: false,
            by: "dyscod, by its configuration".to_owned(),
        }
    }
}

/// One session's removal, to be begun.
#[derive(Clone)]
pub(in crate::engine) struct Task {
    pub(super) batch: u64,
    pub(super) session: SessionId,
    /// This host's side of the session.
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) subsession: Subsession,
    /// The host to ask, unless it is this one.
    pub(super) ask: Option<IpAddr>,
    pub(super) timeout: Duration,
    /// As asked for.
    pub(super) mode: Mode,
    /// By its name, and not as the configuration has it.
    pub(in crate::engine) by_name: bool,
    /// As decided, and why.
    pub(super) way: Option<Mode>,
    pub(super) why: Option<String>,
    /// The hosts on both sides, where the proxy is on this one.
    pub(super) neighbours: Option<[IpAddr; 2]>,
    /// Only say what would be done.
    pub(in crate::engine) dry: bool,
    /// Of one that is only to be told: what stands in its way already.
    pub(super) objections: Vec<String>,
    pub(super) said: Said,
    /// This host's data plane relays it already.
    pub(super) relayed: bool,
    /// The way that it takes.
    pub(super) from: Way,
    /// What is next, where the way is return.
    pub(super) stage: Stage,
    /// When its first stage began, and how long the switch took.
    pub(super) since: Option<Instant>,
    pub(super) switched: Option<Duration>,
}

/// A removal by return has three parts, each whole by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before anything is changed, replies are shown to arrive.
    Prove,
    /// The proxy leaves, and this host relays.
    Leave,
    /// It is shown again, and replies go straight.
    Return,
}
