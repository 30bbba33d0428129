//! Watches sessions while they run: records their progress, and the times without progress while
//! bytes are in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::plan::Side;
use crate::sessions::{Session, other};

/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// Number of looks per mark.
const MARK: u64 = 4;

/// A direction without progress although the other end had sent more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stand {
    /// Start, in milliseconds since the start of the sessions.
    pub from_ms: u64,
    /// Duration in milliseconds.
    pub ms: u64,
}

/// Progress of a session at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Time in milliseconds since the start of the sessions.
    pub ms: u64,
    /// Number of bytes that client and server had received.
    pub received: [u64; 2],
    /// Number of bytes that client and server had sent.
    pub sent: [u64; 2],
}

/// Observations of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Watched {
    /// Longest time without progress of the client's and of the server's received data.
    pub stands: [Stand; 2],
    /// Progress of the session at regular times.
    pub marks: Vec<Mark>,
}

/// Observations of all sessions, and the longest time for which this program did not run.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Observations in the order of the sessions.
    pub sessions: Vec<Watched>,
    /// Time in milliseconds. Stalls of that length prove nothing.
    pub asleep_ms: u64,
}

/// Watches the sessions until `ended` is set.
pub(crate) fn watch(sessions: &[Arc<Session>], start: Instant, ended: &AtomicBool) -> Seen {
    let mut seen = Seen {
        sessions: vec![Watched::default(); sessions.len()],
        asleep_ms: 0,
    };
    let mut last: Vec<_> = sessions.iter().map(|_| [Moved::default(); 2]).collect();
    let mut looked = Instant::now();
    let mut looks = 0;
    while !ended.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        let asleep = looked.elapsed().saturating_sub(LOOK).as_millis() as u64;
        seen.asleep_ms = seen.asleep_ms.max(asleep);
        looked = Instant::now();
        let now = start.elapsed().as_millis() as u64;
        for ((session, watched), moved) in sessions.iter().zip(&mut seen.sessions).zip(&mut last) {
            look(session, watched, moved, now, looks % MARK == 0);
        }
        looks += 1;
    }
    seen
}

/// Progress of one direction, and the time of the last progress.
#[derive(Clone, Copy, Default)]
struct Moved {
    received: u64,
    since: u64,
}

fn look(session: &Session, watched: &mut Watched, moved: &mut [Moved; 2], now: u64, mark: bool) {
    if session.local().is_none() || session.is_over() {
        return;
    }
    let sides = [Side::Client, Side::Server];
    let received = sides.map(|side| session.received(side));
    let sent = sides.map(|side| session.sent(side));
    for side in sides {
        let (at, stand) = (side as usize, &mut watched.stands[side as usize]);
        let waits = sent[other(side) as usize] > received[at];
        if received[at] != moved[at].received || !waits {
            moved[at] = Moved {
                received: received[at],
                since: now,
            };
        }
        let ms = now - moved[at].since;
        if ms > stand.ms {
            *stand = Stand {
                from_ms: moved[at].since,
                ms,
            };
        }
    }
    if mark {
        watched.marks.push(Mark {
            ms: now,
            received,
            sent,
        });
    }
}
