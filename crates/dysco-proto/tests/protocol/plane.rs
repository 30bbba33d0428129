//! A simulated data plane of one host. It survives its daemon, and panics at any action that would
//! lose or duplicate a byte.

use std::collections::{BTreeMap, BTreeSet};

use dysco_common::session::offer;
use dysco_common::two_paths::{Cutoff, Fins};
use dysco_common::{Offer, Translation};
use dysco_proto::command::Side;
use dysco_proto::{ChangeId, Facts, HostEvent, Reason, Subsession, Watched};

// The benchmarks include this file, too.
#[path = "plane/host.rs"]
mod host;
#[path = "plane/middle.rs"]
mod middle;

/// Returns the cutoff of an end that has not closed.
pub(crate) fn at(number: u32) -> Cutoff {
    Cutoff {
        at: number,
        closes: false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Tracked,
    TwoPaths,
    NewPath,
    Tombstone,
    RelayTwoPaths,
    Relay,
    Return,
}

#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub facts: Facts,
    /// FINs that were seen.
    pub fins: Fins,
    pub state: State,
    pub cut_out: Option<u32>,
    pub cut_in: Option<u32>,
    /// True if the end got a reset because the middlebox has died.
    pub reset: bool,
    pub drained: bool,
    pub gone: bool,
    pub muted: bool,
    pub translation: Translation,
}

/// Effect of a command on the world outside this host.
pub(crate) enum Effect {
    Answer(HostEvent),
    /// The local end will acknowledge the old path's data at some time.
    WillDrain(ChangeId, Subsession),
    /// Both sessions were cut, the first at this number, and will drain.
    CutBoth(ChangeId, u32, [Subsession; 2]),
    /// A SYN goes to the right anchor, unless it is lost on the way.
    Trying(ChangeId, bool),
    /// The proxy's sockets are about to be closed.
    Closing,
    /// The client's answer is awaited.
    Watching(ChangeId, Result<Watched, Reason>),
    Nothing,
}

#[derive(Default)]
pub(crate) struct Plane {
    pub sessions: BTreeMap<Subsession, Session>,
    /// The two sessions that the proxy of this host pairs: A, then B.
    pub pair: Option<(Subsession, Subsession)>,
    pub ports: BTreeSet<ChangeId>,
    pub records: BTreeMap<ChangeId, Vec<u8>>,
    pub written: BTreeMap<ChangeId, u32>,
    pub refuse: Option<Refuse>,
    pub deltas: (i64, i64),
    /// True if the left neighbour has not answered this host yet.
    pub left_is_unknown: bool,
    /// Sessions of changes. Lost with the daemon; its successor gets them again.
    pub known: BTreeMap<ChangeId, Subsession>,
    /// Session B of the changes that lock two sessions.
    pub others: BTreeMap<ChangeId, Subsession>,
    pub locked: BTreeMap<Subsession, ChangeId>,
    /// Sessions A whose replies bypass this host, as far as it was notified.
    pub returned: BTreeSet<Subsession>,
    /// True if nothing arrives on the new path.
    pub silent: bool,
    /// True if the new path has carried data that the old path cannot carry.
    pub carried: bool,
    /// Sessions of the segments that were sent to clients.
    pub proofs: Vec<Subsession>,
    /// Changes, with flags: ever rolled back, ever cut.
    pub history: BTreeMap<ChangeId, (bool, bool)>,
}

/// Command that fails on this host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refuse {
    Measure,
    SecondMeasure,
    LockPair,
    Join,
    Watch,
    Prove,
    Return,
    Lock,
    Reserve,
    Prepare,
    Try,
    Persist,
    SecondPersist,
    ThirdPersist,
    Close,
}

fn failed() -> Reason {
    Reason::Failed("pretended".into())
}

pub(crate) fn offer_of(isn: u32, wscale: u8) -> Offer {
    Offer {
        isn,
        mss: 1460,
        wscale,
        flags: offer::SEEN | offer::WSCALE | offer::SACK | offer::TIMESTAMPS,
    }
}

impl Plane {
    /// Removes the state that does not survive the daemon.
    pub(crate) fn crash(&mut self) {
        self.known.clear();
        self.others.clear();
        self.locked.clear();
    }

    /// First action of a daemon: a session that is half prepared for a change without a record
    /// returns to the old path.
    pub(crate) fn adopt(&mut self) {
        if self.records.is_empty() {
            for s in self.sessions.values_mut() {
                let two = matches!(s.state, State::TwoPaths | State::RelayTwoPaths);
                if two && s.cut_out.is_none() && s.cut_in.is_none() {
                    s.state = State::Tracked;
                }
            }
        }
    }

    /// Returns everything to the old path.
    fn take_back(&mut self, change: ChangeId) {
        if let Some((_, s)) = self.of(change)
            && s.state == State::TwoPaths
        {
            assert!(s.muted, "taken back while the new path is heard");
            (s.cut_out, s.cut_in, s.drained, s.muted) = (None, None, false, false);
            s.state = State::Tracked;
            self.ports.remove(&change);
        }
    }

    fn refuses(&mut self, what: Refuse) -> bool {
        self.refuse == Some(what)
    }

    fn of(&mut self, change: ChangeId) -> Option<(Subsession, &mut Session)> {
        let subsession = *self.known.get(&change)?;
        self.sessions.get_mut(&subsession).map(|s| (subsession, s))
    }

    fn lock(&mut self, change: ChangeId, subsession: Subsession) -> Effect {
        let other = self.locked.insert(subsession, change);
        assert!(other.is_none_or(|o| o == change), "locked twice");
        self.known.insert(change, subsession);
        if let Some(s) = self.sessions.get_mut(&subsession)
            && s.state == State::Return
        {
            s.state = State::Tracked;
        }
        let result = match self.sessions.get(&subsession) {
            _ if self.refuse == Some(Refuse::Lock) => Err(failed()),
            Some(s) if s.gone => {
                return Effect::Answer(HostEvent::SessionGone { subsession });
            }
            Some(s) => Ok(s.facts),
            None => Err(Reason::NotTracked(subsession)),
        };
        Effect::Answer(HostEvent::Locked { change, result })
    }

    fn unlock(&mut self, change: ChangeId) {
        self.locked.retain(|_, c| *c != change);
    }

    fn reserve(&mut self, change: ChangeId, a: Subsession, b: Subsession) -> Effect {
        let mut left = a.left;
        left.set_port(61_000);
        let result = match self.refuses(Refuse::Reserve) {
            true => Err(Reason::PortsExhausted),
            false => {
                self.ports.insert(change);
                let right = b.right;
                Ok(Subsession { left, right })
            }
        };
        Effect::Answer(HostEvent::Reserved { change, result })
    }

    fn try_path(&mut self, change: ChangeId) -> Effect {
        let refuses = self.refuses(Refuse::Try);
        match self.of(change) {
            Some((subsession, s)) if s.gone => {
                Effect::Answer(HostEvent::SessionGone { subsession })
            }
            Some((_, s)) => {
                assert_eq!(s.state, State::TwoPaths, "nothing is prepared");
                Effect::Trying(change, refuses)
            }
            None => panic!("a path of a session that this process was not told of"),
        }
    }

    fn unprepare(&mut self, change: ChangeId) {
        if let Some((_, s)) = self.of(change)
            && s.state == State::TwoPaths
        {
            assert_eq!(s.cut_out, None, "rolled back after its own cut");
            assert_eq!(s.cut_in, None, "rolled back after the other's cut");
            s.state = State::Tracked;
        }
        self.history.entry(change).or_default().0 = true;
    }

    fn cut(&mut self, change: ChangeId) -> Effect {
        match self.of(change) {
            Some((subsession, s)) if s.gone && s.cut_out.is_none() => {
                Effect::Answer(HostEvent::SessionGone { subsession })
            }
            Some((_, s)) => {
                assert_ne!(s.state, State::Tracked, "cut without a second path");
                let cutoff = *s.cut_out.get_or_insert(s.facts.local.isn ^ 0x0055_5555);
                self.history.entry(change).or_default().1 = true;
                let cutoff = at(cutoff);
                Effect::Answer(HostEvent::CutDone { change, cutoff })
            }
            None => panic!("cut of a session that this process was not told of"),
        }
    }

    fn set_cut_in(&mut self, change: ChangeId, cutoff: Cutoff) -> Effect {
        let Some((subsession, s)) = self.of(change) else {
            panic!("cutoff for a session that this process was not told of")
        };
        assert!(s.cut_in.is_none_or(|c| c == cutoff.at), "two cutoffs");
        s.cut_in = Some(cutoff.at);
        Effect::WillDrain(change, subsession)
    }

    fn reset(&mut self, change: ChangeId) {
        let both = [self.known.get(&change), self.others.get(&change)];
        for subsession in both.into_iter().flatten() {
            if let Some(s) = self.sessions.get_mut(subsession) {
                s.reset = true;
            }
        }
    }

    fn set_muted(&mut self, change: ChangeId, muted: bool) {
        if let Some((_, s)) = self.of(change) {
            s.muted = muted;
        }
    }

    fn complete(&mut self, change: ChangeId) {
        if let Some((_, s)) = self.of(change)
            && !s.gone
        {
            assert!(s.drained, "completed before it has drained");
            s.state = State::NewPath;
        }
    }

    fn stays_open(&self, change: ChangeId) -> Effect {
        let result = Err(failed());
        Effect::Answer(HostEvent::Closed { change, result })
    }

    fn persist(&mut self, change: ChangeId, record: Vec<u8>) -> Effect {
        let again = self.records.contains_key(&change) && self.refuses_again(change);
        if self.refuses(Refuse::Persist) || again {
            let error = "no space left".into();
            return Effect::Answer(HostEvent::PersistFailed { change, error });
        }
        *self.written.entry(change).or_default() += 1;
        self.records.insert(change, record);
        Effect::Nothing
    }

    fn refuses_again(&self, change: ChangeId) -> bool {
        match self.refuse {
            Some(Refuse::SecondPersist) => true,
            Some(Refuse::ThirdPersist) => self.written[&change] == 2,
            _ => false,
        }
    }

    fn prepare(
        &mut self,
        change: ChangeId,
        side: Side,
        own: Subsession,
        translation: Translation,
    ) -> Effect {
        self.known.insert(change, own);
        assert!(self.records.contains_key(&change), "prepared unrecorded");
        if self.refuses(Refuse::Prepare) {
            let result = Err(Reason::NewPathUnusable("pretended".into()));
            return Effect::Answer(HostEvent::TwoPaths { change, result });
        }
        let Some(s) = self.sessions.get_mut(&own) else {
            panic!("prepared a session that is not here")
        };
        if s.gone {
            return Effect::Answer(HostEvent::SessionGone { subsession: own });
        }
        if s.state == State::Tracked {
            s.state = State::TwoPaths;
            s.translation = translation;
        }
        if side == Side::Right {
            assert_eq!(translation, Translation::default());
        }
        let result = Ok(());
        Effect::Answer(HostEvent::TwoPaths { change, result })
    }
}
