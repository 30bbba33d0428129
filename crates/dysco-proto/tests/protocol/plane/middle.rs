//! The commands of the host whose proxy leaves: it has both sessions of a pair.

use dysco_common::Translation;
use dysco_proto::{ChangeId, Facts, HostEvent, Measurement, Probe, Reason, Subsession, Watched};

use super::{Effect, Plane, Refuse, Session, State, failed};

/// Returns the facts of a session's other end.
fn at_the_end(here: &Facts) -> Facts {
    Facts {
        local: here.remote,
        remote: here.local,
        fin_out: here.fin_in,
        fin_in: here.fin_out,
        ..*here
    }
}

impl Plane {
    /// Returns sessions A and B of a change that locks both.
    pub(super) fn pair_of(&mut self, change: ChangeId) -> [&mut Session; 2] {
        let (a, b) = (self.known[&change], self.others[&change]);
        let (mut first, mut second) = (None, None);
        for (which, s) in &mut self.sessions {
            match which {
                w if *w == a => first = Some(s),
                w if *w == b => second = Some(s),
                _ => {}
            }
        }
        [first.unwrap(), second.unwrap()]
    }

    pub(super) fn lock_pair(&mut self, change: ChangeId, a: Subsession, b: Subsession) -> Effect {
        for which in [a, b] {
            let other = self.locked.insert(which, change);
            assert!(other.is_none_or(|o| o == change), "locked twice");
        }
        self.known.insert(change, a);
        self.others.insert(change, b);
        let ends = self.pair_of(change).map(|s| (s.gone, at_the_end(&s.facts)));
        let result = match ends {
            _ if self.refuses(Refuse::LockPair) => Err(failed()),
            [(false, left), (false, right)] => Ok([left, right]),
            _ => Err(Reason::Closing),
        };
        Effect::Answer(HostEvent::PairLocked { change, result })
    }

    pub(super) fn join(
        &mut self,
        change: ChangeId,
        a: Subsession,
        b: Subsession,
        t: Translation,
    ) -> Effect {
        self.known.insert(change, a);
        self.others.insert(change, b);
        assert!(self.records.contains_key(&change), "joined unrecorded");
        let refused = self.refuses(Refuse::Join);
        let pair = self.pair_of(change);
        let closing = pair.iter().any(|s| s.gone);
        let joined = pair.iter().all(|s| s.state != State::Tracked);
        let result = match (refused, closing) {
            (true, _) => Err(Reason::NewPathUnusable("pretended".into())),
            _ if joined => Ok(()),
            (_, true) => Err(Reason::Closing),
            _ => {
                for s in pair {
                    s.state = State::RelayTwoPaths;
                    s.translation = t;
                }
                Ok(())
            }
        };
        Effect::Answer(HostEvent::Prepared { change, result })
    }

    pub(super) fn unjoin(&mut self, change: ChangeId) {
        for s in self.pair_of(change) {
            assert_eq!(s.cut_out, None, "rolled back after the cut");
            assert_ne!(s.state, State::Relay, "rolled back at the end");
            s.state = State::Tracked;
        }
        self.history.entry(change).or_default().0 = true;
    }

    pub(super) fn cut_pair(&mut self, change: ChangeId) -> Effect {
        let (a, b) = (self.known[&change], self.others[&change]);
        let pair = self.pair_of(change);
        if pair.iter().any(|s| s.gone && s.cut_out.is_none()) {
            return Effect::Answer(HostEvent::SessionGone { subsession: a });
        }
        let [left, right] = pair;
        for s in [&*left, &*right] {
            assert_ne!(s.state, State::Tracked, "cut without a second path");
        }
        let cut = |s: &mut Session| *s.cut_out.get_or_insert(s.facts.remote.isn ^ 0x0055_5555);
        let (out, back) = (cut(left), cut(right));
        right.cut_in = Some(out.wrapping_add(left.translation.seq_out));
        left.cut_in = Some(back.wrapping_add(left.translation.seq_in));
        self.history.entry(change).or_default().1 = true;
        Effect::CutBoth(change, out, [a, b])
    }

    pub(super) fn relay(&mut self, change: ChangeId) {
        for s in self.pair_of(change) {
            assert!(s.drained || s.gone, "completed before it has drained");
            s.state = State::Relay;
        }
    }

    pub(super) fn watch(&mut self, which: Subsession) -> Result<Watched, Reason> {
        if self.refuses(Refuse::Watch) {
            return Err(Reason::NotProven("pretended".into()));
        }
        let m = self.measure(which)?;
        Ok(Watched {
            subsession_a: m.subsession_a,
            subsession_b: m.subsession_b,
            probe: Probe {
                end: 500,
                ack: 600,
                clock: None,
                len: 100,
            },
            relay: m.relay.map(|t| t.mirrored()),
        })
    }

    pub(super) fn prove(&mut self, own: Subsession, path: Subsession) -> Result<(), Reason> {
        if self.refuses(Refuse::Prove) {
            return Err(Reason::NotTracked(own));
        }
        self.proofs.push(path);
        Ok(())
    }

    pub(super) fn start_dsr(&mut self, own: Subsession, t: Translation) -> Result<(), Reason> {
        if self.refuses(Refuse::Return) {
            return Err(Reason::Closing);
        }
        let Some(s) = self.sessions.get_mut(&own) else {
            return Err(Reason::NotTracked(own));
        };
        if !matches!(s.state, State::Tracked | State::Return) || s.gone {
            return Err(Reason::Closing);
        }
        (s.state, s.translation) = (State::Return, t);
        Ok(())
    }

    pub(super) fn measure(&mut self, which: Subsession) -> Result<Measurement, Reason> {
        match self.refuse {
            Some(Refuse::Measure) => return Err(Reason::NotTransparent("pretended".into())),
            Some(Refuse::SecondMeasure) => self.deltas.0 += 1,
            _ => {}
        }
        let (a, b) = self
            .pair
            .filter(|(a, b)| which == *a || which == *b)
            .ok_or(Reason::NotTracked(which))?;
        let (sa, sb) = (&self.sessions[&a], &self.sessions[&b]);
        if sa.gone || sb.gone {
            return Err(Reason::Closing);
        }
        let relay = (sa.state, sb.state) == (State::Relay, State::Relay);
        if !relay && (sa.state != State::Tracked || sb.state != State::Tracked) {
            return Err(Reason::NotTransparent("not relaying by itself".into()));
        }
        Ok(Measurement {
            delta_forward: self.deltas.0,
            delta_reverse: self.deltas.1,
            a: sa.facts,
            b: sb.facts,
            clock_a: 5000,
            clock_b: 9000,
            subsession_a: a,
            subsession_b: b,
            relay: relay.then_some(sa.translation),
            left_answers: !self.left_is_unknown,
        })
    }
}
