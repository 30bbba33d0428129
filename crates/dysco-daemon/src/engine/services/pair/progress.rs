//! Progress of a session with services at both ends, once its data enters or leaves them.

use std::time::Instant;

use dysco_api::ServiceOutcome;
use dysco_common::detour::{Detour, Way, cut, phase};
use dysco_proto::pairs::{Change, Content};

use super::super::progress::are;
use super::super::{Serviced, Services, Stage};
use super::message::phase_of;
use crate::engine::Plane;

impl Serviced {
    /// Lets what this host's end sends leave, once: the other host takes it.
    pub(super) fn leave_out(&mut self, plane: &Plane, slot: u32) {
        let out = plane.agent.detour(slot).map(|d| d.out.phase);
        if out == Some(phase::THROUGH) {
            plane.faults.reach("ServiceLeaveOut");
            plane.agent.leave_paired(slot, true);
            self.ordered = Instant::now();
        }
    }

    /// Takes what comes directly from the other end, from now on.
    fn leave_back(&mut self, plane: &Plane, slot: u32) {
        let back = plane.agent.detour(slot).map(|d| d.back.phase);
        if back == Some(phase::THROUGH) {
            plane.faults.reach("ServiceLeaveBack");
            plane.agent.leave_paired(slot, false);
        }
    }
}

impl Services {
    /// Begins to take services out of a session at both ends.
    pub(in crate::engine::services) fn leave_both(&mut self, plane: &Plane, slot: u32) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        one.stage = Stage::Leaving;
        one.leave_back(plane, slot);
        self.say(plane, slot, Content::Leave);
        self.begun(plane, slot, ServiceOutcome::Leaving);
    }

    /// The other host takes the services out.
    pub(super) fn leave_with_peer(&mut self, plane: &mut Plane, slot: u32) {
        // Its messages about the entry have come before: this may complete it.
        self.step(plane, slot);
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        // It repeats this otherwise.
        if !matches!(one.stage, Stage::In | Stage::Leaving) {
            return;
        }
        if one.stage == Stage::In {
            one.stage = Stage::Leaving;
            one.since = Instant::now();
        }
        one.leave_back(plane, slot);
        one.leave_out(plane, slot);
        self.say(plane, slot, Content::Leaving);
    }

    /// True if no data of a session passes the handler any more.
    pub(in crate::engine::services) fn is_out(&self, plane: &Plane, slot: u32) -> bool {
        let d = plane.agent.detour(slot);
        d.is_none_or(|d| are(&d, phase::DIRECT))
    }

    /// Tells the other host what has happened to a session's routes, and repeats what it has not
    /// answered.
    pub(in crate::engine::services) fn tell_peer(&mut self, plane: &Plane, slot: u32, d: &Detour) {
        let Some(one) = self.sessions.get_mut(&slot) else {
            return;
        };
        let (change, after) = match one.stage {
            Stage::Entering | Stage::In => (Change::Enter, phase::THROUGH),
            Stage::Leaving => (Change::Leave, phase::DIRECT),
            _ => return,
        };
        let Some(paired) = &mut one.paired else {
            return;
        };
        let mut say = Vec::new();
        let known = is_cut(&d.out, change) || d.out.phase == after;
        let first = paired.told != Some(change);
        let is_in = after == phase::DIRECT && d.out.phase == phase::THROUGH;
        let is_out = after == phase::DIRECT && are(d, phase::DIRECT);
        let due = paired.is_due();
        if known && paired.done != Some(change) && (first || due) {
            paired.told = Some(change);
            say.push(Content::Cut(change, d.out.cut));
        }
        if d.back.phase == after && paired.told_done != Some(change) {
            paired.told_done = Some(change);
            say.push(Content::Done(change));
        }
        if is_in && due {
            // The other host leaves only once it has entered.
            if paired.done.is_none() {
                say.push(Content::Cut(Change::Enter, d.out.cut));
            }
            say.push(Content::Leave);
        }
        if is_out && (due || !paired.told_out) {
            paired.told_out = true;
            say.push(Content::Out);
        }
        for content in say {
            self.say(plane, slot, content);
        }
    }

    /// The last service at both ends has left by itself, so that the halves no longer fit.
    pub(in crate::engine::services) fn half_left(&mut self, plane: &mut Plane, slot: u32) {
        let stage = self.sessions.get(&slot).map(|one| one.stage);
        if matches!(stage, Some(Stage::Entering | Stage::In)) {
            self.end_session(plane, slot, "its services have left at one end alone");
        }
    }

    /// True if both hosts may forget a session whose services have left.
    pub(in crate::engine::services) fn may_forget(&self, slot: u32) -> bool {
        let one = self.sessions.get(&slot);
        one.is_some_and(|one| one.paired.as_ref().is_none_or(|pair| pair.out))
    }
}

fn is_cut(way: &Way, change: Change) -> bool {
    way.phase == phase_of(change) && way.cut_set == cut::SET
}
