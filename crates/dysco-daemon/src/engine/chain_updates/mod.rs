//! Other chains for live sessions: the protocol's commands that carry them out.

mod anchor;
mod back;
mod begin;
mod chain_of;
mod clearing;
mod closing;
mod delta;
mod hosts;
mod in_use;
mod left;
mod open;
pub(super) mod opener;
mod passing;
mod paths;
mod primers;
mod width;

pub(super) use clearing::Cleared;
pub(super) use hosts::Enlisting;
pub(super) use open::Uplink;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::{Delta, Element, FlowKey};
use dysco_proto::{ChangeId, Subsession};

use crate::engine::pace::Pace;
use crate::engine::probe::Seen;
use crate::engine::raw::Repeated;

/// State of all changes of chains on this host.
#[derive(Default)]
pub(super) struct ChainUpdates {
    /// Sessions that have another path, by the slots of both entries. Set while this process takes
    /// up the state of a former one, of which nothing may be forgotten yet.
    pub taking_up: Option<HashMap<u32, u32>>,
    /// Resources that the data plane holds for each change. They may outlive it until late packets
    /// have arrived.
    paths: HashMap<ChangeId, Paths>,
    /// Change of each slot that receives on a second path.
    by_slot: HashMap<u32, ChangeId>,
    /// Paths that sessions have returned to a moment ago.
    back: Vec<back::Back>,
    /// Changes by which this host is forgetting a session.
    forgetting: HashSet<ChangeId>,
    passing: passing::Passing,
    /// Sessions of which this host does not know by which path they pass.
    questions: in_use::Questions,
    paths_to_close: closing::PathsToClose,
    clearing: clearing::Clearing,
    /// Tasks that wait for a neighbour.
    waiting: Vec<hosts::Waiting>,
    mtus: width::Mtus,
}

/// The two paths of a session of which this host is an anchor.
struct Paths {
    session: Subsession,
    /// Slot of the previous path, and the time at which the session began.
    first: (u32, u64),
    /// Slot of the new path.
    second_path: Option<u32>,
    /// Token by which this host recognises the new path; set at the right anchor.
    token: Option<Token>,
    /// Elements that the new path leads through; set where it is opened.
    chain: Option<Vec<Element>>,
    opening: Option<Repeated>,
    /// Highest numbers that this end had sent and received when the change began.
    reach: Reach,
    /// Delta of the middleboxes that leave, and the highest numbers that the other end has sent and
    /// received.
    beyond: (Delta, Reach),
    /// Sequence number after the one with which this end has opened the new path.
    begins: Option<u32>,
    /// Times at which the segment length was shown on the new path.
    length_probes: width::LengthProbes,
    /// True if numbers are as the SYN-ACK had them.
    answered: bool,
    /// Numbers that the other end had acknowledged and sent there when more was shown last.
    asked: Option<(u32, u32)>,
    /// Data that the session has sent since the new path answered, and the round-trip time; set
    /// where the path is opened.
    pace: Option<(Pace, Duration)>,
    /// Known effects of the new path on packets.
    seen: Seen,
    /// True if a packet has arrived on the new path since.
    heard: bool,
    /// True if a packet has arrived since the last look: a request for more is under way.
    lively: bool,
    /// Highest number sent here before the switch, in this end's numbers.
    cutoff: Option<u32>,
    /// The other anchor's cutoff, in the wire's numbers.
    peer_cutoff: Option<u32>,
    settled: bool,
    /// Time at which the change was completed.
    completed: Option<Instant>,
    /// True if the machine has ended the change.
    erased: bool,
}

impl Paths {
    /// Returns a description of the new path for the host that asked for it.
    fn way(&self) -> String {
        let through = self.chain.as_deref().unwrap_or_default();
        let through: Vec<_> = through.iter().map(ToString::to_string).collect();
        match through.as_slice() {
            [] => "on the direct path".to_owned(),
            all => format!("through {}", all.join(", ")),
        }
    }

    /// Returns the elements that the new path leads through; none where it is not opened here.
    fn through(&self) -> &[Element] {
        self.chain.as_deref().unwrap_or_default()
    }

    /// Returns the hosts at the two ends of the new path as far as this host knows them, itself
    /// first. `path` is the path's five-tuple here.
    fn ends(&self, path: &FlowKey) -> (IpAddr, IpAddr) {
        let peer = match self.token {
            None => self.session.right.ip(),
            // Address of the next host towards the left anchor.
            Some(_) => path.remote().ip(),
        };
        (path.local().ip(), peer)
    }

    /// Returns true if the path's firewalls need to be shown nothing more. Both anchors have taken
    /// the path since `since`. The right anchor usually ends first; an end's host keeps late
    /// packets from its stack.
    fn needs_no_more(&self, since: Instant) -> bool {
        let left = self.token.is_none();
        left && self.erased || since.elapsed() >= paths::LATE / 2
    }

    /// Returns true if this host has sent a SYN and its answer has arrived.
    fn opens_answered(&self) -> bool {
        self.opening.is_some() && self.answered
    }

    /// Returns true if this host has answered a SYN, and nothing has arrived on the path since.
    fn is_answering(&self) -> bool {
        self.token.is_some() && self.answered && !self.heard
    }
}

impl ChainUpdates {
    /// Returns true if the slot is that of a second path.
    pub(super) fn has(&self, slot: u32) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// Returns true if the slot is that of a previous path, or of one that another path may
    /// replace.
    pub(crate) fn leads_from(&self, slot: u32) -> bool {
        self.paths.values().any(|p| p.first.0 == slot)
    }

    /// Returns true if something has to be looked at often.
    pub(crate) fn is_busy(&self) -> bool {
        let paths = |p: &Paths| {
            let changing = p.cutoff.is_some() || p.completed.is_some() || p.opening.is_some();
            changing || p.is_answering()
        };
        !self.waiting.is_empty() || !self.back.is_empty() || self.paths.values().any(paths)
    }
}
