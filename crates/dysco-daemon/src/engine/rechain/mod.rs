//! Other chains for live sessions: requests of operators, and the commands of the
//! protocol's parts for it.

mod asks;
mod back;
mod chain_of;
mod clearing;
mod delta;
mod farewell;
mod hosts;
mod in_use;
mod left;
mod open;
mod passing;
mod paths;
mod request;
mod turn;
mod width;

pub(super) use asks::{has_passed, passes};
pub(super) use clearing::Cleared;
pub(super) use hosts::Enlisting;
pub(super) use in_use::{InUse, Passes};
pub(super) use open::Uplink;
pub(super) use request::{has_opened, opens};

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::time::Instant;

use dysco_api::SessionId;
use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::{Delta, FlowKey};
use dysco_proto::asks::{AskId, Asks};
use dysco_proto::{ChangeId, Subsession};
use lru::LruCache;

use crate::engine::probe::Seen;
use crate::engine::raw::Repeated;

/// The most names that sessions had before.
const NAMES: NonZeroUsize = NonZeroUsize::new(65_536).unwrap();

/// All that is known of it.
pub(super) struct Rechain {
    /// What a former process left is being taken up, and nothing of it is to be forgotten
    /// yet: which sessions have another path, by the slots of both entries.
    pub taking_up: Option<HashMap<u32, u32>>,
    paths: HashMap<ChangeId, Paths>,
    /// The change of each slot that hears a second path.
    by_slot: HashMap<u32, ChangeId>,
    /// Paths that sessions went back to a moment ago.
    back: Vec<back::Back>,
    /// Changes by which a session is being forgotten here.
    forgetting: HashSet<ChangeId>,
    passing: passing::Passing,
    /// Sessions of which it is not known by which path they pass here.
    doubts: in_use::Doubts,
    farewells: farewell::Farewells,
    clearing: clearing::Clearing,
    /// What waits for a neighbour.
    waiting: Vec<hosts::Waiting>,
    /// What sessions are called now that were called otherwise.
    names: LruCache<SessionId, SessionId>,
    queue: VecDeque<request::Task>,
    behind: turn::Behind<request::Task>,
    running: HashMap<ChangeId, request::Running>,
    /// Questions of this host to those that opened sessions, and others' to it.
    asks: Asks,
    /// What this host waits for the answer of.
    asking: HashMap<AskId, request::Task>,
    batches: HashMap<u64, request::Batch>,
    next_batch: u64,
    mtus: width::Mtus,
}

/// The two paths of a session that this host is an anchor of.
struct Paths {
    session: Subsession,
    /// Slot of the path before, and when the session began.
    first: (u32, u64),
    /// Slot of the new one.
    second: Option<u32>,
    /// By which it is awaited here.
    token: Option<Token>,
    /// What it is to lead through, where it is opened here.
    chain: Option<Vec<IpAddr>>,
    opening: Option<Repeated>,
    /// How far this end had sent and heard when the change began.
    reach: Reach,
    /// By how much middleboxes that leave have changed the stream, and how far the
    /// other end has sent and heard.
    beyond: (Delta, Reach),
    /// The number behind that with which this end has opened the new path.
    begins: Option<u32>,
    /// When it was shown there how long segments may be.
    showing: width::Showing,
    /// Numbers are as the SYN-ACK had them.
    answered: bool,
    /// What the other end had acknowledged there when more was shown last.
    asked: Option<u32>,
    /// What is known of what the new path does to packets.
    seen: Seen,
    /// Something has come on the new path since.
    heard: bool,
    /// So it has since the last look: what asks for more is under way.
    lively: bool,
    /// The highest number that was sent here before the switch, as this end has it.
    cutoff: Option<u32>,
    /// The other anchor's, as the wire has it.
    far_cutoff: Option<u32>,
    settled: bool,
    /// Neither path is in doubt any more, since then.
    completed: Option<Instant>,
    /// The machine has ended it.
    erased: bool,
}

impl Paths {
    /// The way of the new path, for who asked for it.
    fn way(&self) -> String {
        let through = self.chain.as_deref().unwrap_or_default();
        let through: Vec<_> = through.iter().map(ToString::to_string).collect();
        match through.as_slice() {
            [] => "on the direct path".to_owned(),
            hosts => format!("through {}", hosts.join(", ")),
        }
    }

    /// The hosts that the new path leads through, where it is opened here.
    fn through(&self) -> &[IpAddr] {
        self.chain.as_deref().unwrap_or_default()
    }

    /// The hosts at the two ends of the new path, as far as this one knows, which is the first.
    /// It has this five-tuple here.
    fn ends(&self, path: &FlowKey) -> (IpAddr, IpAddr) {
        let far = match self.token {
            None => self.session.right.ip(),
            // What comes next, towards the left anchor.
            Some(_) => path.remote().ip(),
        };
        (path.local().ip(), far)
    }

    /// Both have taken the path since then: need its firewalls be shown nothing more? The
    /// right anchor ends first, as a rule; an end's host keeps late ones from its stack.
    fn hears_no_more(&self, since: Instant) -> bool {
        let left = self.token.is_none();
        left && self.erased || since.elapsed() >= paths::LATE / 2
    }

    /// Was its SYN answered, which it sent itself?
    fn opens_answered(&self) -> bool {
        self.opening.is_some() && self.answered
    }

    /// Has it answered a SYN, and nobody has heard that yet?
    fn is_answering(&self) -> bool {
        self.token.is_some() && self.answered && !self.heard
    }
}

impl Default for Rechain {
    fn default() -> Rechain {
        Rechain {
            passing: passing::Passing::default(),
            doubts: in_use::Doubts::default(),
            farewells: farewell::Farewells::new(),
            clearing: clearing::Clearing::default(),
            names: LruCache::new(NAMES),
            taking_up: None,
            paths: HashMap::new(),
            by_slot: HashMap::new(),
            back: Vec::new(),
            forgetting: HashSet::new(),
            waiting: Vec::new(),
            queue: VecDeque::new(),
            behind: turn::Behind::default(),
            running: HashMap::new(),
            asks: Asks::default(),
            asking: HashMap::new(),
            batches: HashMap::new(),
            next_batch: 0,
            mtus: width::Mtus::default(),
        }
    }
}

impl Rechain {
    /// Is this the slot of a second path?
    pub fn has(&self, slot: u32) -> bool {
        self.by_slot.contains_key(&slot)
    }

    /// Is this the slot of a path before, or of one that another may be taken instead of?
    pub fn leads_from(&self, slot: u32) -> bool {
        self.paths.values().any(|p| p.first.0 == slot)
    }

    /// Is this a change that a request has begun on this host?
    pub fn is_asked_for(&self, change: ChangeId) -> bool {
        self.running.contains_key(&change)
    }

    /// Requests for a chain that have not begun.
    pub fn waiting_changes(&self) -> u64 {
        (self.queue.len() + self.behind.len()) as u64
    }

    /// Does anything have to be looked at often?
    pub fn is_busy(&self) -> bool {
        let paths = |p: &Paths| {
            let changing = p.cutoff.is_some() || p.completed.is_some() || p.opening.is_some();
            changing || p.is_answering()
        };
        !self.waiting.is_empty() || !self.back.is_empty() || self.paths.values().any(paths)
    }

    /// What a session is called now.
    pub fn name_now(&self, name: SessionId) -> SessionId {
        let mut now = name;
        // Each change gives it another one.
        for _ in 0..NAMES.get() {
            match self.names.peek(&now) {
                Some(next) => now = *next,
                None => break,
            }
        }
        now
    }

    fn rename(&mut self, from: SessionId, to: SessionId) {
        // A slot that is used again.
        self.names.pop(&to);
        if from != to {
            self.names.put(from, to);
        }
    }
}
