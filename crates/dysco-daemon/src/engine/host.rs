//! This host, as the protocol machine and the requests of operators find it: the data plane, the
//! proxy's side, the channel to other hosts, and what is held there for changes.
//!
//! Nothing here knows the machine or who has asked for a change. Events for the machine wait in
//! `events`, from which the engine takes them.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dysco_agent::{Agent, Routes};
use dysco_api::Reply;
use dysco_config::Config;
use dysco_control::Control;
use dysco_proto::{ChangeId, HostEvent, KindName, Message};
use dysco_proxy::ProxySide;
use tokio::sync::mpsc;

use super::answers::Answer;
use super::held::Held;
use super::history::History;
use super::{
    chains, collect, fault, firewall, neighbours, on_link, ports, rechain, sockets, state, straight,
};

/// What a request asks of its change on this host.
pub(super) struct Terms {
    /// True if the operator has vouched for the proxy.
    pub vouched: bool,
    /// Kinds of state that move.
    pub kinds: Vec<KindName>,
}

/// State of everything that carries out changes on this host.
pub(super) struct ThisHost {
    pub config: Config,
    pub agent: Arc<Agent>,
    pub routes: Routes,
    pub proxy: ProxySide,
    pub control: Control,
    pub started: Instant,
    /// Events that the machine has not been told.
    pub events: VecDeque<HostEvent>,
    /// Answers of tasks that carry out a command.
    pub answers: mpsc::UnboundedSender<Answer>,
    /// Terms of the changes that a request on this host has begun.
    pub terms: HashMap<ChangeId, Terms>,
    /// Resources that the data plane holds for each change.
    pub held: HashMap<ChangeId, Held>,
    /// Sessions that get another chain.
    pub rechain: rechain::Rechain,
    pub chains: chains::Chains,
    /// Transfers of sessions' state from host to host.
    pub moves: firewall::Moves,
    pub returns: straight::Returns,
    pub ports: ports::Ports,
    pub sockets: sockets::Sockets,
    pub collector: collect::Collector,
    pub on_link: on_link::OnLink,
    /// Interfaces with strict reverse-path filtering, and the time at which that was read.
    pub strict: Option<(Instant, Vec<u32>)>,
    pub neighbours: neighbours::Neighbours,
    pub state: state::StateDir,
    pub faults: fault::Faults,
    pub history: History,
    pub monitors: Vec<mpsc::Sender<Reply>>,
    /// Time of the last warning of a full table.
    pub no_room_told: Option<Instant>,
}

impl ThisHost {
    /// Returns the time since this process began.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Returns true if the operator has vouched for the proxy of this change.
    pub fn is_vouched(&self, change: ChangeId) -> bool {
        self.terms.get(&change).is_some_and(|terms| terms.vouched)
    }

    /// Returns the kinds of state that a change moves.
    pub fn kinds_of(&self, change: ChangeId) -> Vec<KindName> {
        let terms = self.terms.get(&change);
        terms.map_or_else(Vec::new, |terms| terms.kinds.clone())
    }

    /// Queues an event for the machine.
    pub fn tell_machine(&mut self, event: HostEvent) {
        self.events.push_back(event);
    }

    /// Sends a message of the machine.
    pub fn send(&self, to: IpAddr, message: &Message) {
        match message.encode() {
            Ok(bytes) => self.control.send(to, bytes),
            Err(error) => {
                tracing::error!(%to, name = message.name(), %error, "cannot encode a message")
            }
        }
    }
}
