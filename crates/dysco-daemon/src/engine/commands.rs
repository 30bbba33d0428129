//! Execution of the machine's commands. A step that waits for the kernel or the proxy runs in a
//! separate task and answers later.

use dysco_agent::NewPath;
use dysco_common::two_paths::{Anchor, Cutoff, has_shown_all};
use dysco_common::view::{Change, Cut, View};
use dysco_common::{FlowKey, Translation};
use dysco_explain::Explain;
use dysco_proto::{ChangeId, Command, Facts, HostEvent, Reason, Side, Subsession};
use dysco_proxy::port::HeldPort;

use super::held::{FIRST_LOOK, Waiting};
use super::measure::facts;
use super::packets;
use super::raw::send_past;
use super::rechain::Enlisting;
use super::straight::Errand;
use super::{Answer, ThisHost};

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

impl ThisHost {
    pub(super) fn execute(&mut self, command: Command) {
        tracing::debug!(?command, "execute");
        match command {
            Command::Measure { change, subsession } => self.measure(change, subsession),
            Command::Lock { change, subsession } => {
                let result = self.lock(change, &subsession);
                self.tell_machine(HostEvent::Locked { change, result });
            }
            Command::LockPair {
                change,
                subsession_a,
                subsession_b,
            } => {
                let result = self.lock_pair(change, &subsession_a, &subsession_b);
                self.tell_machine(HostEvent::PairLocked { change, result });
            }
            Command::Unlock { change, .. } => self.unlock(change),
            Command::Reserve {
                change,
                subsession_a,
                subsession_b,
            } => {
                self.reserve(change, &subsession_a, &subsession_b);
            }
            Command::Release { change } if self.is_chain(change) => self.release_path(change),
            Command::Release { change } => {
                if let Some(held) = self.held.get_mut(&change) {
                    held.new = None;
                }
            }
            Command::Prepare {
                change,
                side,
                own,
                new,
                translation,
            } => {
                let flags = translation.flags | self.faults.spoilt();
                let translation = Translation {
                    flags,
                    ..translation
                };
                self.prepare(change, side, &own, &new, translation);
            }
            Command::Join {
                change,
                subsession_a,
                subsession_b,
                translation,
            } => self.join(change, &subsession_a, &subsession_b, translation),
            Command::Try { change } => self.try_path(change),
            Command::Unprepare { change } => {
                for slot in self.slots_of(change) {
                    self.unprepare(slot);
                }
            }
            Command::Cut { change } if self.is_chain(change) => self.switch_path(change),
            Command::SetCutIn { change, cutoff } if self.is_chain(change) => {
                self.settle_path(change, cutoff.at);
            }
            Command::Complete { change } if self.is_chain(change) => self.leave_path_before(change),
            Command::Cut { change } if self.is_pair(change) => self.cut_pair(change),
            Command::Cut { change } => self.cut(change),
            Command::SetCutIn { change, cutoff } => self.set_cut_in(change, cutoff),
            Command::Reset { change } => self.reset_ends(change),
            Command::Look { change } => self.look(change),
            Command::Deafen { change } => self.deafen(change),
            Command::Hear { change } => self.hear(change),
            Command::TakeBack { change, new } => self.take_back(change, &new),
            Command::Complete { change } => self.complete(change),
            Command::Close {
                change,
                subsession_a,
                subsession_b,
                relayed,
            } => {
                let no_sockets = self.relay_of(&subsession_a).is_some() && !relayed;
                if !relayed {
                    self.entomb(change, &subsession_a);
                    self.entomb(change, &subsession_b);
                }
                if no_sockets {
                    let result = Ok(());
                    return self.tell_machine(HostEvent::Closed { change, result });
                }
                self.close(change, &subsession_a, &subsession_b);
            }
            Command::Watch { change, subsession } => self.watch_client(change, &subsession),
            Command::Prove {
                change,
                subsession,
                path,
                probe,
                translation,
            } => {
                let errand = Errand::Prove { probe, translation };
                self.send_straight(change, subsession, path, errand);
            }
            Command::Return {
                change,
                subsession,
                path,
                translation,
            } => {
                let errand = Errand::Return { translation };
                self.send_straight(change, subsession, path, errand);
            }
            Command::Returned { subsession, .. } => self.returned(&subsession),
            Command::Hold { change, session } => self.hold_path(change, session),
            Command::Enlist {
                change,
                from,
                session,
                next,
                stays,
                paths,
                number,
            } => {
                let enlisting = Enlisting {
                    change,
                    from,
                    session,
                    next,
                    number,
                };
                self.get_ready(&enlisting, stays, &paths);
            }
            Command::AskDelta {
                change,
                from,
                session,
            } => self.ask_delta(change, from, &session),
            Command::Extend { change, token, .. } => self.extend_path(change, token),
            Command::MoveState {
                change,
                session,
                from,
                to,
            } => self.move_state_for(change, &session, from, to),
            Command::Open {
                change,
                chain,
                inner,
                token,
                delta,
                right,
                ..
            } => {
                self.note_delta(change, delta, right);
                self.open_path(change, chain, inner, token);
            }
            Command::Splice {
                session,
                left,
                right,
                hosts,
                number,
                ..
            } => self.splice_chain(&session, (left, right), &hosts, number),
            Command::Abandon { change } => self.abandon_path(change),
            Command::Forget {
                change,
                from,
                session,
                scope,
                paths,
            } => self.forget_passed((change, from), &session, scope, &paths),
            Command::Persist { change, record } => {
                if let Err(error) = self.state.write(change, &record) {
                    let error = error.to_string();
                    self.tell_machine(HostEvent::PersistFailed { change, error });
                }
            }
            Command::Erase { change } => {
                self.state.erase(change);
                self.held.remove(&change);
                self.erase_path(change);
            }
        }
    }

    fn unprepare(&self, slot: u32) {
        let s = self.agent.session(slot);
        // A cut is of another change, which began after this one was rolled back, or of the data
        // plane itself, which has received a packet on the new path of a session that is over.
        match s.view() {
            View::Changing(Change::TwoPaths(cutover)) if cutover.cut == Cut::None => {
                self.agent.unprepare(slot);
            }
            View::Changing(Change::FarTwoPaths(cutover)) if cutover.cut == Cut::None => {
                self.agent.unjoin(slot);
            }
            _ => {}
        }
    }

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

    fn lock(&mut self, change: ChangeId, sub: &Subsession) -> Result<Facts, Reason> {
        let slot = (self.find_for(change, sub)).ok_or(Reason::NotTracked(*sub))?;
        // Returns to the path that the change concerns, which is open all the while.
        if self.agent.session(slot).view() == View::Returned {
            self.agent.unprepare(slot);
        }
        let s = self.confirmed(slot);
        let facts = facts(&s, sub)?;
        let held = self.held.entry(change).or_default();
        held.slot = Some((slot, s.created_ns));
        held.own = Some(*sub);
        // Modulo 2^32; an acknowledgement may be ahead of the highest number that was seen leaving.
        let under_way = s.snd_max.wrapping_sub(s.rcv_ack) as i32;
        let clamp = clamp_of(under_way.max(0) as u32, Anchor::Near.wscale(&s));
        self.agent.clamp(slot, clamp);
        Ok(facts)
    }

    fn unlock(&mut self, change: ChangeId) {
        for slot in self.slots_of(change) {
            self.agent.clamp(slot, 0);
            self.agent.clamp_far(slot, 0);
        }
        self.held.remove(&change);
    }

    fn reserve(&mut self, change: ChangeId, a: &Subsession, b: &Subsession) {
        match self.free_path(a, b) {
            Ok(new) => {
                let held = self.held.entry(change).or_default();
                held.new = Some(FlowKey::new(new.left, new.right));
                held.waiting = Some(Waiting::Reserve { new });
                self.look_up(change, new.left.ip(), new.right.ip());
            }
            Err(reason) => {
                self.tell_machine(HostEvent::Reserved {
                    change,
                    result: Err(reason),
                });
            }
        }
    }

    /// Returns a free five-tuple from this host's end of A to the server's end of B.
    fn free_path(&mut self, a: &Subsession, b: &Subsession) -> Result<Subsession, Reason> {
        let mut new = Subsession {
            left: a.left,
            right: b.right,
        };
        if new.left.is_ipv4() != new.right.is_ipv4() {
            return Err(Reason::NoRoute(new.right.ip()));
        }
        let ports = self.config.removal.ports;
        for _ in 0..ports.count() {
            new.left.set_port(self.state.next_port(ports));
            let key = FlowKey::new(new.left, new.right);
            let held = self.held.values().any(|h| h.new == Some(key));
            if !held && !self.agent.in_use(&key) {
                return Ok(new);
            }
        }
        Err(Reason::PortsExhausted)
    }

    fn prepare(
        &mut self,
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
        let slot = self.find_for(change, own);
        let held = self.held.entry(change).or_default();
        held.new = Some(key);
        if held.slot.is_none() {
            held.slot = slot.map(|slot| (slot, self.agent.session(slot).created_ns));
        }
        held.waiting = Some(Waiting::Prepare { translation });
        self.look_up(change, key.local().ip(), key.remote().ip());
    }

    pub(super) fn prepare_path(&mut self, change: ChangeId, path: &NewPath) -> Result<(), Reason> {
        let slot = self.slot_of(change).ok_or(Reason::Closing)?;
        let s = self.agent.session(slot);
        match s.view() {
            View::Changing(Change::TwoPaths(_)) | View::NewPath(_) => {}
            View::Tracked if s.life.reset == 0 => self
                .agent
                .prepare(slot, path)
                .map_err(|e| Reason::NewPathUnusable(e.explain().into()))?,
            _ => return Err(Reason::Closing),
        }
        Ok(())
    }

    fn cut(&mut self, change: ChangeId) {
        match self.slot_of(change) {
            Some(slot) => {
                let cutoff = self.agent.cut(slot);
                self.show_cut(change, slot);
                self.tell_machine(HostEvent::CutDone { change, cutoff });
            }
            None => self.tell_gone(change),
        }
    }

    fn set_cut_in(&mut self, change: ChangeId, cutoff: Cutoff) {
        let Some(slot) = self.slot_of(change) else {
            return self.tell_gone(change);
        };
        self.agent.set_cut_in(slot, cutoff);
        if self.tell_broken(change) {
            return;
        }
        if let Some(held) = self.held.get_mut(&change) {
            held.draining = true;
        }
        if !has_shown_all(&self.agent.session(slot)) {
            self.show_cut(change, slot);
        }
        self.drained_or_wait(change, FIRST_LOOK);
    }

    fn complete(&mut self, change: ChangeId) {
        let pair = self.is_pair(change);
        if let Some(held) = self.held.get_mut(&change) {
            held.showing = None;
        }
        for slot in self.slots_of(change) {
            if pair {
                self.agent.relay(slot);
            } else {
                self.agent.complete(slot);
            }
            self.agent.clamp(slot, 0);
            self.agent.clamp_far(slot, 0);
        }
    }

    /// Ends a session that its proxy has left: both its ends take the new path. Firewalls on the
    /// old path would remember it for days.
    fn entomb(&mut self, change: ChangeId, sub: &Subsession) {
        if let Some(slot) = self.find_for(change, sub) {
            self.agent.tombstone(slot);
            let s = self.agent.session(slot);
            for packet in packets::farewell(&s) {
                if let Err(error) = send_past(&packet, s.key.remote()) {
                    tracing::warn!(session = ?s.key, %error, "cannot end a session for firewalls");
                }
            }
            self.collector.entombed(slot, &self.agent.session(slot));
            self.ports.leaves(slot);
        }
    }

    fn close(&mut self, change: ChangeId, a: &Subsession, b: &Subsession) {
        let known = self.held.get(&change).and_then(|h| h.pair);
        let (key_a, key_b) = (FlowKey::new(a.right, a.left), FlowKey::new(b.left, b.right));
        // A pair that has reused A's five-tuple has another B.
        let found = self.proxy.find(&key_a).filter(|p| p.b.key == key_b);
        let pair = known.or(found);
        let proxy = self.proxy.clone();
        let (answers, opened) = (self.answers.clone(), *b);
        tokio::spawn(async move {
            // A restarted daemon may not have received the shim's report.
            let pair = match pair {
                Some(pair) => Some(pair),
                None => proxy.holder_of(key_a, key_b).await,
            };
            let result = match pair {
                Some(pair) => proxy.close_silently(&pair).await.map(|_| ()),
                None => {
                    tracing::warn!(%change, "no process has the proxy's sockets any more");
                    Ok(())
                }
            };
            if result.is_ok() {
                // At once, before the kernel gives the port to another socket.
                let _ = answers.send(Answer::Left(opened, HeldPort::hold(&key_b)));
            }
            let result = result.map_err(|e| Reason::Failed(e.cause()));
            let _ = answers.send(Answer::Event(HostEvent::Closed { change, result }));
        });
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
