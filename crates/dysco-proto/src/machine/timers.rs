//! Timers without a clock: a scheduler advances the time. A model checker explores every order of
//! timeouts in this way.

use super::*;

/// Owner of a timer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Timer {
    /// A change that this host takes part in.
    Change(ChangeId),
    /// A change that this host has asked another host for.
    Ask(ChangeId),
}

/// The effects of passing time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Waits {
    /// Owner of the timer.
    pub timer: Timer,
    /// True if a message is repeated until it is answered.
    pub has_pending: bool,
    /// Time of the deadline, if there is one.
    pub deadline: Option<Time>,
}

impl Machine {
    /// Returns all timers that wait.
    pub fn waits(&self) -> impl Iterator<Item = Waits> + '_ {
        let of = |timer, timing: &Timing| Waits {
            timer,
            has_pending: timing.has_pending(),
            deadline: timing.deadline(),
        };
        let changes = self.changes.iter();
        let changes = changes.map(move |(c, entry)| of(Timer::Change(*c), &entry.timing));
        let asks = self.asks.iter();
        changes.chain(asks.map(move |(c, (_, timing))| of(Timer::Ask(*c), timing)))
    }

    /// Repeats the unanswered messages now. Nothing else changes.
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
