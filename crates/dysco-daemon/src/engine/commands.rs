//! Execution of the machine's commands: each goes to its owner.

use super::ThisHost;
use super::rechain::Enlisting;
use super::straight::Errand;
use dysco_common::Translation;
use dysco_proto::{Command, HostEvent};

impl ThisHost {
    pub(super) fn execute(&mut self, command: Command) {
        tracing::debug!(?command, "execute");
        let ThisHost {
            plane,
            proxy_changes,
            rechain,
            moves,
            returns,
            ports,
            ..
        } = self;
        match command {
            Command::Measure { change, subsession } => {
                proxy_changes.measure(plane, change, subsession)
            }
            Command::Lock { change, subsession } => {
                let result = proxy_changes.lock(plane, change, &subsession);
                plane.tell_machine(HostEvent::Locked { change, result });
            }
            Command::LockPair {
                change,
                subsession_a,
                subsession_b,
            } => {
                let result = proxy_changes.lock_pair(plane, change, &subsession_a, &subsession_b);
                plane.tell_machine(HostEvent::PairLocked { change, result });
            }
            Command::Unlock { change, .. } => proxy_changes.unlock(plane, change),
            Command::Reserve {
                change,
                subsession_a,
                subsession_b,
            } => {
                proxy_changes.reserve(plane, change, &subsession_a, &subsession_b);
            }
            Command::Release { change } if rechain.is_chain(change) => {
                rechain.release_path(plane, change)
            }
            Command::Release { change } => {
                if let Some(held) = proxy_changes.held.get_mut(&change) {
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
                let flags = translation.flags | plane.faults.spoilt();
                let translation = Translation {
                    flags,
                    ..translation
                };
                proxy_changes.prepare(plane, change, side, &own, &new, translation);
            }
            Command::Join {
                change,
                subsession_a,
                subsession_b,
                translation,
            } => proxy_changes.join(plane, change, &subsession_a, &subsession_b, translation),
            Command::Try { change } => proxy_changes.try_path(plane, change),
            Command::Unprepare { change } => {
                for slot in proxy_changes.slots_of(plane, change) {
                    plane.unprepare(slot);
                }
            }
            Command::Cut { change } if rechain.is_chain(change) => {
                rechain.switch_path(plane, change)
            }
            Command::SetCutIn { change, cutoff } if rechain.is_chain(change) => {
                rechain.settle_path(plane, change, cutoff.at);
            }
            Command::Complete { change } if rechain.is_chain(change) => {
                rechain.leave_path_before(change)
            }
            Command::Cut { change } if proxy_changes.is_pair(change) => {
                proxy_changes.cut_pair(plane, change)
            }
            Command::Cut { change } => proxy_changes.cut(plane, change),
            Command::SetCutIn { change, cutoff } => proxy_changes.set_cut_in(plane, change, cutoff),
            Command::Reset { change } => proxy_changes.reset_ends(plane, change),
            Command::Look { change } => proxy_changes.look(plane, change),
            Command::Deafen { change } => proxy_changes.deafen(plane, change),
            Command::Hear { change } => proxy_changes.hear(plane, change),
            Command::TakeBack { change, new } => proxy_changes.take_back(plane, change, &new),
            Command::Complete { change } => proxy_changes.complete(plane, change),
            Command::Close {
                change,
                subsession_a,
                subsession_b,
                relayed,
            } => {
                let no_sockets = plane.relay_of(&subsession_a).is_some() && !relayed;
                if !relayed {
                    ports.entomb(plane, change, &subsession_a);
                    ports.entomb(plane, change, &subsession_b);
                }
                if no_sockets {
                    let result = Ok(());
                    return plane.tell_machine(HostEvent::Closed { change, result });
                }
                proxy_changes.close(plane, change, &subsession_a, &subsession_b);
            }
            Command::Watch { change, subsession } => {
                proxy_changes.watch_client(plane, change, &subsession)
            }
            Command::Prove {
                change,
                subsession,
                path,
                probe,
                translation,
            } => {
                let errand = Errand::Prove { probe, translation };
                returns.send_straight(plane, change, subsession, path, errand);
            }
            Command::Return {
                change,
                subsession,
                path,
                translation,
            } => {
                let errand = Errand::Return { translation };
                returns.send_straight(plane, change, subsession, path, errand);
            }
            Command::Returned { subsession, .. } => returns.returned(plane, &subsession),
            Command::Hold { change, session } => rechain.hold_path(plane, change, session),
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
            } => rechain.ask_delta(plane, change, from, &session),
            Command::Extend { change, token, .. } => rechain.extend_path(plane, change, token),
            Command::MoveState {
                change,
                session,
                from,
                to,
            } => moves.move_state_for(plane, change, &session, from, to),
            Command::Open {
                change,
                chain,
                inner,
                token,
                delta,
                right,
                ..
            } => {
                rechain.note_delta(change, delta, right);
                self.open_path(change, chain, inner, token);
            }
            Command::Splice {
                session,
                left,
                right,
                hosts,
                number,
                ..
            } => rechain.splice_chain(plane, &session, (left, right), &hosts, number),
            Command::Abandon { change } => rechain.abandon_path(plane, change),
            Command::Forget {
                change,
                from,
                session,
                scope,
                paths,
            } => self.forget_passed((change, from), &session, scope, &paths),
            Command::Persist { change, record } => {
                if let Err(error) = plane.state.write(change, &record) {
                    let error = error.to_string();
                    plane.tell_machine(HostEvent::PersistFailed { change, error });
                }
            }
            Command::Erase { change } => {
                plane.state.erase(change);
                proxy_changes.held.remove(&change);
                rechain.erase_path(plane, change);
            }
        }
    }
}
