//! Events of the data plane and of the control channel.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use dysco_agent::Happened;
use dysco_common::policy::Contested;
use dysco_common::session::is_established;
use dysco_common::view::Route;
use dysco_common::{EventKind, Session, View, policy};
use dysco_control as control;
use dysco_firewall::transfer;
use dysco_proto::marked::Marked;
use dysco_proto::{asks, pairs};

use super::chains::message::is_ours;
use super::inputs::Heard;
use super::services;
use super::{Engine, ThisHost};

/// Interval between warnings of a full table.
const NO_ROOM_AGAIN: Duration = Duration::from_secs(10);

impl ThisHost {
    pub(super) fn take_events(&mut self, happened: &mut Happened) {
        for arrival in happened.arrivals.drain(..) {
            self.take_arrival(&arrival);
        }
        // Many events may have collected while no daemon ran, and each is answered. Anybody may
        // send any number of resets.
        let mut reported = HashSet::new();
        for (kind, slot) in happened.events.drain(..) {
            let repeats = matches!(
                kind,
                EventKind::Primed
                    | EventKind::Reset
                    | EventKind::Broken
                    | EventKind::Taken
                    | EventKind::Rejected
            );
            if !repeats || reported.insert((kind as u32, slot)) {
                self.take_event(kind, slot);
            }
        }
    }

    /// Begins to put services into a session of a rule or a run, if it is held, or was not held and has
    /// got none yet.
    pub(super) fn hold(&mut self, slot: u32, s: &Session) {
        if s.has_ended() {
            return;
        }
        match s.view() {
            View::Held if is_established(s) => {
                let wanted = self.wanted(s);
                self.services.hold(&mut self.plane, slot, wanted);
            }
            View::Tracked if s.laid_by != 0 && !policy::holds(s.laid_by) => {
                // Another rule may have taken the place of its own. The session is open, and has passed
                // its first bytes.
                let wanted = self.wanted(s).filter(services::Wanted::is_of_packets);
                if let Some(wanted) = wanted {
                    self.services.hold(&mut self.plane, slot, Some(wanted));
                }
                // Services that are taken out do not come back.
                self.plane.agent.forget_rule(slot);
            }
            _ => {}
        }
    }

    fn wanted(&self, s: &Session) -> Option<services::Wanted> {
        match policy::run_of(s.laid_by) {
            Some(run) => self.services.run(run),
            None => self.chains.services_for(&self.plane, s),
        }
    }

    /// Begins to put services into a session that has opened through hosts, if its rule has both.
    fn serve(&mut self, slot: u32, s: &Session) {
        // A host of the chain has no end of the session, and may have the same policy.
        let is_end = |route: Route| route.joined.is_none() && route.relay.is_none();
        let opened =
            s.is_current() && s.life.opened_here != 0 && s.view().new_path().is_some_and(is_end);
        let wanted = opened.then(|| self.chains.services_for(&self.plane, s));
        if let Some(wanted) = wanted.flatten() {
            self.services.serve(&mut self.plane, slot, wanted);
        }
    }

    fn take_event(&mut self, kind: EventKind, slot: u32) {
        match kind {
            EventKind::Drained => self.proxy_changes.drained(&mut self.plane, slot),
            EventKind::Broken => self.session_broken(slot),
            EventKind::Rerouted => self.services.rerouted(&mut self.plane, slot),
            EventKind::Unserved => {
                let s = self.plane.agent.session(slot);
                self.hold(slot, &s);
            }
            EventKind::Contested => {
                let contested = Contested::of(slot);
                let other = self.chains.contender(&self.plane, contested);
                self.services
                    .contested(&mut self.plane, contested.run, &other);
            }
            EventKind::PathOpen if self.chain_updates.has(slot) => {
                self.chain_updates.path_answered(&mut self.plane, slot)
            }
            EventKind::PathOpen => self.proxy_changes.path_open(&mut self.plane, slot),
            EventKind::Joins => self.chain_updates.path_joins(&self.plane, slot),
            EventKind::Primed => self.chain_updates.path_primed(&mut self.plane, slot),
            EventKind::Closed => self
                .chain_updates
                .session_ended(&mut self.plane, slot, false),
            EventKind::Reset => self
                .chain_updates
                .session_ended(&mut self.plane, slot, true),
            EventKind::Heard => {
                self.plane.confirmed(slot);
            }
            EventKind::Stranger => self.plane.stranger(slot),
            EventKind::Taken => self.chains.subsession_taken(&self.plane, slot),
            EventKind::Rejected => self.path_rejected(slot),
            // Reported with the packet that has arrived: see `take_arrival`.
            EventKind::Arrived => {}
            EventKind::Opened => {
                let s = self.plane.agent.session(slot);
                self.serve(slot, &s);
                // Not if it is another path of a session.
                if !self.plane.monitors.is_empty() && s.is_current() {
                    let id = self.plane.session_id(slot, &s);
                    self.plane
                        .report("opened", Some(id), format!("{:?}", s.key));
                }
            }
            EventKind::NoRoom => {
                // Each SYN that finds no room makes such an event, and is counted.
                let reported = self.no_room_reported;
                if reported.is_none_or(|at| at.elapsed() > NO_ROOM_AGAIN) {
                    self.no_room_reported = Some(Instant::now());
                    tracing::warn!(
                        "sessions are not tracked: the session table is full; raise max_sessions"
                    );
                }
            }
        }
    }
}

impl Engine {
    /// Takes a message for the machine.
    pub(super) fn take_message(&mut self, heard: Heard) {
        let core = &mut self.core;
        let Heard { incoming, message } = heard;
        match message {
            Ok(message) => {
                let now = core.host.plane.now();
                core.machine()
                    .handle_message(now, &incoming.from.addresses, message);
            }
            Err(error) => {
                core.host.plane.state.malformed += 1;
                tracing::warn!(from = %incoming.via, %error, "a message was discarded");
            }
        }
    }

    /// Takes an event of the channel that is no message for the machine.
    pub(super) fn take_control(&mut self, event: control::Event) {
        let core = &mut self.core;
        match event {
            control::Event::Message(incoming) if transfer::Message::is_one(&incoming.message) => {
                core.host
                    .moves
                    .take_state_message(&mut core.host.plane, &incoming);
            }
            control::Event::Message(incoming) if asks::Message::is_one(&incoming.message) => {
                self.chain_requests.take_ask(core, &incoming);
            }
            control::Event::Message(incoming) if pairs::Message::is_one(&incoming.message) => {
                let host = &mut core.host;
                host.services.take_pair_message(&mut host.plane, &incoming);
            }
            control::Event::Message(incoming) if is_ours(&incoming.message) => {
                core.host.take_chain_message(&incoming, &core.machine);
            }
            control::Event::Key { peer, via, id, key } => {
                core.host
                    .chains
                    .take_key(&core.host.plane, &peer, via, id, key)
            }
            control::Event::KeyGone(id) => core.host.chains.key_gone(&core.host.plane, id),
            control::Event::KeyRevoked(id) => core.host.chains.key_revoked(&core.host.plane, id),
            control::Event::Message(_) => {}
            control::Event::PeerUp(peer) => {
                core.host.plane.neighbours.is_there(peer);
                core.host
                    .plane
                    .report("peer_up", None, format!("{peer} is connected"));
                let now = core.host.plane.now();
                core.machine().handle_connected(now, peer);
                self.removals.decide_waiting(core);
            }
            control::Event::PeerDown(peer, why) => {
                core.host.plane.report(
                    "peer_down",
                    None,
                    format!("{peer} is not reachable: {why}"),
                );
                core.host.plane.neighbours.is_not_there(peer, &why);
                core.host.chains.neighbour_gone(&core.host.plane, peer);
                let host = &mut core.host;
                host.services.peer_gone(&mut host.plane, peer, &why);
                // A peer that closed may be restarted: repetition finds out.
                if !matches!(why, control::DownReason::Closed(_)) {
                    self.removals.removals_without(core, peer);
                }
                self.removals.decide_waiting(core);
            }
        }
    }
}
