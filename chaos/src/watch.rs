//! Watching sessions while they run: how far each has got, and how long it has stood
//! still with bytes on their way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::plan::Side;
use crate::sessions::{Session, other};

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);
/// So many looks make a mark.
const MARK: u64 = 4;

/// A direction that stood still although the other end had sent more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// Since when, in milliseconds since sessions began.
    pub from_ms: u64,
    /// For how long.
    pub ms: u64,
}

/// How far a session had got at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// In milliseconds since sessions began.
    pub ms: u64,
    /// Bytes that client and server had received.
    pub received: [u64; 2],
    /// Bytes that they had sent.
    pub sent: [u64; 2],
}

/// What was seen of a session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watched {
    /// The longest stand of what the client and the server received.
    pub stands: [Stand; 2],
    /// How far it had got, from time to time.
    pub marks: Vec<Mark>,
}

/// What was seen of all sessions, and the longest that this program itself was not run.
#[derive(Debug, Default)]
pub struct Seen {
    /// By the sessions' order.
    pub sessions: Vec<Watched>,
    /// Milliseconds: stands of that length say nothing.
    pub asleep_ms: u64,
}

/// Watches until it shall end.
pub fn watch(sessions: &[Arc<Session>], start: Instant, ended: &AtomicBool) -> Seen {
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

/// How far one direction has got, and since when.
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
