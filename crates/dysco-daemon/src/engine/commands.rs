//! The machine's commands, by the role of this host.

use dysco_common::Translation;
use dysco_proto::command::{Anchor, Chain, Direct, Forwarder, Journal, Pair, Proxy};
use dysco_proto::{ChangeId, Command, Host, HostEvent, Subsession};

use super::ThisHost;
use super::chain_updates::Enlisting;
use super::dsr::DsrRequest;

impl ThisHost {
    pub(super) fn execute(&mut self, command: Command) {
        tracing::debug!(?command, "execute");
        command.carry_out(self);
    }

    /// Ends both sessions of a proxy. A relaying host has no sockets to close.
    fn close_proxy(&mut self, change: ChangeId, a: &Subsession, b: &Subsession) {
        let plane = &mut self.plane;
        // A pair was measured: it has sockets.
        let has_pair = self.proxy_changes.has_pair(change);
        let no_sockets = !has_pair && plane.relay_of(a).is_some();
        self.ports.make_tombstone(plane, change, a);
        self.ports.make_tombstone(plane, change, b);
        if no_sockets {
            let result = Ok(());
            return plane.tell_machine(HostEvent::Closed { change, result });
        }
        self.proxy_changes.close_sockets(plane, change, a, b);
    }
}

impl Host for ThisHost {
    type Outcome = ();

    fn proxy(&mut self, change: ChangeId, command: Proxy) {
        let ThisHost {
            plane,
            proxy_changes: changes,
            ..
        } = self;
        match command {
            Proxy::Measure { subsession } => changes.measure(plane, change, subsession),
            Proxy::Close {
                subsession_a,
                subsession_b,
            } => self.close_proxy(change, &subsession_a, &subsession_b),
        }
    }

    fn anchor(&mut self, change: ChangeId, command: Anchor) {
        let ThisHost {
            plane,
            proxy_changes: changes,
            ..
        } = self;
        match command {
            Anchor::Lock { subsession } => {
                let result = changes.lock(plane, change, &subsession);
                plane.tell_machine(HostEvent::Locked { change, result });
            }
            Anchor::Unlock => changes.unlock(plane, change),
            Anchor::Reserve {
                subsession_a,
                subsession_b,
            } => changes.reserve(plane, change, &subsession_a, &subsession_b),
            Anchor::Release => {
                if let Some(held) = changes.held.get_mut(&change) {
                    held.new = None;
                }
            }
            Anchor::Prepare {
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
                changes.prepare(plane, change, side, &own, &new, translation);
            }
            Anchor::Try => changes.try_path(plane, change),
            Anchor::Unprepare => changes.unprepare(plane, change),
            Anchor::Cut => changes.cut(plane, change),
            Anchor::SetCutIn { cutoff } => changes.set_cut_in(plane, change, cutoff),
            Anchor::Reset => changes.reset_ends(plane, change),
            Anchor::CheckPath => changes.check_path(plane, change),
            Anchor::Mute => changes.mute(plane, change),
            Anchor::Unmute => changes.unmute(plane, change),
            Anchor::TakeBack { new } => changes.take_back(plane, change, &new),
            Anchor::Complete => changes.complete(plane, change),
        }
    }

    fn pair(&mut self, change: ChangeId, command: Pair) {
        let ThisHost {
            plane,
            proxy_changes: changes,
            ..
        } = self;
        match command {
            Pair::LockPair {
                subsession_a,
                subsession_b,
            } => {
                let result = changes.lock_pair(plane, change, &subsession_a, &subsession_b);
                plane.tell_machine(HostEvent::PairLocked { change, result });
            }
            Pair::Unlock => changes.unlock(plane, change),
            Pair::Join {
                subsession_a,
                subsession_b,
                translation,
            } => changes.join(plane, change, &subsession_a, &subsession_b, translation),
            Pair::Unjoin => changes.unjoin(plane, change),
            Pair::Cut => changes.cut_pair(plane, change),
            Pair::Reset => changes.reset_ends(plane, change),
            Pair::Complete => changes.relay_pair(plane, change),
            Pair::Close {
                subsession_a,
                subsession_b,
            } => changes.close_sockets(plane, change, &subsession_a, &subsession_b),
        }
    }

    fn direct(&mut self, change: ChangeId, command: Direct) {
        let ThisHost {
            plane,
            proxy_changes: changes,
            returns,
            ..
        } = self;
        match command {
            Direct::Watch { subsession } => changes.watch_client(plane, change, &subsession),
            Direct::Prove {
                subsession,
                path,
                probe,
                translation,
            } => {
                let request = DsrRequest::Prove { probe, translation };
                returns.request_dsr(plane, change, subsession, path, request);
            }
            Direct::Return {
                subsession,
                path,
                translation,
            } => {
                let request = DsrRequest::Return { translation };
                returns.request_dsr(plane, change, subsession, path, request);
            }
            Direct::Returned { subsession } => returns.returned(plane, &subsession),
        }
    }

    fn chain(&mut self, change: ChangeId, command: Chain) {
        let ThisHost {
            plane,
            proxy_changes,
            chain_updates,
            moves,
            ..
        } = self;
        match command {
            Chain::Hold { session } => chain_updates.hold_path(plane, change, session),
            Chain::Extend { token } => chain_updates.extend_path(plane, change, token),
            Chain::MoveState { session, from, to } => {
                moves.move_state_for(plane, change, &session, from, to);
            }
            Chain::Open {
                chain,
                inner,
                token,
                delta,
                right,
            } => {
                chain_updates.note_delta(change, delta, right);
                self.open_path(change, chain, inner, token);
            }
            // This process could not hold the session of a former one.
            Chain::Cut | Chain::SetCutIn { .. } if !chain_updates.holds(change) => {
                proxy_changes.tell_gone(plane, change)
            }
            Chain::Cut => chain_updates.switch_path(plane, change),
            Chain::SetCutIn { cutoff } => chain_updates.settle_path(plane, change, cutoff.at),
            Chain::Complete => chain_updates.leave_path_before(change),
            Chain::Splice {
                session,
                left,
                right,
                hosts,
                number,
            } => chain_updates.splice_chain(plane, &session, (left, right), &hosts, number),
            Chain::Abandon => chain_updates.abandon_path(plane, change),
            Chain::Release => chain_updates.release_path(plane, change),
        }
    }

    fn forwarder(&mut self, change: ChangeId, command: Forwarder) {
        let ThisHost {
            plane,
            chain_updates,
            ..
        } = self;
        match command {
            Forwarder::Enlist {
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
            Forwarder::AskDelta { from, session } => {
                chain_updates.ask_delta(plane, change, from, &session)
            }
            Forwarder::Forget {
                from,
                session,
                scope,
                paths,
            } => self.forget_passed((change, from), &session, scope, &paths),
        }
    }

    fn journal(&mut self, change: ChangeId, command: Journal) {
        let ThisHost {
            plane,
            proxy_changes: changes,
            chain_updates,
            ..
        } = self;
        match command {
            Journal::Persist { record } => {
                if let Err(error) = plane.state.write(change, &record) {
                    let error = error.to_string();
                    plane.tell_machine(HostEvent::PersistFailed { change, error });
                }
            }
            Journal::Erase => {
                plane.state.erase(change);
                changes.held.remove(&change);
                chain_updates.erase_path(plane, change);
            }
        }
    }
}
