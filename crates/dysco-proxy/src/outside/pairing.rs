//! Which accepted socket is relayed to which opened one, by counts alone.
//!
//! A process that passes bytes on has written to B what it has read from A,
//! plus a constant, less what it holds at the moment. So the difference of the
//! two counts has a highest value, which it comes back to again and again
//! while data moves. Of two sockets that have nothing to do with each other
//! the difference drifts, and no value of it lasts.
//!
//! The highest difference is the constant only if the process was empty when it was
//! met: see [`crate::empty`].

use std::time::Duration;

use crate::empty::{Emptiness, Moment};

/// What a process has read from a socket and written to it since it was
/// opened; nothing where that was moving at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Bytes read from it.
    pub read: Option<i64>,
    /// Bytes written to it.
    pub written: Option<i64>,
    /// Nothing waits there to be read.
    pub no_input: bool,
    /// It takes more.
    pub has_room: bool,
}

/// What must have been seen of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// At so many moments the counts agreed, with data in between.
    pub moments: usize,
    /// So many bytes passed meanwhile.
    pub bytes: i64,
    /// So long apart were the first and the last.
    pub window: Duration,
}

/// A proxy's own bytes in a direction (a header, a CONNECT) are fewer than
/// this. More, and the socket has served others before.
pub const MAX_DELTA: i64 = 16 << 10;

/// So many times as often is beyond doubt.
const FAR: usize = 4;
/// A relay holds nothing at one of so many moments, at least: at full speed
/// it nearly always holds something.
const RARE: usize = 64;

/// A socket of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// It was accepted, not opened.
    pub accepted: bool,
    /// The local port: of accepted ones, the listener's.
    pub port: u16,
    /// When it was, on a clock common to all, where known.
    pub born: Option<u64>,
}

/// All that was seen of the sockets of one process.
pub struct Series {
    kinds: Vec<Kind>,
    /// When, and whether the process slept.
    moments: Vec<(Duration, bool)>,
    seen: Vec<Vec<(u32, Counts)>>,
    /// First and last reading of each socket: read, written.
    spans: Vec<Option<[(i64, i64); 2]>>,
}

/// One direction between two sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// What is read here is written there.
    Follows {
        /// The constant.
        delta: i64,
        /// So often it was met, with data in between.
        moments: usize,
        /// So many bytes passed meanwhile.
        bytes: i64,
        /// The process was seen empty then.
        empty: bool,
    },
    /// Next to nothing moves, and the difference stays.
    Quiet {
        /// The difference.
        delta: i64,
        /// The process was seen empty then.
        empty: bool,
    },
    /// Not enough was seen.
    Open {
        /// So often the difference was at its highest.
        moments: usize,
        /// So many bytes passed meanwhile.
        bytes: i64,
    },
    /// They have nothing to do with each other.
    Apart,
}

/// Two sockets that belong together, by their numbers in the series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The accepted one.
    pub a: usize,
    /// The opened one.
    pub b: usize,
    /// Bytes written to B less bytes read from A.
    pub forward: i64,
    /// Bytes written to A less bytes read from B.
    pub reverse: i64,
}

impl Series {
    /// Nothing seen yet of these sockets.
    pub fn new(kinds: Vec<Kind>) -> Series {
        Series {
            moments: Vec::new(),
            seen: vec![Vec::new(); kinds.len()],
            spans: vec![None; kinds.len()],
            kinds,
        }
    }

    /// A socket's counts, still or not: for how much moved.
    pub fn reading(&mut self, socket: usize, read: i64, written: i64) {
        let now = (read, written);
        match &mut self.spans[socket] {
            Some([_, last]) => *last = now,
            none => *none = Some([now, now]),
        }
    }

    /// A new moment, this long after the first, at which the process slept or not.
    pub fn moment(&mut self, at: Duration, asleep: bool) -> u32 {
        self.moments.push((at, asleep));
        (self.moments.len() - 1) as u32
    }

    /// What a socket's counts were at that moment.
    pub fn still(&mut self, moment: u32, socket: usize, counts: Counts) {
        if counts.read.is_some() || counts.written.is_some() {
            self.seen[socket].push((moment, counts));
        }
    }

    /// How much a process read from a socket and wrote to it meanwhile.
    pub fn moved(&self, socket: usize) -> (i64, i64) {
        self.spans[socket].map_or((0, 0), |[first, last]| (last.0 - first.0, last.1 - first.1))
    }

    /// The sockets that moved most like this accepted one, at most `count`.
    pub fn nearest(&self, a: usize, count: usize) -> Vec<usize> {
        let (read, written) = self.moved(a);
        let mut all: Vec<(i64, usize)> = self
            .of_kind(false)
            .filter(|b| alike(read, self.moved(*b).1) || alike(written, self.moved(*b).0))
            .map(|b| {
                let (r, w) = self.moved(b);
                ((read - w).abs() + (written - r).abs(), b)
            })
            .collect();
        all.sort_unstable();
        all.into_iter().take(count).map(|(_, b)| b).collect()
    }

    /// All sockets that were accepted, or all that were opened.
    pub(super) fn of_kind(&self, accepted: bool) -> impl Iterator<Item = usize> + '_ {
        let all = self.kinds.iter().enumerate();
        all.filter(move |(_, k)| k.accepted == accepted)
            .map(|(i, _)| i)
    }

    /// The highest difference between what was read here and written there;
    /// nothing if they moved too differently.
    pub(super) fn compare(&self, from: usize, to: usize) -> Option<Best> {
        let (read, written) = (self.moved(from).0, self.moved(to).1);
        if (read, written) != (0, 0) && !alike(read, written) {
            return None;
        }
        let mut best = Best {
            moved: read.max(written),
            ..Best::default()
        };
        let mut there = self.seen[to].iter().peekable();
        for (moment, here) in &self.seen[from] {
            while there.next_if(|(m, _)| m < moment).is_some() {}
            let Some((_, counts)) = there.next_if(|(m, _)| m == moment) else {
                continue;
            };
            if let (Some(read), Some(written)) = (here.read, counts.written) {
                let (at, asleep) = self.moments[*moment as usize];
                let moment = Moment {
                    at,
                    read,
                    is_highest: best.delta.is_none_or(|d| written - read >= d),
                    no_input: here.no_input,
                    has_room: counts.has_room,
                    asleep,
                };
                best.add(&moment, written - read);
            }
        }
        Some(best)
    }

    /// May what was read here have been written there, by how much it was?
    pub(super) fn alike(&self, from: usize, to: usize) -> bool {
        alike(self.moved(from).0, self.moved(to).1)
    }

    pub(super) fn kind(&self, socket: usize) -> Kind {
        self.kinds[socket]
    }

    pub(super) fn count(&self) -> usize {
        self.kinds.len()
    }
}

/// Two amounts that may be one, some of which is held back at the moment.
fn alike(x: i64, y: i64) -> bool {
    let most = x.max(y);
    x > 0 && y > 0 && (x - y).abs() <= most / 4 + (most / 2).min(64 << 10)
}

/// The highest difference between two counts, and how it was met.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Best {
    delta: Option<i64>,
    /// How much moved in all.
    moved: i64,
    /// Moments since it was first met, those at which it was, and those of
    /// them with data in between.
    common: usize,
    hits: usize,
    pub fresh: usize,
    first: (Duration, i64),
    last: (Duration, i64),
    empty: Emptiness,
    /// All moments, and those at which the sink had no room.
    seen: usize,
    full: usize,
}

impl Best {
    fn add(&mut self, moment: &Moment, delta: i64) {
        let (at, read) = (moment.at, moment.read);
        self.seen += 1;
        self.full += usize::from(!moment.has_room);
        if self.delta.is_none_or(|best| delta > best) {
            // What came before was not all: count anew.
            (self.delta, self.common, self.hits, self.fresh) = (Some(delta), 0, 0, 0);
            self.first = (at, read);
            self.empty = Emptiness::default();
        }
        self.empty.add(moment);
        self.common += 1;
        if self.delta == Some(delta) {
            self.hits += 1;
            if self.fresh == 0 || self.last.1 != read {
                self.fresh += 1;
                self.last = (at, read);
            }
        }
    }

    /// Does the sink mostly take no more? What the process holds then hides how they fit.
    pub(super) fn is_held_up(&self) -> bool {
        self.full * 2 > self.seen
    }

    /// Is this beyond doubt the likelier of two? A relay's difference is at its
    /// highest nearly always; that of sessions in step, once in a while.
    pub(super) fn far_above(&self, other: &Best) -> bool {
        let often = 2 * self.hits * other.common >= 3 * other.hits * self.common;
        self.fresh > 0 && (self.fresh >= FAR * other.fresh || often)
    }

    /// Judges the direction.
    pub(super) fn way(&self, rules: &Rules) -> Way {
        let moments = self.fresh;
        let Some(delta) = self.delta else {
            return Way::Open { moments, bytes: 0 };
        };
        let bytes = self.last.1 - self.first.1;
        let long = self.last.0.saturating_sub(self.first.0) >= rules.window;
        // One that only drifts by meets its highest once in a while too.
        let often = self.hits * RARE >= self.common;
        if moments >= rules.moments && bytes >= rules.bytes && long && often {
            return Way::Follows {
                delta,
                moments,
                bytes,
                empty: self.empty.is_shown(),
            };
        }
        // Rests at the highest difference nearly all the time.
        let rests = self.common >= rules.moments && self.hits * 2 >= self.common;
        if self.moved < rules.bytes && (self.moved == 0 || rests) {
            return Way::Quiet {
                delta,
                empty: self.empty.is_shown(),
            };
        }
        Way::Open { moments, bytes }
    }
}
