//! Execution of the machine's commands: each goes to its owner.

use super::ThisHost;
use super::rechain::Enlisting;
use super::straight::Errand;
use dysco_common::Translation;
use dysco_proto::{Command, HostEvent};

impl ThisHost {
    pub(super) fn execute(&mut self, command: Command) {
        tracing::debug!(?command, "execute");
        match command {
            Command::Measure { change, subsession } => {
                self.proxy_changes
                    .measure(&mut self.plane, change, subsession)
            }
            Command::Lock { change, subsession } => {
                let result = self.proxy_changes.lock(&self.plane, change, &subsession);
                self.plane
                    .tell_machine(HostEvent::Locked { change, result });
            }
            Command::LockPair {
                change,
                subsession_a,
                subsession_b,
            } => {
                let result =
                    self.proxy_changes
                        .lock_pair(&self.plane, change, &subsession_a, &subsession_b);
                self.plane
                    .tell_machine(HostEvent::PairLocked { change, result });
            }
            Command::Unlock { change, .. } => self.proxy_changes.unlock(&self.plane, change),
            Command::Reserve {
                change,
                subsession_a,
                subsession_b,
            } => {
                self.proxy_changes
                    .reserve(&mut self.plane, change, &subsession_a, &subsession_b);
            }
            Command::Release { change } if self.rechain.is_chain(change) => {
                self.rechain.release_path(&mut self.plane, change)
            }
            Command::Release { change } => {
                if let Some(held) = self.proxy_changes.held.get_mut(&change) {
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
                let flags = translation.flags | self.plane.faults.spoilt();
                let translation = Translation {
                    flags,
                    ..translation
                };
                self.proxy_changes
                    .prepare(&mut self.plane, change, side, &own, &new, translation);
            }
            Command::Join {
                change,
                subsession_a,
                subsession_b,
                translation,
            } => self.proxy_changes.join(
                &mut self.plane,
                change,
                &subsession_a,
                &subsession_b,
                translation,
            ),
            Command::Try { change } => self.proxy_changes.try_path(&mut self.plane, change),
            Command::Unprepare { change } => {
                for slot in self.proxy_changes.slots_of(&self.plane, change) {
                    self.plane.unprepare(slot);
                }
            }
            Command::Cut { change } if self.rechain.is_chain(change) => {
                self.rechain.switch_path(&mut self.plane, change)
            }
            Command::SetCutIn { change, cutoff } if self.rechain.is_chain(change) => {
                self.rechain.settle_path(&mut self.plane, change, cutoff.at);
            }
            Command::Complete { change } if self.rechain.is_chain(change) => {
                self.rechain.leave_path_before(change)
            }
            Command::Cut { change } if self.proxy_changes.is_pair(change) => {
                self.proxy_changes.cut_pair(&mut self.plane, change)
            }
            Command::Cut { change } => self.proxy_changes.cut(&mut self.plane, change),
            Command::SetCutIn { change, cutoff } => {
                self.proxy_changes
                    .set_cut_in(&mut self.plane, change, cutoff)
            }
            Command::Reset { change } => self.proxy_changes.reset_ends(&self.plane, change),
            Command::Look { change } => self.proxy_changes.look(&mut self.plane, change),
            Command::Deafen { change } => self.proxy_changes.deafen(&mut self.plane, change),
            Command::Hear { change } => self.proxy_changes.hear(&self.plane, change),
            Command::TakeBack { change, new } => {
                self.proxy_changes.take_back(&mut self.plane, change, &new)
            }
            Command::Complete { change } => self.proxy_changes.complete(&self.plane, change),
            Command::Close {
                change,
                subsession_a,
                subsession_b,
                relayed,
            } => {
                let no_sockets = self.plane.relay_of(&subsession_a).is_some() && !relayed;
                if !relayed {
                    self.ports.entomb(&mut self.plane, change, &subsession_a);
                    self.ports.entomb(&mut self.plane, change, &subsession_b);
                }
                if no_sockets {
                    let result = Ok(());
                    return self
                        .plane
                        .tell_machine(HostEvent::Closed { change, result });
                }
                self.proxy_changes
                    .close(&self.plane, change, &subsession_a, &subsession_b);
            }
            Command::Watch { change, subsession } => {
                self.proxy_changes
                    .watch_client(&mut self.plane, change, &subsession)
            }
            Command::Prove {
                change,
                subsession,
                path,
                probe,
                translation,
            } => {
                let errand = Errand::Prove { probe, translation };
                self.returns
                    .send_straight(&mut self.plane, change, subsession, path, errand);
            }
            Command::Return {
                change,
                subsession,
                path,
                translation,
            } => {
                let errand = Errand::Return { translation };
                self.returns
                    .send_straight(&mut self.plane, change, subsession, path, errand);
            }
            Command::Returned { subsession, .. } => self.returns.returned(&self.plane, &subsession),
            Command::Hold { change, session } => {
                self.rechain.hold_path(&mut self.plane, change, session)
            }
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
            } => self
                .rechain
                .ask_delta(&mut self.plane, change, from, &session),
            Command::Extend { change, token, .. } => {
                self.rechain.extend_path(&mut self.plane, change, token)
            }
            Command::MoveState {
                change,
                session,
                from,
                to,
            } => self
                .moves
                .move_state_for(&mut self.plane, change, &session, from, to),
            Command::Open {
                change,
                chain,
                inner,
                token,
                delta,
                right,
                ..
            } => {
                self.rechain.note_delta(change, delta, right);
                self.open_path(change, chain, inner, token);
            }
            Command::Splice {
                session,
                left,
                right,
                hosts,
                number,
                ..
            } => self
                .rechain
                .splice_chain(&self.plane, &session, (left, right), &hosts, number),
            Command::Abandon { change } => self.rechain.abandon_path(&mut self.plane, change),
            Command::Forget {
                change,
                from,
                session,
                scope,
                paths,
            } => self.forget_passed((change, from), &session, scope, &paths),
            Command::Persist { change, record } => {
                if let Err(error) = self.plane.state.write(change, &record) {
                    let error = error.to_string();
                    self.plane
                        .tell_machine(HostEvent::PersistFailed { change, error });
                }
            }
            Command::Erase { change } => {
                self.plane.state.erase(change);
                self.proxy_changes.held.remove(&change);
                self.rechain.erase_path(&mut self.plane, change);
            }
        }
    }
}
