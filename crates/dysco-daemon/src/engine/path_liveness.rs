//! A bypass that dies while two paths are in use: this host asks the other anchor to answer,
//! accepts nothing from the path any more, and takes it back. See
//! `dysco_proto::left::path_liveness`.

use std::time::Duration;

use dysco_common::two_paths::{Anchor, has_carried, has_caught_up, is_confirmed, is_undelivered};
use dysco_common::{FlowKey, Session};
use dysco_proto::{ChangeId, HostEvent, Subsession};

use super::held::LivenessCheck;
use super::raw::Repeated;
use super::{Answer, Plane, ProxyChanges, packets};

/// Intervals between requests to answer, and from the last one until the path has had time to
/// answer.
const REPEAT: [Duration; 3] = [
    Duration::from_millis(300),
    Duration::from_millis(700),
    Duration::from_secs(1),
];

/// Time after which a program has certainly processed its packet, even on a busy processor.
const SETTLES: Duration = Duration::from_millis(20);

impl ProxyChanges {
    /// Asks a new path to answer. The right anchor's data plane answers a packet that shows how far
    /// this end has sent, whether its daemon runs or not.
    pub(super) fn check_path(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some(slot) = self.slot_of(plane, change) else {
            return self.tell_gone(plane, change);
        };
        let s = plane.agent.session(slot);
        let Some(held) = self.held.get_mut(&change) else {
            return;
        };
        let shows = packets::bypass_announcements(&s, held.opened_at);
        let answers = plane.answers.clone();
        let ask = Repeated::send(shows, s.path.remote(), &REPEAT, move |_| {
            let _ = answers.send(Answer::PathChecked(change));
        });
        held.liveness_check = Some(LivenessCheck {
            answers: s.answers,
            waits: !is_confirmed(Anchor::Local, &s),
            _ask: ask,
        });
    }

    /// Judges a new path that has had time to answer.
    pub(super) fn path_checked(&mut self, plane: &mut Plane, change: ChangeId) {
        let Some(slot) = self.slot_of(plane, change) else {
            return self.tell_gone(plane, change);
        };
        let liveness_check = self
            .held
            .get_mut(&change)
            .and_then(|h| h.liveness_check.take());
        let Some(liveness_check) = liveness_check else {
            return;
        };
        let s = plane.agent.session(slot);
        // Packets that arrive unasked do not show that the other end receives anything. Answers of
        // the data planes do not show that the stacks receive anything.
        let answers = s.answers != liveness_check.answers;
        let unheard = liveness_check.waits && is_undelivered(Anchor::Local, &s);
        let carries = answers && !unheard || has_carried(&s) || !is_between(&s);
        plane.tell_machine(HostEvent::PathChecked { change, carries });
    }

    pub(super) fn mute(&self, plane: &mut Plane, change: ChangeId) {
        let Some(slot) = self.slot_of(plane, change) else {
            return self.tell_gone(plane, change);
        };
        // A session that is over keeps its path.
        let between = is_between(&plane.agent.session(slot));
        if !between || !plane.agent.mute(slot) {
            let muted = false;
            return plane.tell_machine(HostEvent::Muted { change, muted });
        }
        // A program that has just received a packet may be delayed before it reports that.
        let answers = plane.answers.clone();
        tokio::spawn(async move {
            tokio::time::sleep(SETTLES).await;
            let _ = answers.send(Answer::Muted(change));
        });
    }

    /// Completes the muting: all events of the programs have been reported.
    pub(super) fn muted(&self, plane: &mut Plane, change: ChangeId) {
        let Some(slot) = self.slot_of(plane, change) else {
            return self.tell_gone(plane, change);
        };
        let s = plane.agent.session(slot);
        let muted = is_between(&s) && s.muted != 0 && !has_carried(&s);
        if !muted {
            plane.agent.unmute(slot);
        }
        plane.tell_machine(HostEvent::Muted { change, muted });
    }

    pub(super) fn unmute(&self, plane: &Plane, change: ChangeId) {
        if let Some(slot) = self.slot_of(plane, change) {
            plane.agent.unmute(slot);
        }
    }

    pub(super) fn take_back(&mut self, plane: &mut Plane, change: ChangeId, new: &Subsession) {
        let Some(slot) = self.slot_of(plane, change) else {
            return plane.tell_machine(HostEvent::TakenBack { change });
        };
        let s = plane.agent.session(slot);
        let sides = [(new.left, new.right), (new.right, new.left)];
        let ours = sides.iter().any(|(l, r)| s.path == FlowKey::new(*l, *r));
        // Another change may have the session, if the record of this one outlived the session.
        if s.view().two_paths().is_none() || !ours {
            return plane.tell_machine(HostEvent::TakenBack { change });
        }
        plane.agent.take_back(slot);
        if let Some(held) = self.held.get_mut(&change) {
            (held.draining, held.announcing, held.liveness_check) = (false, None, None);
            held.returns = true;
        }
        plane.agent.clamp(slot, 0);
        self.sweep_returns(plane);
    }

    /// Ends the second path of sessions whose old path has caught up.
    pub(super) fn sweep_returns(&mut self, plane: &mut Plane) {
        let returning = self.held.iter().filter(|(_, h)| h.returns);
        let mut done = Vec::new();
        for (change, _) in returning {
            match self.slot_of(plane, *change) {
                Some(slot) if !has_caught_up(&plane.agent.session(slot)) => {}
                slot => done.push((*change, slot)),
            }
        }
        for (change, slot) in done {
            if let Some(slot) = slot {
                plane.agent.unprepare(slot);
            }
            if let Some(held) = self.held.get_mut(&change) {
                held.returns = false;
            }
            plane.tell_machine(HostEvent::TakenBack { change });
        }
    }
}

fn is_between(s: &Session) -> bool {
    s.view().two_paths().is_some() && s.life.reset == 0
}
