//! Steps of a change by which a proxy leaves. A step that waits for the kernel or the proxy runs in
//! a separate task and answers later.

use dysco_agent::NewPath;
use dysco_common::two_paths::{Anchor, Cutoff, has_announced_all};
use dysco_common::view::{Change, Cut, View};
use dysco_common::{FlowKey, Translation};
use dysco_explain::Explain;
use dysco_proto::{ChangeId, Facts, HostEvent, Reason, Side, Subsession};
use dysco_proxy::Pair;
use dysco_proxy::port::HeldPort;

use super::held::{FIRST_LOOK, Waiting};
use super::jobs::ProxyLeft;
use super::measure::{facts, no_longer};
use super::packets;
use super::raw::send_past;
use super::{Answer, Plane, Ports, ProxyChanges};

/// Minimum bytes of window that the old path may announce from the lock on: the data that the proxy
/// holds shrinks while the new path is set up. The paper's value, less one.
const CLAMP: u32 = u16::MAX as u32;

/// Returns that window, as sent with this scale. It is no less than the bytes that are under way
/// now, or a long path starves. It is at most a quarter of the widest window, since in each round
/// trip of the new path that much data is ahead of what the path's firewalls have seen.
pub(super) fn clamp_of(under_way: u32, wscale: u8) -> u16 {
    let wscale = u32::from(wscale & 15);
    let sent = |bytes: u32| bytes.div_ceil(1 << wscale).min(u16::MAX.into());
    let least = sent(CLAMP);
    let most = least.max(u32::from(u16::MAX / 4));
    sent(under_way).clamp(least, most) as u16
}

impl Plane {
    /// Returns the slot of a session of which either end is here.
    pub(super) fn find(&self, sub: &Subsession) -> Option<u32> {
        let opened = FlowKey::new(sub.left, sub.right);
        let accepted = FlowKey::new(sub.right, sub.left);
        // On a host with a NAT one side has the session by its own five-tuple, the other by name.
        let found = self.agent.find_called(&opened);
        found.or_else(|| self.agent.find_called(&accepted))
    }

    /// Returns the slot of a change's session, which is older than the change: a younger session
    /// has reused its five-tuple.
    pub(super) fn find_for(&self, change: ChangeId, sub: &Subsession) -> Option<u32> {
        let slot = self.find(sub)?;
        let begun = self.state.begun(change);
        let is_its = begun.is_none_or(|begun| self.agent.session(slot).created_ns <= begun);
        is_its.then_some(slot)
    }
}

impl ProxyChanges {
    pub(super) fn lock(
        &mut self,
        plane: &Plane,
        change: ChangeId,
        sub: &Subsession,
    ) -> Result<Facts, Reason> {
        let slot = (plane.find_for(change, sub)).ok_or(Reason::NotTracked(*sub))?;
        // Returns to the path that the change concerns, which is open all the while.
        if plane.agent.session(slot).view() == View::Returned {
            plane.agent.unprepare(slot);
        }
        let s = plane.confirmed(slot);
        let facts = facts(&s, sub)?;
        let held = self.held.entry(change).or_default();
        held.slot = Some((slot, s.created_ns));
        held.own = Some(*sub);
        // Modulo 2^32; an acknowledgement may be ahead of the highest number that was seen leaving.
        let under_way = s.snd_max.wrapping_sub(s.rcv_ack) as i32;
        let clamp = clamp_of(under_way.max(0) as u32, Anchor::Local.wscale(&s));
        plane.agent.clamp(slot, clamp);
        Ok(facts)
    }

    pub(super) fn unlock(&mut self, plane: &Plane, change: ChangeId) {
        self.unclamp(plane, change);
        self.held.remove(&change);
    }

    /// Removes the bound on the window that the old path may announce.
    pub(super) fn unclamp(&self, plane: &Plane, change: ChangeId) {
        for slot in self.slots_of(plane, change) {
            plane.agent.clamp(slot, 0);
            plane.agent.clamp_remote(slot, 0);
        }
    }

    pub(super) fn reserve(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        a: &Subsession,
        b: &Subsession,
    ) {
        match self.free_path(plane, a, b) {
            Ok(new) => {
                let held = self.held.entry(change).or_default();
                held.new = Some(FlowKey::new(new.left, new.right));
                held.waiting = Some(Waiting::Reserve { new });
                self.look_up(plane, change, new.left.ip(), new.right.ip());
            }
            Err(reason) => {
                plane.tell_machine(HostEvent::Reserved {
                    change,
                    result: Err(reason),
                });
            }
        }
    }

    /// Returns a free five-tuple from this host's end of A to the server's end of B.
    pub(super) fn free_path(
        &self,
        plane: &mut Plane,
        a: &Subsession,
        b: &Subsession,
    ) -> Result<Subsession, Reason> {
        let mut new = Subsession {
            left: a.left,
            right: b.right,
        };
        if new.left.is_ipv4() != new.right.is_ipv4() {
            return Err(Reason::NoRoute(new.right.ip()));
        }
        let ports = plane.config.removal.ports;
        for _ in 0..ports.count() {
            new.left.set_port(plane.state.next_port(ports));
            let key = FlowKey::new(new.left, new.right);
            let held = self.held.values().any(|h| h.new == Some(key));
            if !held && !plane.agent.in_use(&key) {
                return Ok(new);
            }
        }
        Err(Reason::PortsExhausted)
    }

    pub(super) fn prepare(
        &mut self,
        plane: &mut Plane,
        change: ChangeId,
        side: Side,
        own: &Subsession,
        new: &Subsession,
        translation: Translation,
    ) {
        let key = match side {
            Side::Left => FlowKey::new(new.left, new.right),
            Side::Right => FlowKey::new(new.right, new.left),
        };
        let slot = plane.find_for(change, own);
        let held = self.held.entry(change).or_default();
        held.new = Some(key);
        if held.slot.is_none() {
            held.slot = slot.map(|slot| (slot, plane.agent.session(slot).created_ns));
        }
        held.waiting = Some(Waiting::Prepare { translation });
        self.look_up(plane, change, key.local().ip(), key.remote().ip());
    }

    pub(super) fn prepare_path(
        &self,
        plane: &Plane,
        change: ChangeId,
        path: &NewPath,
    ) -> Result<(), Reason> {
        let slot = self.slot_of(plane, change).ok_or(Reason::Closing)?;
        let s = plane.agent.session(slot);
        match s.view() {
            View::Changing(Change::TwoPaths(_)) | View::NewPath(_) => {}
            View::Tracked if s.life.reset == 0 => plane
                .agent
                .prepare(slot, path)
                .map_err(|e| Reason::NewPathUnusable(e.explain().into()))?,
            view => return Err(no_longer(view)),
        }
        Ok(())
    }

    /// Leaves two paths, unless the session was cut.
    pub(super) fn unprepare(&self, plane: &Plane, change: ChangeId) {
        for slot in self.slots_of(plane, change) {
            // A cut is of another change, which began after this one was rolled back, or of the
            // data plane itself, which has received a packet on the new path of a session that is
            // over.
            if let View::Changing(Change::TwoPaths(cutover)) = plane.agent.session(slot).view()
                && cutover.cut == Cut::None
            {
                plane.agent.unprepare(slot);
            }
        }
    }

    pub(super) fn cut(&mut self, plane: &mut Plane, change: ChangeId) {
        match self.slot_of(plane, change) {
            Some(slot) => {
                let cutoff = plane.agent.cut(slot);
                self.announce_cut(plane, change, slot);
                plane.tell_machine(HostEvent::CutDone { change, cutoff });
            }
            None => self.tell_gone(plane, change),
        }
    }

    pub(super) fn set_cut_in(&mut self, plane: &mut Plane, change: ChangeId, cutoff: Cutoff) {
        let Some(slot) = self.slot_of(plane, change) else {
            return self.tell_gone(plane, change);
        };
        plane.agent.set_cut_in(slot, cutoff);
        if self.tell_broken(plane, change) {
            return;
        }
        if let Some(held) = self.held.get_mut(&change) {
            held.draining = true;
        }
        if !has_announced_all(&plane.agent.session(slot)) {
            self.announce_cut(plane, change, slot);
        }
        self.drained_or_wait(plane, change, FIRST_LOOK);
    }

    pub(super) fn complete(&mut self, plane: &Plane, change: ChangeId) {
        if let Some(held) = self.held.get_mut(&change) {
            held.announcing = None;
        }
        for slot in self.slots_of(plane, change) {
            plane.agent.complete(slot);
        }
        self.unclamp(plane, change);
    }

    pub(super) fn close_sockets(
        &self,
        plane: &mut Plane,
        change: ChangeId,
        a: &Subsession,
        b: &Subsession,
    ) {
        let known = self.held.get(&change).and_then(|h| h.pair);
        let (key_a, key_b) = (FlowKey::new(a.right, a.left), FlowKey::new(b.left, b.right));
        // A pair that has reused A's five-tuple has another B.
        let found = plane.proxy.find(&key_a).filter(|p| p.b.key == key_b);
        if let Some(pair) = known.or(found) {
            return plane.jobs.close(change, pair, *b);
        }
        // A restarted daemon may not have received the shim's report.
        let proxy = plane.proxy.clone();
        let (answers, opened) = (plane.answers.clone(), *b);
        tokio::spawn(async move {
            let holder = proxy.holder_of(key_a, key_b).await;
            let _ = answers.send(Answer::Holder(change, opened, holder));
        });
    }

    /// Closes the sockets of a pair that was looked for.
    pub(super) fn holder_found(
        &self,
        plane: &mut Plane,
        change: ChangeId,
        opened: Subsession,
        holder: Option<Pair>,
    ) {
        if let Some(pair) = holder {
            return plane.jobs.close(change, pair, opened);
        }
        tracing::warn!(%change, "no process has the proxy's sockets any more");
        let port = Some(HeldPort::hold(&FlowKey::new(opened.left, opened.right)));
        let left = ProxyLeft {
            change,
            opened,
            port,
            result: Ok(()),
        };
        let _ = plane.answers.send(Answer::Left(vec![left]));
    }
}

impl Ports {
    /// Ends a session that its proxy has left: both its ends take the new path. Firewalls on the
    /// old path would remember it for days.
    pub(super) fn make_tombstone(&mut self, plane: &mut Plane, change: ChangeId, sub: &Subsession) {
        if let Some(slot) = plane.find_for(change, sub) {
            plane.agent.tombstone(slot);
            let s = plane.agent.session(slot);
            for packet in packets::closing_packets(&s) {
                if let Err(error) = send_past(&packet, s.key.remote()) {
                    tracing::warn!(session = ?s.key, %error, "cannot end a session for firewalls");
                }
            }
            plane
                .collector
                .became_tombstone(slot, &plane.agent.session(slot));
            self.leaves(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_what_is_under_way_within_bounds() {
        // Without scaling, a window is at most 64 KiB.
        assert_eq!(clamp_of(0, 0), u16::MAX);
        assert_eq!(clamp_of(u32::MAX, 0), u16::MAX);
        assert_eq!(clamp_of(0, 7), 512);
        assert_eq!(clamp_of(1 << 20, 7), 8192);
        assert_eq!(clamp_of(u32::MAX, 7), u16::MAX / 4);
        assert_eq!(clamp_of(1, 14), 4);
    }
}
