//! Chains: the policy in force, the keys of neighbours, and the hosts through which sessions can be
//! steered.
//!
//! A SYN is steered only to a host with a live connection and a key that both ends have confirmed
//! to each other, or to a former neighbour that may be there still ([`unconfirmed`]). A host of a
//! chain has to know the next one as well: the host that opens sessions introduces them.

mod file;
mod keys;
pub(in crate::engine) mod message;
mod met;
pub(in crate::engine) mod openers;
mod policy;
mod published;
mod report;
mod stale;
mod unconfirmed;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_common::Element;
use dysco_common::chain::Hop;
use dysco_config::policy::Policy;
use dysco_control::Incoming;
use dysco_explain::Cause;
use dysco_proto::Machine;

use keys::Shared;
use message::{FEW, Message, TAG};

use super::{Answer, Plane, ThisHost};

/// Interval at which absent neighbours are asked for, and the policy's file is looked at.
const ASK: Duration = Duration::from_secs(2);
/// Interval at which hosts are introduced, and routes looked up again.
const REFRESH: Duration = Duration::from_secs(20);
/// Time for which an introduction is valid.
const HOLDS: Duration = Duration::from_secs(90);

/// Route to a neighbour.
pub(super) struct Way {
    to: IpAddr,
    from: IpAddr,
    ifindex: Option<u32>,
}

impl Chains {
    /// Returns true if these addresses are of one host, as far as its certificate was seen.
    pub(super) fn is_one_host(&self, one: IpAddr, other: IpAddr) -> bool {
        let both = |s: &Shared| s.peer.holds(one) && s.peer.holds(other);
        one == other || self.keys.values().any(both)
    }
}

/// State of all chains on this host.
#[derive(Default)]
pub(super) struct Chains {
    /// Policy that the data plane has.
    policy: Policy,
    compiled: openers::Compiled,
    /// An earlier process has put rules in force that cannot be read back.
    unread: bool,
    /// Reason for which the file's policy is not in force.
    error: Option<Cause>,
    /// True if this process or an earlier one ever put a policy in force.
    applied: bool,
    keys: HashMap<u64, Shared>,
    /// Keys that a neighbour has confirmed before this host knew them.
    early: HashSet<u64>,
    unconfirmed: unconfirmed::Unconfirmed,
    /// Hosts that another host's chains need here.
    met: met::Met,
    /// Entries about which a neighbour was asked, by slot.
    questioned: HashMap<u32, stale::Asked>,
    asked: Option<Instant>,
    refreshed: Option<Instant>,
    file: file::PolicyFile,
    /// Policy and peers of the fleet's store, if one is configured.
    store: Option<published::OfStore>,
}

impl Chains {
    /// Takes up the state of a former process, and puts the policy in force. Its keys are forgotten
    /// unless they are trusted: some may be of peers that are revoked.
    pub(super) fn start_chains(&mut self, plane: &mut Plane, trusted: bool) {
        let now = Instant::now();
        self.adopt_keys(plane, now);
        if !trusted {
            self.forget_closed_keys(plane, &HashSet::new());
        }
        let hops = plane.agent.hops();
        self.unconfirmed
            .adopt(hops.into_iter().map(|(host, _)| host), now);
        self.start_policy(plane);
        self.sweep_chains(plane);
    }

    /// Makes a host one that sessions may be steered to, as long as it is needed.
    pub(super) fn meet(&mut self, plane: &Plane, host: IpAddr) {
        let known = self.met.need(host, Instant::now());
        if !known || self.key_for(host).is_none() {
            plane.control.reach(host);
        }
    }

    /// Looks up the routes to addresses of a neighbour with a key.
    fn find_ways(&self, plane: &Plane, addresses: &[IpAddr]) {
        for &to in addresses {
            let own = plane.config.host.addresses.iter().copied();
            let Some(from) = { own }.find(|own| own.is_ipv4() == to.is_ipv4()) else {
                continue;
            };
            if self.key_for(to).is_none() || plane.config.host.addresses.contains(&to) {
                continue;
            }
            let (routes, answers) = (plane.routes.clone(), plane.answers.clone());
            tokio::spawn(async move {
                let route = routes.get(from, to).await;
                let ifindex = route.ok().map(|route| route.ifindex);
                // The engine has ended.
                let _ = answers.send(Answer::Way(Way { to, from, ifindex }));
            });
        }
    }

    /// From time to time: looks at the policy, asks for absent neighbours, introduces present ones,
    /// and forgets old keys.
    pub(super) fn sweep_chains(&mut self, plane: &mut Plane) {
        let now = Instant::now();
        self.sweep_unconfirmed(plane, now);
        let due = |at: Option<Instant>, every| at.is_none_or(|at| now - at >= every);
        if due(self.asked, ASK) {
            self.asked = Some(now);
            self.look_at_policy(plane);
            self.ask_for_hosts(plane);
            self.ask_about_all_keys(plane);
        }
        if due(self.refreshed, REFRESH) {
            self.refreshed = Some(now);
            self.introduce(plane, |_| true);
            self.forget_old(plane, now);
            let live = self.keys.values().filter(|s| s.gone.is_none());
            let all: HashSet<_> = live.flat_map(|s| s.peer.addresses.clone()).collect();
            self.find_ways(plane, &all.into_iter().collect::<Vec<_>>());
        }
    }

    /// Returns the hosts that the policy in force, the configuration, the store, or the chains of
    /// other hosts name.
    pub(super) fn named_hosts(&self, plane: &Plane) -> HashSet<IpAddr> {
        let chains = self.policy.rules.iter().flat_map(|rule| &rule.chain.hosts);
        let peers = plane.config.control.peers.iter().copied();
        let peers = peers.chain(self.store_peers());
        let chains = chains.map(Element::host);
        chains.chain(self.met.hosts()).chain(peers).collect()
    }

    fn ask_for_hosts(&self, plane: &Plane) {
        for host in self.named_hosts(plane) {
            if self.key_for(host).is_none() && !plane.config.host.addresses.contains(&host) {
                plane.control.reach(host);
            }
        }
    }

    /// Introduces to these hosts of the policy's chains the hosts that they need.
    fn introduce(&self, plane: &Plane, whom: impl Fn(IpAddr) -> bool) {
        let mut all: HashMap<IpAddr, Vec<IpAddr>> = HashMap::new();
        let acquaintances = self.policy.acquaintances().into_iter();
        for (host, after) in acquaintances.filter(|(host, _)| whom(*host)) {
            all.entry(host).or_default().push(after);
        }
        for (host, after) in all {
            for few in after.chunks(FEW) {
                plane.send_about_chains(host, &Message::Meet(few.to_vec()));
            }
        }
    }

    fn forget_old(&mut self, plane: &Plane, now: Instant) {
        self.met.forget_old(now);
        self.forget_old_keys(plane, now);
        for (host, _) in plane.agent.hops() {
            if self.key_for(host).is_none() && !self.unconfirmed.has(host) {
                plane.agent.remove_hop(host);
            }
        }
    }
}

impl ThisHost {
    /// Installs a route that was looked up.
    pub(super) fn way_found(&mut self, way: &Way) {
        let Some((key_id, key)) = self.chains.key_for(way.to) else {
            return;
        };
        let Some(ifindex) = way.ifindex else {
            return self.chains.lose_hop(&self.plane, way.to);
        };
        let hop = Hop {
            key_id,
            key,
            local: way.from.into(),
            ifindex,
            reserved: 0,
        };
        if let Err(error) = self.plane.agent.set_hop(way.to, &hop) {
            return tracing::error!(peer = %way.to, %error, "cannot steer sessions to a neighbour");
        }
        self.chains.unconfirmed.remove(way.to);
        self.neighbour_ready(way.to);
    }

    /// Handles a neighbour's message about chains.
    pub(super) fn take_chain_message(&mut self, incoming: &Incoming, machine: &Machine) {
        let body = incoming.message.get(1..).unwrap_or_default();
        match postcard::from_bytes(body) {
            Ok(Message::Believed(id)) => self.chains.believed(&self.plane, id, &incoming.from),
            Ok(Message::IsBelieved(id)) => {
                let known = self.chains.keys.get(&id);
                if known.is_some_and(|shared| shared.peer == incoming.from) {
                    self.plane
                        .send_about_chains(incoming.via, &Message::Believed(id));
                }
            }
            Ok(Message::Meet(hosts)) => {
                let now = Instant::now();
                for host in hosts.into_iter().take(FEW).map(|host| host.to_canonical()) {
                    if self.chains.met.introduce(host, &incoming.from, now) {
                        self.plane.control.reach(host);
                    }
                }
            }
            Ok(Message::Has(held)) => self.plane.is_held(&held, incoming),
            Ok(Message::HasNot(path)) => self.not_held(path, incoming),
            Ok(Message::Lives(all)) => self.plane.tell_lives(all, incoming),
            Ok(Message::Lived(answer)) => {
                self.ports.lives_answered(&mut self.plane, answer, incoming)
            }
            Ok(Message::WhichPath(asked)) => self.plane.tell_in_use(asked, incoming, machine),
            Ok(Message::InUse(answer)) => {
                self.chain_updates
                    .in_use_answered(&mut self.plane, &answer, incoming)
            }
            Err(error) => {
                self.plane.state.malformed += 1;
                tracing::warn!(from = %incoming.via, %error, "a message was discarded");
            }
        }
    }
}

impl Plane {
    pub(super) fn send_about_chains(&self, to: IpAddr, message: &Message) {
        if !self.faults.pass(message.into()) {
            return;
        }
        match postcard::to_extend(message, vec![TAG]) {
            Ok(bytes) => self.control.send(to, bytes),
            Err(error) => tracing::error!(%to, %error, "cannot encode a message"),
        }
    }

    /// Handles a session that came to this host and should go on to an unknown one.
    pub(super) fn stranger(&mut self, slot: u32) {
        let s = self.agent.session(slot);
        // A NAT of this host has chosen the server.
        let translated = s.life.opened_here != 0;
        let server = if translated {
            s.key.remote
        } else {
            s.key.local
        }
        .ip();
        if self.neighbours.worth_asking(server) {
            self.control.reach(server);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use dysco_control::{Identity, Secret};

    use super::*;

    #[test]
    fn a_host_is_known_by_all_addresses_of_its_certificate() {
        let [a, b, c] = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut chains = Chains::default();
        assert!(chains.is_one_host(a, a));
        assert!(!chains.is_one_host(a, b));
        let peer = |addresses: &[IpAddr]| Shared {
            peer: Arc::new(Identity {
                addresses: addresses.to_vec(),
            }),
            key: Secret([0; 2]),
            confirmed: true,
            gone: None,
        };
        chains.keys.insert(1, peer(&[a, b]));
        chains.keys.insert(2, peer(&[c]));
        assert!(chains.is_one_host(a, b) && chains.is_one_host(b, a));
        assert!(!chains.is_one_host(a, c));
    }
}
