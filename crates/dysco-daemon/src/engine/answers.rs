//! Answers of the engine's tasks.

use std::collections::HashSet;
use std::net::IpAddr;

use dysco_agent::{Adoption, AgentError};
use dysco_common::FlowKey;
use dysco_explain::Cause;
use dysco_proto::{ChangeId, HostEvent, Subsession};
use dysco_proxy::Pair;

use super::chain_updates::Enlisting;
use super::jobs::{PairMeasured, ProxyLeft};
use super::outside::seen::Seen;
use super::reload::files::Reread;
use super::removal::found::{Begun, Windows};
use super::{chain_updates, chains, dsr, held, moves, relay, services, tuning};

/// Answer of one of the engine's tasks.
pub(super) enum Answer {
    /// Event for the machine.
    Event(HostEvent),
    /// Proxies have left their sessions, or could not.
    Left(Vec<ProxyLeft>),
    /// The process that has the sockets of a change was looked for, to close them. The session was
    /// opened by it.
    Holder(ChangeId, Subsession, Option<Pair>),
    /// Pairs of changes were measured.
    Measured(Vec<PairMeasured>),
    /// A path through a chain did not open.
    PathDead(ChangeId, Option<Cause>),
    /// A session that has left a chain is forgotten for this change of that host.
    Forgotten(ChangeId, IpAddr),
    /// State of a session that is about to pass here again is forgotten.
    Cleared(Enlisting),
    /// State of a session is forgotten. No change waits for that.
    Removed,
    /// The firewall has to be searched for a session.
    Unknown(Box<chain_updates::Cleared>),
    /// The firewall was searched. These answers were held back until then.
    Searched(Vec<Answer>),
    /// A route was found for a change.
    Route(ChangeId, held::Routed),
    /// The routes to both ends of a pair were found for a change.
    Ways(ChangeId, relay::Ways),
    /// The route back of a path whose SYN has arrived was looked up.
    Uplink(Box<chain_updates::Uplink>),
    /// The route to a client was looked up.
    DsrRoute(Box<dsr::DsrRoute>),
    /// A new path did not open; with the cause if this host could not send on it.
    Unopened(ChangeId, Option<Cause>),
    /// A new path that was checked has had time to answer.
    PathChecked(ChangeId),
    /// A new path has had time to carry the data that was sent on it.
    Confirmed(ChangeId),
    /// A new path from which nothing is accepted any more has been silent for a moment.
    Muted(ChangeId),
    /// Windows of the sessions of a dry run were read.
    Windows(Box<Windows>),
    /// Connections of this host.
    Sockets(std::io::Result<HashSet<FlowKey>>),
    /// Sessions older than the daemon were entered, or could not be.
    Adopted(Result<Adoption, AgentError>),
    /// Packets of a change's adopted sessions were asked for.
    Asked(ChangeId, Subsession),
    /// Route to a neighbour, from one of this host's own addresses.
    Way(chains::Way),
    /// The policy's file was written.
    PolicyWritten,
    /// Event of the fleet's store.
    Store(Box<dysco_fleet::Event>),
    /// The sockets that processes under the shim hold are known, for a removal of all sessions.
    Held(Box<Begun>),
    /// A proxy was looked at, or watched.
    Seen(Box<Seen>),
    /// Sockets were read, or their options were set.
    Tuned(Box<tuning::Step>),
    /// A task about services is done, or their handler has reported.
    Service(Box<services::done::Done>),
    /// State was exported or installed for another host.
    State(moves::Done),
    /// The configuration and its files were read again.
    Reread(Box<Reread>),
}

impl Answer {
    /// Returns the changes that the answer concerns, each once; none if it may concern any.
    pub(super) fn changes(&self) -> Vec<ChangeId> {
        match self {
            Answer::Event(event) => event.change().into_iter().collect(),
            Answer::Measured(all) => all.iter().map(|(change, ..)| *change).collect(),
            Answer::Left(all) => all.iter().map(|left| left.change).collect(),
            Answer::Route(change, _)
            | Answer::Ways(change, _)
            | Answer::Holder(change, ..)
            | Answer::Unopened(change, _)
            | Answer::PathChecked(change)
            | Answer::Confirmed(change)
            | Answer::Muted(change) => vec![*change],
            _ => Vec::new(),
        }
    }
}
