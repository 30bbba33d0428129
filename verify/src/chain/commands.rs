//! The machine's commands, carried out as the engine does it.

use dysco_common::Delta;
use dysco_proto::command::{Anchor, Chain, Direct, Forwarder, Journal, Pair, Proxy};
use dysco_proto::{Action, ChangeId, Command, HostEvent};

use super::configuration::LEFT;
use super::engine::refused;
use super::host::{Host, Wrong};
use super::seed;

impl dysco_proto::Host for Host {
    type Outcome = ();

    fn proxy(&mut self, _: ChangeId, _: Proxy) {
        self.wrong = Some(Wrong::Unmodelled);
    }

    fn anchor(&mut self, _: ChangeId, _: Anchor) {
        self.wrong = Some(Wrong::Unmodelled);
    }

    fn pair(&mut self, _: ChangeId, _: Pair) {
        self.wrong = Some(Wrong::Unmodelled);
    }

    fn direct(&mut self, _: ChangeId, _: Direct) {
        self.wrong = Some(Wrong::Unmodelled);
    }

    fn chain(&mut self, change: ChangeId, command: Chain) {
        match command {
            Chain::Hold { session } => {
                let result = self.hold(change, &session);
                self.tell(HostEvent::Locked { change, result });
            }
            Chain::Extend { token } => self.extend(change, &token),
            Chain::MoveState { from, to, .. } => {
                self.moves.insert((change, to), false);
                self.asked.push((change, from, to));
            }
            Chain::Open {
                delta,
                right,
                token,
                ..
            } => self.open_path(change, &token, (&delta, &right)),
            Chain::Cut => self.cut(change),
            Chain::SetCutIn { cutoff } => {
                if let Some(held) = self.held.get_mut(&change) {
                    held.peer_cutoff = Some(cutoff.at);
                }
            }
            Chain::Complete => self.complete(change),
            Chain::Splice {
                left,
                right,
                hosts,
                number,
                ..
            } => self.splice(left, right, &hosts, number),
            Chain::Abandon => self.abandon(change),
            Chain::Release => self.release(change),
        }
    }

    fn forwarder(&mut self, change: ChangeId, command: Forwarder) {
        match command {
            Forwarder::Enlist {
                from,
                stays,
                paths,
                number,
                ..
            } => {
                let result = self.get_ready(change, stays, &paths, number);
                self.tell(HostEvent::Enlisted {
                    change,
                    from,
                    result,
                });
            }
            Forwarder::AskDelta { from, .. } => self.tell(HostEvent::DeltaKnown {
                change,
                from,
                result: Ok(match seed::hides_delta(self.seed, self.place) {
                    true => Delta::default(),
                    false => self.delta,
                }),
            }),
            Forwarder::Forget {
                from, scope, paths, ..
            } => self.forget_once(change, from, scope, &paths),
        }
    }

    fn journal(&mut self, change: ChangeId, command: Journal) {
        match command {
            Journal::Persist { record } => {
                let first = !self.records.contains_key(&change);
                if first || !seed::forgets_records(self.seed) || self.place != LEFT {
                    self.records.insert(change, record);
                }
            }
            Journal::Erase => {
                self.records.remove(&change);
                match self.held.get_mut(&change) {
                    Some(held) if held.completed => held.erased = true,
                    _ => self.release(change),
                }
            }
        }
    }
}

impl Host {
    /// Makes the command fail. Returns false if it cannot fail on a sound host.
    pub(super) fn fail(&mut self, command: &Command) -> bool {
        let change = command.change;
        let event = match &command.action {
            Action::Chain(Chain::Hold { .. }) => HostEvent::Locked {
                change,
                result: Err(refused()),
            },
            Action::Chain(Chain::MoveState { to, .. }) => HostEvent::StateMoved {
                change,
                to: *to,
                result: Err(refused()),
            },
            Action::Chain(Chain::Extend { .. } | Chain::Open { .. }) => HostEvent::Prepared {
                change,
                result: Err(refused()),
            },
            Action::Forwarder(Forwarder::Enlist { from, .. }) => HostEvent::Enlisted {
                change,
                from: *from,
                result: Err(refused()),
            },
            Action::Forwarder(Forwarder::AskDelta { from, .. }) => HostEvent::DeltaKnown {
                change,
                from: *from,
                result: Err(refused()),
            },
            Action::Journal(Journal::Persist { .. }) => HostEvent::PersistFailed {
                change,
                error: String::new(),
            },
            _ => return false,
        };
        self.tell(event);
        true
    }
}
