//! Problems of sessions.

use super::Kind;
use crate::execute::SessionRun;
use crate::plan::Side;
use crate::sessions::other;

/// Milliseconds without progress, with bytes in flight in the direction, that make a stall.
const STALL_MS: u64 = 10_000;

/// Problem of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    NotOpened(String),
    Wrong(Side, u64),
    Truncated(Side, u64),
    Error(Side, String),
    OneHangs(Side),
    Hangs(Side),
    Stood(Side, u64),
}

impl Trouble {
    /// Kind of the fault.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Trouble::Wrong(..) => Kind::WrongBytes,
            Trouble::Hangs(_) | Trouble::Stood(..) => Kind::Stall,
            Trouble::NotOpened(_)
            | Trouble::Truncated(..)
            | Trouble::Error(..)
            | Trouble::OneHangs(_) => Kind::Lost,
        }
    }

    /// Returns the words of a finding.
    pub(super) fn said(&self) -> String {
        match self {
            Trouble::NotOpened(why) => format!("did not open: {why}"),
            Trouble::Wrong(side, at) => format!("byte {at} that the {side:?} got is wrong"),
            Trouble::Truncated(side, missing) => {
                format!("the {side:?} heard a clean end with {missing} bytes missing")
            }
            Trouble::Error(side, error) => format!("the {side:?} heard: {error}"),
            Trouble::OneHangs(side) => format!("the {side:?} hangs and the other has heard an end"),
            Trouble::Hangs(side) => format!("the {side:?} hangs"),
            Trouble::Stood(side, ms) => format!("what the {side:?} gets stood still for {ms} ms"),
        }
    }

    /// True if a control with this problem shows that the network causes the other one as well.
    pub(super) fn excuses(&self, other: &Trouble) -> bool {
        let same = std::mem::discriminant(self) == std::mem::discriminant(other);
        same || self.kind() == other.kind() && !other.is_no_end()
    }

    /// True if the session ended worse than the death of a proxy makes it end.
    pub(super) fn is_no_end(&self) -> bool {
        matches!(
            self,
            Trouble::Wrong(..) | Trouble::Truncated(..) | Trouble::OneHangs(_)
        )
    }
}

const SIDES: [Side; 2] = [Side::Client, Side::Server];

/// Returns the problems of a session. `asleep_ms` is the time for which nothing was watched.
pub(super) fn troubles(session: &SessionRun, asleep_ms: u64) -> Vec<Trouble> {
    if let Some(trouble) = &session.trouble {
        return vec![Trouble::NotOpened(trouble.clone())];
    }
    if session.local.is_none() {
        return vec![Trouble::NotOpened("it has not opened".into())];
    }
    let end = |side: Side| &session.ends[side as usize];
    let mut found = Vec::new();
    for side in SIDES {
        let (own, peer) = (end(side), end(other(side)));
        let missing = peer.sent.saturating_sub(own.received);
        found.extend(own.wrong_at.map(|at| Trouble::Wrong(side, at)));
        if own.eof && missing > 0 {
            found.push(Trouble::Truncated(side, missing));
        }
        if let Some(error) = &own.error {
            found.push(Trouble::Error(side, error.clone()));
        }
        let other_heard = peer.error.is_some() || (peer.eof && own.sent > peer.received);
        if !own.over && other_heard {
            found.push(Trouble::OneHangs(side));
        } else if !own.over && (missing > 0 || !own.eof) {
            found.push(Trouble::Hangs(side));
        }
        let stand = session.watched.stands[side as usize];
        if stand.ms >= STALL_MS + 3 * asleep_ms {
            found.push(Trouble::Stood(side, stand.ms));
        }
    }
    found
}
