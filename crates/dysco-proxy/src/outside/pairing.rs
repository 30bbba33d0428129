//! Assignment of accepted sockets to the opened sockets that they are relayed to, by counts
//! alone.
//!
//! A process that forwards bytes has written to B the bytes that it has read from A, plus a
//! constant, less the bytes that it holds at the moment. The difference of the two counts
//! therefore has a maximum to which it returns again and again while data moves. The difference
//! of two unrelated sockets drifts, and no value of it lasts.
//!
//! The maximum is the constant only if the process was empty when it was met: see
//! [`crate::empty`].

use std::time::Duration;

use crate::empty::{Emptiness, Moment};

/// Bytes that a process has read from a socket and written to it since it was opened; `None` for
/// a count that moved at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Bytes read from the socket.
    pub read: Option<i64>,
    /// Bytes written to the socket.
    pub written: Option<i64>,
    /// True if nothing waits to be read.
    pub no_input: bool,
    /// True if the socket accepts more data.
    pub has_room: bool,
}

/// Evidence that a pair requires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Number of moments at which the counts agreed, with data in between.
    pub moments: usize,
    /// Number of bytes that passed meanwhile.
    pub bytes: i64,
    /// Minimum time between the first and the last moment.
    pub window: Duration,
}

/// Maximum number of bytes that a proxy adds to a direction itself (a header, a CONNECT). A
/// larger difference means that the socket has served other sessions before.
pub(crate) const MAX_DELTA: i64 = 16 << 10;

/// Factor by which one socket must fit more often than another to be beyond doubt.
const CLEARLY: usize = 4;
/// A relay holds nothing at one of this many moments at least. At full speed it nearly always
/// holds something.
const RARE: usize = 64;

/// Kind of a socket of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kind {
    /// True if the socket was accepted, false if it was opened.
    pub accepted: bool,
    /// Local port; for an accepted socket, the port of the listener.
    pub port: u16,
    /// Time of the socket's start, on a clock common to all sockets, if known.
    pub born: Option<u64>,
}

/// All observations of the sockets of one process.
pub struct Series {
    kinds: Vec<Kind>,
    /// Time of each moment, and whether the process slept.
    moments: Vec<(Duration, bool)>,
    seen: Vec<Vec<(u32, Counts)>>,
    /// First and last reading of each socket, as bytes read and written.
    spans: Vec<Option<[(i64, i64); 2]>>,
}

/// Relation of one direction between two sockets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// The bytes that are read from one socket are written to the other.
    Follows {
        /// The constant.
        delta: i64,
        /// Number of moments at which the constant was met, with data in between.
        moments: usize,
        /// Number of bytes that passed meanwhile.
        bytes: i64,
        /// True if the process was seen empty at these moments.
        empty: bool,
    },
    /// Few or no bytes move, and the difference is constant.
    Quiet {
        /// The difference.
        delta: i64,
        /// True if the process was seen empty at these moments.
        empty: bool,
    },
    /// The observations are not sufficient.
    Open {
        /// Number of moments at which the difference was at its maximum.
        moments: usize,
        /// Number of bytes that passed meanwhile.
        bytes: i64,
    },
    /// The sockets are unrelated.
    Apart,
}

/// Two sockets that belong together, as indices of the series.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Index of the accepted socket.
    pub a: usize,
    /// Index of the opened socket.
    pub b: usize,
    /// Bytes written to B less bytes read from A.
    pub forward: i64,
    /// Bytes written to A less bytes read from B.
    pub reverse: i64,
}

impl Series {
    /// Returns a series without observations of these sockets.
    pub fn new(kinds: Vec<Kind>) -> Series {
        Series {
            moments: Vec::new(),
            seen: vec![Vec::new(); kinds.len()],
            spans: vec![None; kinds.len()],
            kinds,
        }
    }

    /// Records a socket's counts, still or not, for the amount that moved.
    pub fn reading(&mut self, socket: usize, read: i64, written: i64) {
        let now = (read, written);
        match &mut self.spans[socket] {
            Some([_, last]) => *last = now,
            none => *none = Some([now, now]),
        }
    }

    /// Adds a moment, `at` after the start, and returns its index.
    pub fn moment(&mut self, at: Duration, asleep: bool) -> u32 {
        self.moments.push((at, asleep));
        (self.moments.len() - 1) as u32
    }

    /// Records the counts of a socket at a moment.
    pub fn still(&mut self, moment: u32, socket: usize, counts: Counts) {
        if counts.read.is_some() || counts.written.is_some() {
            self.seen[socket].push((moment, counts));
        }
    }

    /// Returns the bytes that a process read from a socket and wrote to it meanwhile.
    pub fn moved(&self, socket: usize) -> (i64, i64) {
        self.spans[socket].map_or((0, 0), |[first, last]| (last.0 - first.0, last.1 - first.1))
    }

    /// Returns the opened sockets that moved most like this accepted one, at most `count`.
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

    /// Returns all sockets that were accepted, or all that were opened.
    pub(super) fn of_kind(&self, accepted: bool) -> impl Iterator<Item = usize> + '_ {
        let all = self.kinds.iter().enumerate();
        all.filter(move |(_, k)| k.accepted == accepted)
            .map(|(i, _)| i)
    }

    /// Returns the maximum difference between the bytes written to `to` and read from `from`, or
    /// `None` if they moved too differently.
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

    /// Returns true if the amount that was read from `from` may have been written to `to`.
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

/// Returns true if two amounts may be the same, with a part held back at the moment.
fn alike(x: i64, y: i64) -> bool {
    let most = x.max(y);
    x > 0 && y > 0 && (x - y).abs() <= most / 4 + (most / 2).min(64 << 10)
}

/// The maximum difference between two counts, and the moments at which it was met.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Best {
    delta: Option<i64>,
    /// Number of bytes that moved in all.
    moved: i64,
    /// Moments since the maximum was first met, moments at which it was met, and those of the
    /// latter with data in between.
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
            // The previous maximum was not the true one, so counting restarts.
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

    /// Returns true if the sink has no room at most moments. The bytes that the process holds
    /// then hide the fit.
    pub(super) fn is_held_up(&self) -> bool {
        self.full * 2 > self.seen
    }

    /// Returns true if this fit is clearly the likelier of two. The difference of a relay is nearly
    /// always at its maximum, the difference of sessions in step only now and then.
    pub(super) fn far_above(&self, other: &Best) -> bool {
        let often = 2 * self.hits * other.common >= 3 * other.hits * self.common;
        self.fresh > 0 && (self.fresh >= CLEARLY * other.fresh || often)
    }

    /// Judges the direction.
    pub(super) fn way(&self, rules: &Rules) -> Way {
        let moments = self.fresh;
        let Some(delta) = self.delta else {
            return Way::Open { moments, bytes: 0 };
        };
        let bytes = self.last.1 - self.first.1;
        let long = self.last.0.saturating_sub(self.first.0) >= rules.window;
        // A difference that only drifts meets its maximum now and then too.
        let often = self.hits * RARE >= self.common;
        if moments >= rules.moments && bytes >= rules.bytes && long && often {
            return Way::Follows {
                delta,
                moments,
                bytes,
                empty: self.empty.is_observed(),
            };
        }
        // The difference stays at its maximum nearly all the time.
        let rests = self.common >= rules.moments && self.hits * 2 >= self.common;
        if self.moved < rules.bytes && (self.moved == 0 || rests) {
            return Way::Quiet {
                delta,
                empty: self.empty.is_observed(),
            };
        }
        Way::Open { moments, bytes }
    }
}
