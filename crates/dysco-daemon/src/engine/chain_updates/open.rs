//! The handshake between the anchors that opens a path through a chain.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use dysco_agent::AgentError;
use dysco_common::chain::{self as wire, Hop, Token};
use dysco_common::probe::Arrival;
use dysco_common::two_paths::has_length;
use dysco_common::{Element, FlowKey, Session, seq};
use dysco_explain::{Cause, Explain};
use dysco_proto::{ChangeId, HostEvent, Meddling, Reason};

use super::chain_of::relaid;
use super::hosts::Waiting;
use crate::engine::pace::{self, Pace};
use crate::engine::raw::{self, Repeated};
use crate::engine::{Answer, ChainUpdates, Plane, ThisHost, packets, probe};

/// Result of looking up the interface by which a path leaves whose SYN has arrived.
pub(in crate::engine) struct Uplink {
    change: ChangeId,
    slot: u32,
    path: FlowKey,
    /// Index of the interface.
    found: Result<u32, AgentError>,
}

/// Intervals between SYNs, and from the last one until the path is given up.
const REPEAT: [Duration; 6] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(800),
    Duration::from_millis(800),
];

/// Maximum number of five-tuples that are tried for a path.
const ROUNDS: u32 = 16;

/// Returns true if what the other end has received on the path is close behind the data sent
/// elsewhere. A firewall lets the numbers advance by the widest window at most, and more is sent
/// until the path is taken.
fn is_close(s: &Session) -> bool {
    s.snd_max.wrapping_sub(s.rcv_ack) <= widest(s) / 4
}

fn widest(s: &Session) -> u32 {
    u32::from(u16::MAX) << s.on_wire().remote_wscale()
}

/// Returns the highest number that the end has sent, as far as a firewall lets it advance.
pub(super) fn announced_next(s: &Session) -> u32 {
    seq::min(s.snd_max, s.rcv_ack.wrapping_add(widest(s)))
}

impl ThisHost {
    pub(in crate::engine) fn open_path(
        &mut self,
        change: ChangeId,
        chain: Vec<Element>,
        inner: bool,
        token: Token,
    ) {
        let Some(paths) = self.chain_updates.paths.get(&change) else {
            return;
        };
        let next = chain.first().map(Element::host);
        let next = next.unwrap_or(paths.session.right.ip());
        let Some(hop) = self.chains.known_hop(&self.plane, next) else {
            return self.wait_for(Waiting::to_open(change, next, (chain, inner), token));
        };
        if let Err(reason) =
            self.chain_updates
                .open(&self.plane, change, next, &hop, (&chain, inner), token)
        {
            let result = Err(reason);
            return self
                .plane
                .tell_machine(HostEvent::Prepared { change, result });
        }
        if let Some(paths) = self.chain_updates.paths.get_mut(&change) {
            paths.chain = Some(chain);
        }
    }
}

impl ChainUpdates {
    fn open(
        &mut self,
        plane: &Plane,
        change: ChangeId,
        next: IpAddr,
        hop: &Hop,
        (chain, inner): (&[Element], bool),
        token: Token,
    ) -> Result<(), Reason> {
        let failed = |e: AgentError| Reason::Failed(e.explain().into());
        self.check_delta(plane, change)?;
        let second_path = self.add_path(plane, change)?;
        plane.passes_no_filter(second_path)?;
        self.lead_beyond(plane, change, second_path);
        plane.aim(second_path, next, hop).map_err(failed)?;
        plane
            .agent
            .set_path_number(second_path, wire::path_number(&token));
        let s = plane.agent.session(second_path);
        if let Some(first) = s.other_path().filter(|_| s.joined_to().is_none()) {
            let now = plane.given(first, &plane.agent.session(first));
            let (right, elements) = match chain.split_last() {
                Some((right, elements)) if inner => (Some(right.host()), elements),
                _ => (None, chain),
            };
            let number = wire::path_number(&token);
            let whole = relaid(&now, (None, right), elements, number).unwrap_or(now);
            plane.agent.set_given(second_path, &whole).map_err(failed)?;
        }
        let path = s.path;
        let syn = packets::syn(&s, hop, chain, token);
        let answers = plane.answers.clone();
        if let Some(paths) = self.paths.get_mut(&change) {
            paths.begins = Some(s.snd_max);
            paths.length_probes.opens(Instant::now());
            let opening = Repeated::send(vec![syn], path.remote(), &REPEAT, move |unsent| {
                // The engine has ended.
                let _ = answers.send(Answer::PathDead(change, unsent));
            });
            paths.opening = Some(opening);
        }
        Ok(())
    }

    /// Handles a SYN that has arrived on an awaited path: looks up the route back. A host with
    /// several uplinks may receive by one and send by another.
    pub(in crate::engine) fn path_joins(&mut self, plane: &Plane, slot: u32) {
        let Some(change) = self.by_slot.get(&slot).copied() else {
            return;
        };
        let Some(paths) = self.paths.get(&change) else {
            return;
        };
        if paths.answered {
            return plane.answer_syn(slot);
        }
        let path = plane.agent.session(slot).path;
        let way = move |found| Uplink {
            change,
            slot,
            path,
            found,
        };
        let (from, to) = (path.local().ip(), path.remote().ip());
        if let Some(ifindex) = plane.state.route(from, to) {
            return self.uplink_found(plane, way(Ok(ifindex)));
        }
        let (routes, answers) = (plane.routes.clone(), plane.answers.clone());
        tokio::spawn(async move {
            let found = routes.get(from, to).await.map(|r| r.ifindex);
            // The engine may have ended.
            let _ = answers.send(Answer::Uplink(Box::new(way(found))));
        });
    }

    /// Answers the SYN of a path once the route back is known.
    pub(in crate::engine) fn uplink_found(&mut self, plane: &Plane, way: Uplink) {
        let slot = way.slot;
        let same = plane.agent.session(slot).path == way.path;
        if !same || self.by_slot.get(&slot) != Some(&way.change) {
            return;
        }
        let Some(paths) = self.paths.get_mut(&way.change) else {
            return;
        };
        if !paths.answered {
            match way.found {
                Ok(ifindex) => plane.agent.set_way(slot, ifindex),
                Err(error) => {
                    // The other end gives up the path, since its SYN gets no answer.
                    return tracing::warn!(path = ?way.path, %error, "no route back on a new path");
                }
            }
            // Data sent since the path is awaited need not be bridged.
            plane.agent.refresh_path(slot);
            paths.begins = Some(plane.agent.session(slot).snd_max);
            paths.answered = true;
            paths.length_probes.opens(Instant::now());
        }
        plane.answer_syn(slot);
    }

    /// Handles the far end's answer to the SYN.
    pub(in crate::engine) fn path_answered(&mut self, plane: &mut Plane, slot: u32) {
        if let Some(change) = self.by_slot.get(&slot)
            && let Some(paths) = self.paths.get_mut(change)
        {
            paths.answered = true;
            paths.length_probes.answered(Instant::now());
            if paths.pace.is_none() {
                plane.agent.refresh_path(slot);
                let pace = Pace::new(&plane.agent.session(slot));
                paths.pace = Some((pace, paths.length_probes.round_trip()));
            }
            self.prime_answered(plane, slot);
        }
    }

    /// Answers the SYN-ACK: shows where the numbers of both begin, since the windows of SYN and
    /// SYN-ACK are not scaled, and how long segments may be.
    pub(super) fn prime_answered(&mut self, plane: &mut Plane, slot: u32) {
        plane.prime(slot, plane.agent.session(slot).rcv_ack);
        self.show_length(plane, slot);
    }

    /// Handles a packet by which the far end shows that it receives on the path, or that it takes
    /// the path.
    pub(in crate::engine) fn path_primed(&mut self, plane: &mut Plane, slot: u32) {
        let Some(change) = self.by_slot.get(&slot).copied() else {
            return;
        };
        let Some(paths) = self.paths.get_mut(&change) else {
            return;
        };
        (paths.heard, paths.lively) = (true, true);
        paths.length_probes.answered(Instant::now());
        // The first packet took one round trip. The SYN may have been repeated, and the answer to
        // it as well.
        if let Some((pace, round_trip)) = &mut paths.pace {
            *round_trip = pace.elapsed().min(*round_trip);
        }
        if paths.cutoff.is_some() {
            self.look_at_path(plane, change);
            return self.catch_up(plane, change, slot);
        }
        // Data that is sent meanwhile on the other path need not be bridged then.
        plane.agent.refresh_path(slot);
        let s = plane.agent.session(slot);
        let opens = paths.opening.is_some();
        let is_wide = has_length(&s);
        let changes = paths.seen.changes();
        if opens && !(is_wide && changes.is_some()) {
            // The rest may still arrive; the request for it is repeated.
            return;
        }
        let ends = paths.ends(&s.path);
        if let Some(changes) = changes.filter(|_| opens)
            && let Err(reason) = probe::judge(&s, ends, paths.through(), changes)
        {
            return self.give_up_opening(plane, change, reason);
        }
        let too_fast = paths
            .pace
            .as_ref()
            .is_some_and(|(pace, round_trip)| pace.is_too_fast(&s, &s.on_wire(), *round_trip))
            && !plane.faults.spoils("Pace");
        if opens && is_close(&s) && !too_fast {
            paths.opening = None;
            let result = Ok(());
            return plane.tell_machine(HostEvent::Prepared { change, result });
        }
        if s.is_current() {
            // The data plane has followed the far end.
            if let Ok(cutoff) = plane.agent.switch_path(slot) {
                plane.prime(slot, cutoff);
            }
        } else if opens {
            // Both packets of an answer have the same numbers: more is shown once for them. A
            // session that is too fast is judged again in the next round of the timer.
            let answer = (s.rcv_ack, s.rcv_max);
            if !too_fast && paths.asked.replace(answer) != Some(answer) {
                plane.prime(slot, announced_next(&s));
            }
        } else if s.life.opened_here == 0 {
            plane.prime(slot, announced_next(&s));
            if is_wide {
                self.show_length(plane, slot);
            }
        }
    }

    /// Records a packet that opens a path.
    pub(in crate::engine) fn chain_arrival(&mut self, plane: &Plane, arrival: &Arrival) {
        let v6 = plane.agent.session(arrival.slot).path.is_v6();
        if let Some(change) = self.by_slot.get(&arrival.slot)
            && let Some(paths) = self.paths.get_mut(change)
        {
            paths.seen.take(arrival, v6);
        }
    }

    /// Handles a reset on a path on which no other packet of its session has arrived.
    pub(in crate::engine) fn chain_rejected(&mut self, plane: &mut Plane, slot: u32) {
        let Some(change) = self.by_slot.get(&slot).copied() else {
            return;
        };
        let Some(paths) = self.paths.get(&change) else {
            return;
        };
        let ends = paths.ends(&plane.agent.session(slot).path);
        let reason = probe::meddles(ends, paths.through(), Meddling::Rejects);
        if paths.opening.is_some() {
            self.give_up_opening(plane, change, reason);
        } else if paths.token.is_some() && paths.cutoff.is_none() {
            let result = Err(reason);
            plane.tell_machine(HostEvent::Prepared { change, result });
        }
    }

    /// Gives up the new path, on which no data has been sent yet.
    fn give_up_opening(&mut self, plane: &mut Plane, change: ChangeId, reason: Reason) {
        let opening = self.paths.get_mut(&change);
        if opening.and_then(|paths| paths.opening.take()).is_some() {
            let result = Err(reason);
            plane.tell_machine(HostEvent::Prepared { change, result });
        }
    }

    /// Gives up a path on which no answer arrived, or none that sufficed.
    pub(in crate::engine) fn path_dead(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        unsent: Option<Cause>,
    ) {
        let Some(paths) = self.paths.get_mut(&change) else {
            return;
        };
        if paths.opening.take().is_none() {
            return;
        }
        let way = paths.way();
        let reason = match paths.heard {
            false => Reason::ChainUnusable(
                unsent.unwrap_or_else(|| Cause::new(format!("no answer to a SYN {way}"))),
            ),
            true => self
                .too_narrow(plane, change)
                .unwrap_or_else(|| Reason::ChainUnusable(pace::too_fast(&way))),
        };
        let result = Err(reason);
        plane.tell_machine(HostEvent::Prepared { change, result });
    }
}

impl Plane {
    /// Gives a path its five-tuple to the next host, which depends on the slot. A bypass that
    /// begins here may have that five-tuple already, to the same server; then the one of a later
    /// round is taken.
    fn aim(&self, second_path: u32, next: IpAddr, hop: &Hop) -> Result<(), AgentError> {
        let remote_port = self.agent.session(second_path).name().remote().port();
        let ports = self.config.removal.ports;
        let count = ports.count().min(usize::from(u16::MAX)) as u16;
        let mut slot = second_path;
        loop {
            let (source, destination) = wire::ports(slot, ports.first, count, remote_port);
            let path = FlowKey::new((hop.local.ip(), source).into(), (next, destination).into());
            slot = slot.saturating_add(u32::from(count));
            match self.agent.aim_path(second_path, path, hop.ifindex) {
                Err(AgentError::PathInUse(_)) if slot < second_path + ROUNDS * u32::from(count) => {
                }
                result => return result,
            }
        }
    }

    /// Answers the SYN of a path that is awaited here.
    pub(super) fn answer_syn(&self, slot: u32) {
        let s = self.agent.session(slot);
        if let Err(error) = raw::send(&packets::syn_ack(&s), s.path.remote()) {
            tracing::warn!(path = ?s.path, %error, "cannot answer on a new path");
        }
    }
}
