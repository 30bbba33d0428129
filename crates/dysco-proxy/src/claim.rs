//! Comparison of the claim about a direction of a pair with snapshots of its sockets and pipes.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::empty::{Emptiness, Moment};
use super::held::Held;
use super::kernel::Reading;
use super::pair::{Direction, Pair, Witness};
use super::pipes;

/// Readings of both sockets of a pair in sequence, and then of its pipes.
pub(super) struct Snapshot {
    /// Readings of A and of B.
    pub(super) ends: [Reading; 2],
    /// Bytes in the pipes, forward and reverse. Pipes are pooled, so the bytes may belong to
    /// other sessions.
    pub(super) piped: [i64; 2],
}

impl Snapshot {
    pub(super) fn take(held: &Held, pipes: [Option<&OwnedFd>; 2]) -> io::Result<Snapshot> {
        let Snapshot { ends, .. } = Snapshot::of_sockets([&held.a, &held.b])?;
        let bytes = |pipe: Option<&OwnedFd>| pipe.map_or(Ok(0), pipes::bytes);
        Ok(Snapshot {
            ends,
            piped: [bytes(pipes[0])?, bytes(pipes[1])?],
        })
    }

    /// Takes a snapshot of the sockets alone.
    pub(super) fn of_sockets([a, b]: [&OwnedFd; 2]) -> io::Result<Snapshot> {
        Ok(Snapshot {
            ends: [Reading::of(a)?, Reading::of(b)?],
            piped: [0; 2],
        })
    }

    /// Returns the end that a direction is read from, and the end that it is written to.
    pub(super) fn of(&self, from: usize) -> (&Reading, &Reading) {
        (&self.ends[from], &self.ends[1 - from])
    }
}

/// Measurement of one direction: forward, which is read from A, or reverse.
#[derive(Clone)]
pub(super) struct Way {
    pub(super) from: usize,
    pub(super) to_opened: bool,
    pub(super) claim: i64,
    pub(super) met: bool,
    /// True if nothing moved between the last two snapshots.
    still: bool,
    pub(super) seen: Option<i64>,
    /// Evidence of emptiness; present if the claim alone is no proof.
    pub(super) empty: Option<Emptiness>,
    /// True if the claim stems from moments at which the process was empty, so that only the
    /// claim itself remains to be confirmed.
    pub(super) observed: bool,
}

impl Way {
    pub(super) fn name(&self) -> &'static str {
        ["forward", "reverse"][self.from]
    }

    /// Evaluates two consecutive snapshots, if nothing moved from the one to the other. Returns
    /// the delta as an error if more was written than the claim allows, regardless of bytes that
    /// the process holds.
    pub(super) fn judge(
        &mut self,
        before: &Snapshot,
        after: &Snapshot,
        look: Look,
    ) -> Result<(), i64> {
        let (from_before, to_before) = before.of(self.from);
        let (from, to) = after.of(self.from);
        self.still = from_before.same_in(from) && to_before.same_out(to);
        if !self.still {
            return Ok(());
        }
        let delta = to.written(self.to_opened) - from.read();
        self.seen = Some(delta);
        if delta > self.claim {
            return Err(delta);
        }
        // The pipe was read between the two snapshots' readings of the sockets.
        let piped = before.piped[self.from];
        let Some(empty) = &mut self.empty else {
            self.met |= delta == self.claim || delta + piped == self.claim;
            return Ok(());
        };
        let moment = Moment {
            at: look.at,
            read: from.read(),
            is_highest: delta == self.claim,
            no_input: from.unread == 0,
            has_room: to_before.has_room && to.has_room,
            asleep: look.asleep,
        };
        empty.add(&moment);
        let again = moment.is_empty() || piped > 0 && delta + piped == self.claim;
        self.met |= empty.is_observed() || self.observed && again;
        Ok(())
    }

    /// Returns true if bytes in a pipe may account for missing ones.
    pub(super) fn counts_pipes(&self) -> bool {
        self.empty.is_none() || self.observed
    }

    /// Returns true if the last two snapshots showed the process empty, and it may not have had its
    /// turn.
    pub(super) fn needs_time(&self) -> bool {
        self.still && self.empty.is_some_and(|empty| empty.needs_time())
    }

    /// Returns true if the process has seemed empty, and nothing has moved, for at least `time`.
    pub(super) fn has_rested(&self, time: Duration) -> bool {
        self.still && self.empty.is_some_and(|empty| empty.has_rested(time))
    }

    /// Returns true if the delta is as claimed, and emptiness is required. The process may then
    /// hold data.
    pub(super) fn may_be_full(&self) -> bool {
        self.empty.is_some() && self.seen == Some(self.claim)
    }
}

/// Circumstances of two snapshots.
#[derive(Clone, Copy)]
pub(super) struct Look {
    pub(super) at: Duration,
    /// True if the process slept between the two.
    pub(super) asleep: bool,
}

/// Returns the measurements of both directions, which have not begun.
pub(super) fn ways(pair: &Pair) -> [Way; 2] {
    let way = |from, to_opened, d: &Direction| {
        let follows_each_byte = pair.witness == Witness::Shim && (d.endless || d.declared);
        Way {
            from,
            to_opened,
            claim: d.delta,
            met: false,
            still: false,
            seen: None,
            empty: (!follows_each_byte).then(Emptiness::default),
            observed: pair.witness == Witness::Counts,
        }
    };
    [
        way(0, pair.b.opened_here, &pair.forward),
        way(1, pair.a.opened_here, &pair.reverse),
    ]
}
