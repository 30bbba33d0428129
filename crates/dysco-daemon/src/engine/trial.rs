//! Opening of a bypass before it is used. The left anchor sends SYNs on it, which the right
//! anchor's data plane answers, and then, as in any handshake, an acknowledgement. A path that does
//! not carry these is refused while nothing has changed. Later the left anchor shows firewalls on
//! the path how far it had sent elsewhere; the right anchor answers with its own number.

use std::time::Duration;

use dysco_common::Session;
use dysco_common::probe::Arrival;
use dysco_common::two_paths::{Anchor, Fins};
use dysco_common::view::{Change, Cut, View};
use dysco_explain::Cause;
use dysco_proto::{ChangeId, HostEvent, Meddling, Reason};

use super::clock::boot_time;
use super::pace::{Pace, too_fast};
use super::raw::{self, Repeated};
use super::{Answer, Held, Plane, ProxyChanges, ThisHost, packets, probe};

/// Intervals between SYNs, and from the last one until the path is given up.
const REPEAT: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(400),
    Duration::from_millis(500),
];

/// Returns the round trip of an answer that arrives this long after the first SYN. It answers one
/// of the SYNs: not one before the last, if that is less than half of the time.
fn round_trip(elapsed: Duration) -> Duration {
    let mut last = Duration::ZERO;
    for interval in REPEAT {
        if last + interval > elapsed {
            break;
        }
        last += interval;
    }
    (elapsed - last).max(elapsed / 2)
}

impl ProxyChanges {
    /// Opens the path, once the right anchor is prepared.
    pub(super) fn try_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some(slot) = self.slot_of(plane, change) else {
            return self.tell_gone(plane, change);
        };
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let s = plane.agent.session(slot);
        let result = match (s.view(), held.new) {
            (View::Changing(Change::TwoPaths(cutover)), Some(new))
                if cutover.cut != Cut::Set && !held.opened =>
            {
                let answers = plane.answers.clone();
                held.opened_at = Some(s.snd_max);
                held.pace.get_or_insert_with(|| Pace::new(&s));
                held.trial.get_or_insert_with(|| {
                    // Differs from the nonce of each earlier change, which began before this one.
                    held.nonce = boot_time().as_nanos() as u32;
                    let syns = packets::bypass_opens(&s, held.nonce);
                    Repeated::send(syns.into(), new.remote(), &REPEAT, move |unsent| {
                        let _ = answers.send(Answer::Unopened(change, unsent));
                    })
                });
                return;
            }
            // The path has carried packets already.
            (View::Changing(Change::TwoPaths(_)) | View::NewPath(_), Some(_)) => {
                Ok([Fins::default(); 2])
            }
            _ => Err(Reason::Closing),
        };
        plane.tell_machine(HostEvent::Tried { change, result });
    }

    /// Returns the change of this slot's session.
    fn held_of(&mut self, slot: u32) -> Option<(ChangeId, &mut Held)> {
        let mut held = self.held.iter_mut();
        let here = |h: &Held| h.slot.is_some_and(|(s, _)| s == slot);
        let (change, held) = held.find(|(_, h)| here(h))?;
        Some((*change, held))
    }

    /// Gives up the new path, on which no data has been sent yet.
    fn give_up_trial(&mut self, plane: &mut Plane, change: ChangeId, reason: Reason) {
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        if held.trial.take().is_some() {
            let result = Err(reason);
            plane.tell_machine(HostEvent::Tried { change, result });
        }
    }

    /// Handles the event that the far end has answered on the new path of this slot's session.
    pub(super) fn path_open(&mut self, plane: &mut Plane, slot: u32) {
        let (s, spoilt) = (plane.agent.session(slot), plane.faults.spoils("Pace"));
        let Some((change, held)) = self.held_of(slot) else {
            return;
        };
        let there = match (&held.trial, held.answered) {
            (Some(_), Some(fins)) => fins,
            // The answer to the SYN itself was lost, or it is not known which SYN it answers: the
            // SYN is sent again.
            (Some(_), None) => return,
            (None, _) => {
                held.opened = true;
                return;
            }
        };
        let is_too_fast = held.pace.take().is_some_and(|pace| {
            let wire = s.on_wire_of(s.path);
            pace.is_too_fast(&s, &wire, round_trip(pace.elapsed()))
        });
        if is_too_fast && !spoilt {
            let cause = too_fast(&format!("on {:?}", s.path));
            return self.give_up_trial(plane, change, Reason::NewPathUnusable(cause));
        }
        held.opened = true;
        held.trial = None;
        // This precedes all other packets of this end. The first acknowledgement of its stack there
        // may be more than a window behind the number that the other end has shown. A strict
        // firewall learns nothing from that segment, and drops the answer.
        let opened_at = held.opened_at;
        let first = opened_at.unwrap_or(s.snd_max);
        send(&s, &packets::bypass_opened(&s, first));
        let result = Ok([Fins::of(Anchor::Local, &s), there]);
        plane.tell_machine(HostEvent::Tried { change, result });
    }

    /// Shows what this end has sent through the proxy, if it is the left anchor of a bypass.
    pub(super) fn announce_cut(&mut self, plane: &Plane, change: ChangeId, slot: u32) {
        let s = plane.agent.session(slot);
        let two_paths = s.view().two_paths();
        let cut = two_paths.is_some_and(|cutover| cutover.cut == Cut::Set);
        if !cut || s.life.opened_here == 0 || s.peer_sent_max == 0 {
            return;
        }
        let mut opened = None;
        if let Some(held) = self.held.get_mut(&change) {
            let announcing = held.announcing.get_or_insert_default();
            (announcing.sent, announcing.peer_sent_max) = (s.new_out, s.peer_sent_max);
            opened = held.opened_at;
        }
        for packet in packets::bypass_announcements(&s, opened) {
            send(&s, &packet);
        }
    }

    /// Shows that again for all sessions whose end has sent nothing on the new path since: the
    /// packet may be lost, and firewalls learn from data as well. The interval grows: an end may be
    /// silent, and another read nothing, as long as they like.
    pub(super) fn announce_silent_cuts(&mut self, plane: &Plane) {
        let mut silent = Vec::new();
        for (change, held) in &mut self.held {
            let (Some(announcing), Some((slot, _))) = (&mut held.announcing, held.slot) else {
                continue;
            };
            if announcing.is_due(&plane.agent.session(slot)) {
                silent.push((*change, slot));
            }
        }
        for (change, slot) in silent {
            self.announce_cut(plane, change, slot);
        }
    }

    /// Gives up a path on which no answer arrived, or on which this host could not send.
    pub(super) fn path_unopened(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        unsent: Option<Cause>,
    ) {
        let new = self.held.get(&change).and_then(|h| h.new);
        let path = new.map_or(String::new(), |key| format!("{key:?}"));
        let cause = unsent.unwrap_or_else(|| {
            Cause::new(format!(
                "no answer to a SYN on {path}: a device between the anchors drops it"
            ))
        });
        self.give_up_trial(plane, change, Reason::NewPathUnusable(cause));
    }
}

impl ThisHost {
    /// Handles a packet that opens a path.
    pub(super) fn take_arrival(&mut self, arrival: &Arrival) {
        let slot = arrival.slot;
        if self.chain_updates.has(slot) {
            return self.chain_updates.chain_arrival(&self.plane, arrival);
        }
        let s = self.plane.agent.session(slot);
        let Some((change, held)) = self.proxy_changes.held_of(slot) else {
            return;
        };
        let Some(path) = held.new.filter(|_| held.trial.is_some()) else {
            return;
        };
        match probe::judge_answer(&s, &path, held.nonce, arrival) {
            Some(Ok(fins)) => held.answered = Some(fins),
            Some(Err(reason)) => self
                .proxy_changes
                .give_up_trial(&mut self.plane, change, reason),
            None => {}
        }
    }

    /// Handles a reset on a path on which no other packet of its session has arrived.
    pub(super) fn path_rejected(&mut self, slot: u32) {
        if self.chain_updates.has(slot) {
            return self.chain_updates.chain_rejected(&mut self.plane, slot);
        }
        let s = self.plane.agent.session(slot);
        let Some((change, held)) = self.proxy_changes.held_of(slot) else {
            return;
        };
        // The reset is late, of a change that is over.
        let Some(path) = held.new.filter(|path| s.path == *path) else {
            return;
        };
        let ends = (path.local().ip(), path.remote().ip());
        let reason = probe::meddles(ends, &[], Meddling::Rejects);
        if s.life.opened_here != 0 {
            return self
                .proxy_changes
                .give_up_trial(&mut self.plane, change, reason);
        }
        let result = Err(reason);
        self.plane.tell_machine(HostEvent::Tried { change, result });
    }
}

fn send(s: &Session, packet: &[u8]) {
    if let Err(error) = raw::send(packet, s.path.remote()) {
        tracing::warn!(path = ?s.path, %error, "cannot send on a new path");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_to_one_of_the_syns() {
        let of = |ms| round_trip(Duration::from_millis(ms)).as_millis();
        // The last SYN was sent at 0, 50, 150 or 350 ms.
        assert_eq!([0, 49, 50, 149, 160, 352].map(of), [0, 49, 25, 99, 80, 176]);
    }
}
