//! Removals in which this host is both anchors: a path through its own data plane joins its two
//! sessions.

use std::net::IpAddr;

use dysco_agent::{AgentError, Joint};
use dysco_api::Mode;
use dysco_common::two_paths::{Anchor, cutoff};
use dysco_common::view::{Change, Cut, View};
use dysco_common::{Session, Translation};
use dysco_proto::{ChangeId, Facts, HostEvent, Measurement, Reason, Subsession};
use dysco_proxy::Measured;

use super::held::{FIRST_LOOK, Waiting};
use super::measure::{accepted, facts, known, no_longer, opened};
use super::steps::clamp_of;
use super::{Answer, Plane, ProxyChanges};

/// Interfaces towards the left and the right end.
pub(super) type Ways = Result<[u32; 2], AgentError>;

impl ProxyChanges {
    /// Returns true if this host is both anchors of the change.
    pub(super) fn is_pair(&self, change: ChangeId) -> bool {
        self.held.get(&change).is_some_and(|h| h.other.is_some())
    }

    /// Returns the slots of A and of B, if both sessions still have theirs.
    fn pair_of(&self, plane: &Plane, change: ChangeId) -> Option<[u32; 2]> {
        self.slots_of(plane, change).try_into().ok()
    }

    pub(super) fn lock_pair(
        &mut self,
        plane: &Plane,
        change: ChangeId,
        a: &Subsession,
        b: &Subsession,
    ) -> Result<[Facts; 2], Reason> {
        let find = |sub| (plane.find_for(change, sub)).ok_or(Reason::NotTracked(*sub));
        let slots = [find(a)?, find(b)?];
        let sessions = slots.map(|slot| plane.confirmed(slot));
        let ends = [
            at_the_end(&sessions[0], facts(&sessions[0], a)?),
            at_the_end(&sessions[1], facts(&sessions[1], b)?),
        ];
        let held = self.held.entry(change).or_default();
        held.slot = Some((slots[0], sessions[0].created_ns));
        held.other = Some((slots[1], sessions[1].created_ns));
        held.own = Some(*a);
        // The clamp is short-lived, since nothing has to be set up. The number of bytes under way
        // to this host is unknown.
        for (slot, s) in slots.into_iter().zip(&sessions) {
            if let Err(error) = plane.agent.forget_edge(slot) {
                tracing::warn!(%change, %error, "the window of an end before stays");
            }
            plane
                .agent
                .clamp_remote(slot, clamp_of(0, Anchor::Remote.wscale(s)));
        }
        Ok(ends)
    }

    /// Notes how far both ends let the proxy's sockets send. The proxy may hold more for one of
    /// them than that end has room for, which leaves no room for what the other end sends.
    pub(super) fn note_edges(
        &self,
        plane: &Plane,
        change: ChangeId,
        claimed: &Measurement,
        m: &Measured,
    ) {
        let Some(slots) = self.pair_of(plane, change) else {
            return;
        };
        let edges = [
            m.sending_a.edge(claimed.a.local.isn, true),
            m.sending_b.edge(claimed.b.local.isn, false),
        ];
        for (slot, edge) in slots.into_iter().zip(edges) {
            if let Err(error) = plane.agent.set_edge(slot, edge) {
                tracing::warn!(%change, %error, "the window of an end is not known");
            }
        }
    }

    /// Looks up the routes to both ends, and then joins the sessions.
    pub(super) fn join(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        a: &Subsession,
        b: &Subsession,
        translation: Translation,
    ) {
        self.held.entry(change).or_default().waiting = Some(Waiting::Join { translation });
        let to_left = (a.right.ip(), a.left.ip());
        let to_right = (b.left.ip(), b.right.ip());
        let known = |(from, to): (IpAddr, IpAddr)| plane.state.route(from, to);
        if let (Some(left), Some(right)) = (known(to_left), known(to_right)) {
            return self.ways_found(plane, change, Ok([left, right]));
        }
        let routes = plane.routes.clone();
        let answers = plane.answers.clone();
        tokio::spawn(async move {
            let both = async {
                let left = routes.get(to_left.0, to_left.1).await?.ifindex;
                let right = routes.get(to_right.0, to_right.1).await?.ifindex;
                Ok([left, right])
            };
            let _ = answers.send(Answer::Ways(change, both.await));
        });
    }

    /// Continues the join that waited for the routes.
    pub(super) fn ways_found(&mut self, plane: &mut Plane, change: ChangeId, ways: Ways) {
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let Some(Waiting::Join { translation }) = held.waiting.take() else {
            return;
        };
        let result = self.joined(plane, change, ways, translation);
        plane.tell_machine(HostEvent::Prepared { change, result });
    }

    fn joined(
        &self,
        plane: &mut Plane,
        change: ChangeId,
        ways: Ways,
        translation: Translation,
    ) -> Result<(), Reason> {
        let [a, b] = self.pair_of(plane, change).ok_or(Reason::Closing)?;
        let keys = [a, b].map(|slot| plane.agent.session(slot).key);
        let ends = keys.map(|key| (key.local().ip(), key.remote().ip()));
        let [left, right] = ways.map_err(|_| Reason::NoRoute(ends[0].1))?;
        plane.usable_way(ends[0].0, ends[0].1, left)?;
        plane.usable_way(ends[1].0, ends[1].1, right)?;
        let states = [a, b].map(|slot| {
            let s = plane.agent.session(slot);
            (s.view(), s.life.reset != 0)
        });
        let done = |(view, _)| {
            matches!(
                view,
                View::Changing(Change::RelayTwoPaths(_)) | View::Relayed(_)
            )
        };
        if states.into_iter().all(done) {
            return Ok(());
        }
        let unfit = |(view, reset): &(View, bool)| *view != View::Tracked || *reset;
        if let Some((view, _)) = states.into_iter().find(unfit) {
            return Err(no_longer(view));
        }
        plane.agent.join(&Joint {
            a,
            b,
            translation,
            ifindex_a: left,
            ifindex_b: right,
        });
        Ok(())
    }

    /// Leaves two paths, unless the sessions were cut.
    pub(super) fn unjoin(&self, plane: &Plane, change: ChangeId) {
        for slot in self.slots_of(plane, change) {
            if let View::Changing(Change::RelayTwoPaths(cutover)) = plane.agent.session(slot).view()
                && cutover.cut == Cut::None
            {
                plane.agent.unjoin(slot);
            }
        }
    }

    /// Relays all packets of both ends.
    pub(super) fn relay_pair(&mut self, plane: &Plane, change: ChangeId) {
        if let Some(held) = self.held.get_mut(&change) {
            held.announcing = None;
        }
        for slot in self.slots_of(plane, change) {
            plane.agent.relay(slot);
        }
        self.unclamp(plane, change);
    }

    /// Cuts both sessions, and notes for each where the other's new data begins.
    pub(super) fn cut_pair(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some([a, b]) = self.pair_of(plane, change) else {
            // A former process may have cut both while both existed.
            let left = self.slots_of(plane, change).into_iter();
            let cut = left
                .map(|slot| plane.agent.session(slot))
                .find(|s| s.two.cut_set != 0);
            if let Some(s) = cut {
                let cutoff = cutoff(Anchor::Remote, &s);
                plane.tell_machine(HostEvent::CutDone { change, cutoff });
            }
            return self.tell_gone(plane, change);
        };
        let (cutoff, _) = plane.agent.cut_pair(a, b);
        plane.tell_machine(HostEvent::CutDone { change, cutoff });
        if self.tell_broken(plane, change) {
            return;
        }
        if let Some(held) = self.held.get_mut(&change) {
            held.draining = true;
        }
        self.drained_or_wait(plane, change, FIRST_LOOK);
    }
}

impl Plane {
    /// Returns the slots of A and of B of a session that this host relays.
    pub(super) fn relay_of(&self, sub: &Subsession) -> Option<[u32; 2]> {
        self.relay_at(self.find(sub)?)
    }

    /// Returns the same of a slot of the session.
    pub(super) fn relay_at(&self, slot: u32) -> Option<[u32; 2]> {
        let slot = self.agent.session(slot).relayed_by().unwrap_or(slot);
        let s = self.agent.session(slot);
        let other = self.linked(slot, &s)?;
        let relays = |slot| self.agent.session(slot).view().is_relayed();
        let both = relays(slot) && relays(other);
        both.then_some(match s.life.opened_here {
            0 => [slot, other],
            _ => [other, slot],
        })
    }

    /// Returns the slot of A of each session that this host relays and that is not in this mode.
    pub(super) fn relayed_slots(&self, mode: Mode) -> Vec<u32> {
        let all = self.agent.sessions().into_iter();
        let relayed = all.filter(|(slot, s)| {
            let View::Relayed(relay) = s.view() else {
                return false;
            };
            s.life.opened_here == 0
                && (mode != Mode::Return || !relay.returns)
                && self.linked(*slot, s).is_some()
        });
        relayed.map(|(slot, _)| slot).collect()
    }
}

impl ProxyChanges {
    /// Measures a session that this host relays. Its data plane adds a constant to each number,
    /// which is all that has to be measured.
    pub(super) fn measure_relay(
        &mut self,
        plane: &Plane,
        change: ChangeId,
        [slot_a, slot_b]: [u32; 2],
    ) -> Result<Measurement, Reason> {
        plane.has_none_beside([slot_a, slot_b])?;
        let (a, b) = (plane.agent.session(slot_a), plane.agent.session(slot_b));
        let (sub_a, sub_b) = (accepted(&a.key), opened(&b.key));
        let held = self.held.entry(change).or_default();
        held.slot = Some((slot_a, a.created_ns));
        held.own = Some(sub_a);
        let t = a.translation;
        let delta = |shift: u32, from: u32, to: u32| {
            i64::from(shift.wrapping_sub(to.wrapping_sub(from)) as i32)
        };
        Ok(Measurement {
            delta_forward: delta(t.seq_out, a.remote.isn, b.local.isn),
            delta_reverse: delta(t.seq_in, b.remote.isn, a.local.isn),
            a: known(&a)?,
            b: known(&b)?,
            clock_a: 0,
            clock_b: 0,
            subsession_a: sub_a,
            subsession_b: sub_b,
            relay: Some(t),
            left_answers: false,
        })
    }
}

/// Returns the facts that the far end of a session would report.
fn at_the_end(s: &Session, here: Facts) -> Facts {
    Facts {
        local: here.remote,
        remote: here.local,
        tsval_out: s.tsval_in,
        fin_out: here.fin_in,
        fin_in: here.fin_out,
        reset: here.reset,
        ..Facts::default()
    }
}
