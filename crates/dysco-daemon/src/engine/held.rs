//! Slots and five-tuples that this host holds for its changes, and the work that waits for a route
//! or for old data to drain.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dysco_agent::AgentError;
use dysco_common::seq::after;
use dysco_common::two_paths::{
    Anchor, Fins, has_announced_all, has_carried, has_reset, is_confirmed, is_past_cutoff,
};
use dysco_common::{FlowKey, Session, Translation, View};
use dysco_proto::{ChangeId, HostEvent, Subsession};
use dysco_proxy::Pair;

use super::pace::Pace;
use super::proof::ClientWatch;
use super::raw::Repeated;
use super::{Answer, Plane};

/// Interval at which the flag of a draining session is checked as well.
pub(super) const DRAIN_SWEEP: Duration = Duration::from_millis(20);

/// Time for which the window of the far end has to be closed before nothing more is expected of a
/// new path. A window that is closed for a moment proves nothing.
const SHUT: Duration = Duration::from_millis(500);

/// Resources and progress of one change on this host.
#[derive(Default)]
pub(super) struct Held {
    /// Slot of the session, and the time at which the session began.
    pub slot: Option<(u32, u64)>,
    /// Slot and start time of session B, where this host is both anchors.
    pub other: Option<(u32, u64)>,
    /// Subsession of the first session.
    pub own: Option<Subsession>,
    /// Five-tuple of the new path, seen from this host.
    pub new: Option<FlowKey>,
    /// Pair of the proxy, on the proxy's host.
    pub pair: Option<Pair>,
    /// Time of the first request for packets of its adopted sessions.
    pub asked: Option<Instant>,
    /// True if a cutoff is set and `Drained` is not yet reported.
    pub draining: bool,
    /// Set while this end may have to show on the new path the data that it has sent elsewhere.
    pub announcing: Option<Announcing>,
    /// True if the new path has answered a SYN.
    pub opened: bool,
    /// SYN that is repeated on the new path until an answer arrives.
    pub trial: Option<Repeated>,
    /// Nonce of that SYN.
    pub nonce: u32,
    /// FINs that the right anchor had seen when it answered. Set if the answer shows that the path
    /// leaves packets unchanged.
    pub answered: Option<Fins>,
    /// Highest number that the local end had sent when that SYN was made.
    pub opened_at: Option<u32>,
    /// Data that the session has sent since then.
    pub pace: Option<Pace>,
    /// Set while the new path is asked to answer.
    pub liveness_check: Option<LivenessCheck>,
    /// Interval to the next look: the old path is drained, and the new one has not yet shown that
    /// it carries data.
    pub unconfirmed: Option<Duration>,
    /// Time at which a closed window alone first confirmed the new path.
    pub shut: Option<Instant>,
    /// True if the new path is taken back, and the old one has not yet carried all data that the
    /// new one did.
    pub returns: bool,
    /// Wait for the answer of the client.
    pub client_watch: Option<ClientWatch>,
    /// Step that waits for a route.
    pub waiting: Option<Waiting>,
}

/// New path that is asked to answer.
pub(super) struct LivenessCheck {
    /// Number of answers before this request.
    pub answers: u16,
    /// True if the end had sent data there that was not acknowledged.
    pub waits: bool,
    /// Request that is repeated.
    pub _ask: Repeated,
}

/// Interval between the first two looks at whether a new path carries data. It doubles with each
/// look, up to the interval of the sweep.
pub(super) const FIRST_LOOK: Duration = Duration::from_millis(1);

/// Silence of an end on its new path.
#[derive(Default)]
pub(super) struct Announcing {
    /// Number of packets sent there at the last look.
    pub sent: u32,
    /// Number up to which the other end had shown to have sent.
    pub peer_sent_max: u32,
    /// Number of looks since then.
    pub looks: u32,
}

impl Announcing {
    /// Maximum number of looks between two packets.
    const SELDOM: u32 = 64;

    /// Records the number of packets sent there. Returns true if another packet is due that shows
    /// the data sent elsewhere: the interval doubles, up to [`Announcing::SELDOM`] looks. It begins
    /// anew when the other end has shown more, since that end shows no more than a window at once.
    pub(crate) fn is_due(&mut self, s: &Session) -> bool {
        let (sent, peer_sent_max) = (s.new_out, s.peer_sent_max);
        if (sent, peer_sent_max) != (self.sent, self.peer_sent_max) {
            let is_due = sent == self.sent;
            let looks = 0;
            *self = Announcing {
                sent,
                peer_sent_max,
                looks,
            };
            return is_due;
        }
        self.looks = self.looks.saturating_add(1);
        self.looks.is_power_of_two() || self.looks.is_multiple_of(Announcing::SELDOM)
    }
}

impl Held {
    /// Returns true if the change is between two paths.
    pub(crate) fn is_underway(&self) -> bool {
        self.draining || self.announcing.is_some() || self.returns
    }

    /// Returns the end of its sessions at which this host stands. For a pair that the host relays,
    /// these are the far ends.
    pub(super) fn anchor(&self) -> Anchor {
        match self.other {
            None => Anchor::Local,
            Some(_) => Anchor::Remote,
        }
    }

    /// Returns the held slots, each with the start time of its session.
    pub(super) fn slots(&self) -> impl Iterator<Item = (u32, u64)> {
        self.slot.into_iter().chain(self.other)
    }
}

/// Changes by which a proxy leaves its sessions.
#[derive(Default)]
pub(super) struct ProxyChanges {
    /// Resources that the data plane holds for each change.
    pub held: HashMap<ChangeId, Held>,
    /// Interfaces with strict reverse-path filtering, and the time at which that was read.
    pub strict: Option<(Instant, Vec<u32>)>,
}

/// Step of a change that waits for a route.
pub(super) enum Waiting {
    Reserve { new: Subsession },
    Prepare { translation: Translation },
    Join { translation: Translation },
}

/// Result of a route look-up: the index of the interface.
pub(super) type Routed = Result<u32, AgentError>;

impl ProxyChanges {
    /// Returns the slot of a change's session, if that session still has it.
    pub(super) fn slot_of(&self, plane: &Plane, change: ChangeId) -> Option<u32> {
        plane.same(self.held.get(&change)?.slot?)
    }

    /// Returns the slots of a change's sessions that still have theirs.
    pub(super) fn slots_of(&self, plane: &Plane, change: ChangeId) -> Vec<u32> {
        let held = self.held.get(&change).into_iter();
        held.flat_map(Held::slots)
            .filter_map(|h| plane.same(h))
            .collect()
    }

    /// Returns true if the pair of a proxy here was measured for the change.
    pub(super) fn has_pair(&self, change: ChangeId) -> bool {
        self.held.get(&change).is_some_and(|h| h.pair.is_some())
    }

    /// Notifies the machine that the session of a change has been collected.
    pub(super) fn tell_gone(&self, plane: &mut Plane, change: ChangeId) {
        if let Some(subsession) = self.held.get(&change).and_then(|h| h.own) {
            plane.tell_machine(HostEvent::SessionGone { subsession });
        }
    }

    /// Returns true if a change is drained at this host, and only a new path that does not carry
    /// data keeps the proxy in its session.
    pub(super) fn is_unconfirmed(&self, plane: &Plane, change: ChangeId) -> bool {
        let held = self.held.get(&change).filter(|held| held.draining);
        held.is_some_and(|held| {
            let at = held.anchor();
            let all: Vec<_> = held
                .slots()
                .map(|(slot, _)| plane.agent.session(slot))
                .collect();
            let drained = |s: &Session| s.two.drained != 0 && has_announced_all(s);
            all.iter().all(drained) && all.iter().any(|s| !is_confirmed(at, s))
        })
    }

    /// Returns true if all sessions of a change are drained at this host. If only closed windows
    /// confirm the new path, they have to be closed for some time.
    fn has_drained(&mut self, plane: &Plane, change: ChangeId) -> bool {
        let Some(held) = self.held.get(&change) else {
            return false;
        };
        let at = held.anchor();
        let slots: Vec<u32> = held.slots().map(|(slot, _)| slot).collect();
        let drained = slots.iter().all(|slot| plane.is_drained(*slot, at));
        let shut = slots
            .iter()
            .any(|slot| is_shut(&plane.agent.session(*slot)));
        let Some(held) = self.held.get_mut(&change).filter(|_| drained && shut) else {
            return drained;
        };
        held.shut.get_or_insert_with(Instant::now).elapsed() >= SHUT
    }

    /// Reports that a change is drained at this host, or schedules another look after `wait`.
    pub(super) fn drained_or_wait(&mut self, plane: &mut Plane, change: ChangeId, wait: Duration) {
        if !self.held.get(&change).is_some_and(|held| held.draining) {
            return;
        }
        let drained = self.has_drained(plane, change);
        let looks = !drained && wait < DRAIN_SWEEP && self.is_unconfirmed(plane, change);
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        if drained {
            (held.draining, held.unconfirmed) = (false, None);
            return plane.tell_machine(HostEvent::Drained { change });
        }
        if !looks || held.unconfirmed.is_some() {
            return;
        }
        held.unconfirmed = Some(wait);
        let answers = plane.answers.clone();
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            let _ = answers.send(Answer::Confirmed(change));
        });
    }

    /// Looks again, because the far end may have acknowledged something meanwhile.
    pub(super) fn look_confirmed(&mut self, plane: &mut Plane, change: ChangeId) {
        let held = self.held.get_mut(&change).filter(|held| held.draining);
        if let Some(wait) = held.and_then(|held| held.unconfirmed.take()) {
            self.drained_or_wait(plane, change, 2 * wait);
        }
    }

    /// Handles the event that the local end of a slot's session has acknowledged all data of the
    /// old path, or that the new path has shown how far the other end had sent.
    pub(super) fn drained(&mut self, plane: &mut Plane, slot: u32) {
        let change = self
            .held
            .iter()
            .find(|(_, h)| h.draining && h.slots().any(|(s, _)| s == slot));
        if let Some((change, _)) = change {
            self.drained_or_wait(plane, *change, FIRST_LOOK);
        }
    }

    /// Looks at draining sessions, in case an event was missed, and repeats packets that may have
    /// been lost.
    pub(super) fn sweep_drains(&mut self, plane: &mut Plane) {
        let draining = self.held.iter().filter(|(_, h)| h.draining);
        let draining: Vec<_> = draining.map(|(c, h)| (*c, h.anchor())).collect();
        for (change, at) in draining {
            for slot in self.slots_of(plane, change) {
                plane.agent.look_drained(slot, at);
            }
            self.drained_or_wait(plane, change, DRAIN_SWEEP);
        }
        self.announce_silent_cuts(plane);
        self.sweep_returns(plane);
    }
}

impl Plane {
    /// Returns the slot, if the session that began at that time still has it.
    fn same(&self, (slot, created): (u32, u64)) -> Option<u32> {
        let s = self.agent.session(slot);
        (s.created_ns == created && s.view() != View::Free).then_some(slot)
    }

    /// Returns true if a session has nothing more to do with the path through the proxy, and all
    /// that its end has sent on the new path is acknowledged. An end that has reset the session
    /// waits for nothing.
    pub(super) fn is_drained(&self, slot: u32, at: Anchor) -> bool {
        let s = self.agent.session(slot);
        let drained = s.two.drained != 0 && has_announced_all(&s) && is_confirmed(at, &s);
        drained || has_reset(&s)
    }
}

/// Returns true if the new path has carried nothing, and the far end has no room for more.
fn is_shut(s: &Session) -> bool {
    let room = after(s.edge, s.peer_ack);
    is_past_cutoff(s) && !has_carried(s) && !room && s.life.reset == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_end_announces_itself_more_and_more_seldom() {
        let mut announcing = Announcing::default();
        let at = |new_out, peer_sent_max| Session {
            new_out,
            peer_sent_max,
            ..Session::default()
        };
        let due: Vec<usize> = (1..=200).filter(|_| announcing.is_due(&at(0, 0))).collect();
        assert_eq!(due, [1, 2, 4, 8, 16, 32, 64, 128, 192]);
        // The end has sent a packet, which has shown the data that it sent elsewhere.
        assert!(!announcing.is_due(&at(1, 0)) && announcing.is_due(&at(1, 0)));
        // The other end has shown a part of its data.
        let announced = at(1, 7);
        assert_eq!(
            [(); 3].map(|()| announcing.is_due(&announced)),
            [true, true, true]
        );
        assert!(!announcing.is_due(&announced));
    }
}
