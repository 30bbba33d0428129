//! Timers by hand: time passes where a scheduler without a clock says so. A
//! model checker explores every order of time-outs in this way.

use super::*;

/// What a timer belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timer {
    /// A change that this host has a part in.
    Change(ChangeId),
    /// A change that this host asked another for.
    Ask(ChangeId),
}

/// What passing time would do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Waits {
    /// Whose timer it is.
    pub timer: Timer,
    /// Something is said again until it is answered.
    pub insists: bool,
    /// When its patience ends, if it does.
    pub deadline: Option<Time>,
}

impl Machine {
    /// All that waits for time to pass.
    pub fn waits(&self) -> impl Iterator<Item = Waits> + '_ {
        let of = |timer, timing: &Timing| Waits {
            timer,
            insists: timing.insists(),
            deadline: timing.deadline(),
        };
        let changes = self.changes.iter();
        let changes = changes.map(move |(c, entry)| of(Timer::Change(*c), &entry.timing));
        let asks = self.asks.iter();
        changes.chain(asks.map(move |(c, (_, timing))| of(Timer::Ask(*c), timing)))
    }

    /// Says again now what is insisted on; nothing else changes.
    pub fn repeat(&mut self, now: Time, timer: Timer) {
        match timer {
            Timer::Change(change) => self.with(now, change, |_, ctx| {
                ctx.repeat();
                Flow::On
            }),
            Timer::Ask(change) => self.with_ask(now, change, |_, ctx| {
                ctx.repeat();
                Flow::On
            }),
        }
    }

    /// Behaves as if the deadline had passed now.
    pub fn expire(&mut self, now: Time, timer: Timer) {
        match timer {
            Timer::Change(change) => self.with(now, change, |part, ctx| {
                ctx.no_deadline();
                part.on_deadline(ctx)
            }),
            Timer::Ask(change) => self.with_ask(now, change, |ask, ctx| {
                ctx.no_deadline();
                ask.on_deadline(ctx)
            }),
        }
    }
}
