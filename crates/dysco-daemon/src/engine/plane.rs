//! The means of this host: the data plane, the proxy's side, the channel to other hosts,
//! and what is known of sessions and neighbours.
//!
//! Nothing here knows the machine, or who has asked for a change. What the machine has to know
//! waits in `notices`.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dysco_agent::{Agent, Routes};
use dysco_api::SessionId;
use dysco_config::Config;
use dysco_control::Control;
use dysco_proto::{ChangeId, HostEvent, KindName, Message, Subsession};
use dysco_proxy::ProxySide;
use tokio::sync::mpsc;

use super::answers::Answer;
use super::collect::Collector;
use super::fault::Faults;
use super::history::History;
use super::jobs::Jobs;
use super::monitors::Monitors;
use super::names::Names;
use super::neighbours::Neighbours;
use super::state::StateDir;
use super::tuning::Tunings;

/// Terms on which a request begins a change on this host.
pub(super) struct Terms {
    /// True if the operator has vouched for the proxy.
    pub vouched: bool,
    /// Kinds of state that move.
    pub kinds: Vec<KindName>,
}

/// Notice of this host for the machine.
pub(super) enum Notice {
    Event(Box<HostEvent>),
    /// The entry of a session was collected, and no change of this host held it. A change of its
    /// chain may concern a segment that does not begin here.
    Collected(Subsession),
}

/// Means of this host, which all owners use.
pub(super) struct Plane {
    pub config: Config,
    pub agent: Arc<Agent>,
    pub routes: Routes,
    pub proxy: ProxySide,
    pub control: Control,
    pub started: Instant,
    /// Notices that the machine has not been given.
    pub notices: VecDeque<Notice>,
    /// Work of the proxy's side that begins once all commands are carried out.
    pub jobs: Jobs,
    /// Answers of tasks that carry out a command.
    pub answers: mpsc::UnboundedSender<Answer>,
    /// Terms of the changes that a request on this host has begun.
    pub terms: HashMap<ChangeId, Terms>,
    /// Slots of the sessions that a change of a chain holds on this host.
    pub chains_held: HashMap<ChangeId, u32>,
    /// Slots whose sessions end.
    pub collector: Collector,
    pub neighbours: Neighbours,
    pub state: StateDir,
    pub faults: Faults,
    pub names: Names,
    pub history: History,
    /// Socket options that were set.
    pub tunings: Tunings,
    pub monitors: Monitors,
}

impl Plane {
    /// Returns true if a change of its chain holds the session of a slot.
    pub(super) fn holds_chain_of(&self, slot: u32) -> bool {
        self.chains_held.values().any(|held| *held == slot)
    }

    /// Returns the time since this process began.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns true if the operator has vouched for the proxy of this change.
    pub(crate) fn is_vouched(&self, change: ChangeId) -> bool {
        self.terms.get(&change).is_some_and(|terms| terms.vouched)
    }

    /// Returns the kinds of state that a change moves.
    pub(crate) fn kinds_of(&self, change: ChangeId) -> Vec<KindName> {
        let terms = self.terms.get(&change);
        terms.map_or_else(Vec::new, |terms| terms.kinds.clone())
    }

    /// Queues an event for the machine.
    pub(crate) fn tell_machine(&mut self, event: HostEvent) {
        self.notices.push_back(Notice::Event(Box::new(event)));
    }

    /// Records that a session has another name from here on.
    pub(crate) fn rename_session(&mut self, before: SessionId, now: SessionId) {
        self.names.rename(before, now);
        self.history.rename(before, now);
        self.tunings.rename(before, now);
    }

    /// Forgets what is known of a session that is gone.
    pub(crate) fn forget_session(&mut self, session: SessionId) {
        self.history.forget(session);
        self.tunings.forget(session);
    }

    /// Takes up what a former process knew of the sessions that still exist.
    pub(crate) fn take_up_sessions(&mut self) {
        let all = self.agent.sessions().into_iter();
        let live: HashSet<_> = all.map(|(slot, s)| self.session_id(slot, &s)).collect();
        self.history.retain(|session| live.contains(&session));
        self.tunings.retain(|session| live.contains(&session));
    }

    /// Writes what waits to be written of sessions. To be called from time to time.
    pub(crate) fn flush_sessions(&mut self) {
        self.history.flush();
        self.tunings.flush();
    }

    /// Sends a message of the machine.
    pub(super) fn send(&self, to: IpAddr, message: &Message) {
        match message.encode() {
            Ok(bytes) => self.control.send(to, bytes),
            Err(error) => {
                tracing::error!(%to, name = message.name(), %error, "cannot encode a message")
            }
        }
    }
}
