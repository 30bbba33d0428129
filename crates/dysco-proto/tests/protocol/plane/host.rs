//! The commands that the simulated data plane carries out.

use dysco_proto::Host;
use dysco_proto::command::{Anchor, Chain, Direct, Forwarder, Journal, Pair, Proxy};

use super::*;

impl Host for Plane {
    type Outcome = Effect;

    fn proxy(&mut self, change: ChangeId, command: Proxy) -> Effect {
        match command {
            Proxy::Measure { subsession } => {
                let result = self.measure(subsession);
                Effect::Answer(HostEvent::Measured { change, result })
            }
            Proxy::Close { .. } if self.refuses(Refuse::Close) => self.stays_open(change),
            Proxy::Close {
                subsession_a,
                subsession_b,
            } => {
                for which in [subsession_a, subsession_b] {
                    if let Some(s) = self.sessions.get_mut(&which) {
                        s.state = State::Tombstone;
                    }
                }
                Effect::Closing
            }
        }
    }

    fn anchor(&mut self, change: ChangeId, command: Anchor) -> Effect {
        match command {
            Anchor::Lock { subsession } => return self.lock(change, subsession),
            Anchor::Unlock => self.unlock(change),
            Anchor::Reserve {
                subsession_a,
                subsession_b,
            } => return self.reserve(change, subsession_a, subsession_b),
            Anchor::Release => {
                self.ports.remove(&change);
            }
            Anchor::Prepare {
                side,
                own,
                translation,
                ..
            } => return self.prepare(change, side, own, translation),
            Anchor::Try => return self.try_path(change),
            Anchor::Unprepare => self.unprepare(change),
            Anchor::Cut => return self.cut(change),
            Anchor::SetCutIn { cutoff } => return self.set_cut_in(change, cutoff),
            Anchor::Reset => self.reset(change),
            Anchor::CheckPath => {
                let carries = !self.silent || self.carried;
                return Effect::Answer(HostEvent::PathChecked { change, carries });
            }
            Anchor::Mute => {
                let muted = !self.carried;
                self.set_muted(change, muted);
                return Effect::Answer(HostEvent::Muted { change, muted });
            }
            Anchor::Unmute => self.set_muted(change, false),
            Anchor::TakeBack { .. } => {
                self.take_back(change);
                return Effect::Answer(HostEvent::TakenBack { change });
            }
            Anchor::Complete => self.complete(change),
        }
        Effect::Nothing
    }

    fn pair(&mut self, change: ChangeId, command: Pair) -> Effect {
        match command {
            Pair::LockPair {
                subsession_a,
                subsession_b,
            } => return self.lock_pair(change, subsession_a, subsession_b),
            Pair::Unlock => self.unlock(change),
            Pair::Join {
                subsession_a,
                subsession_b,
                translation,
            } => return self.join(change, subsession_a, subsession_b, translation),
            Pair::Unjoin => self.unjoin(change),
            Pair::Cut => return self.cut_pair(change),
            Pair::Reset => self.reset(change),
            Pair::Complete => self.relay(change),
            Pair::Close { .. } if self.refuses(Refuse::Close) => return self.stays_open(change),
            Pair::Close { .. } => return Effect::Closing,
        }
        Effect::Nothing
    }

    fn direct(&mut self, change: ChangeId, command: Direct) -> Effect {
        let result = match command {
            Direct::Watch { subsession } => {
                return Effect::Watching(change, self.watch(subsession));
            }
            Direct::Prove {
                subsession, path, ..
            } => self.prove(subsession, path),
            Direct::Return {
                subsession,
                translation,
                ..
            } => self.start_dsr(subsession, translation),
            Direct::Returned { subsession } => {
                self.returned.insert(subsession);
                return Effect::Nothing;
            }
        };
        Effect::Answer(HostEvent::Prepared { change, result })
    }

    /// Does nothing. `tests/protocol/chain_updates` covers chains.
    fn chain(&mut self, _: ChangeId, _: Chain) -> Effect {
        Effect::Nothing
    }

    fn forwarder(&mut self, _: ChangeId, _: Forwarder) -> Effect {
        Effect::Nothing
    }

    fn journal(&mut self, change: ChangeId, command: Journal) -> Effect {
        match command {
            Journal::Persist { record } => return self.persist(change, record),
            Journal::Erase => {
                self.records.remove(&change);
            }
        }
        Effect::Nothing
    }
}
