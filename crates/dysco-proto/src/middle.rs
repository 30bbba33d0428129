//! The middlebox's host. It asks both anchors to lock, makes the plan from their facts and its own
//! measurement, and releases its sessions last.

use std::time::Duration;

use super::command::Proxy;
use super::context::{Context, Flow, Time};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{ChangeId, Facts, HostId, Measurement, Message, Plan, Subsession};
use super::plan;
use super::reason::{Phase, Reason};
use super::record::RoleRecord;
use super::report::{Progress, Role};
use super::right::{self, SILENCE};

mod end;
mod lock;

pub(super) use lock::steady;

pub(super) const MEASURE: Duration = Duration::from_secs(5);
/// Time by which the anchors' facts may be younger than the proof: less than [`plan::TS_LEAD`].
const FRESH: Duration = Duration::from_millis(10);
const LEAVE: Duration = Duration::from_secs(10);
const LOCK: Duration = Duration::from_secs(5);
/// Time without a message after the cut until the left anchor is asked.
const STILL: Duration = Duration::from_secs(60);
/// Time for which a cancel is repeated: the right anchor's lock has then expired.
const CANCEL: Duration = right::LOCK;
pub(super) const CLOSE: Duration = Duration::from_secs(2);
/// Number of attempts to close.
pub(super) const CLOSE_TRIES: u32 = 5;

#[derive(Clone, Hash, Debug)]
pub(super) struct Middle {
    /// Session A. Until it is measured, the session that the request named.
    a: Subsession,
    b: Option<Subsession>,
    asker: Option<HostId>,
    phase: Phase,
    /// The measurement as it was claimed.
    measured: Option<Measurement>,
    /// The measurement as it was proven while the anchors locked.
    proven: Option<Box<Measurement>>,
    /// Time at which the proof began.
    proof_began: Time,
    /// True if the proof is too old for an anchor's facts.
    outdated: bool,
    left_facts: Option<Facts>,
    right_facts: Option<Facts>,
    /// Identifier of the left anchor's current request.
    attempt: [u8; 16],
    plan: Option<Plan>,
    /// True if the left anchor may have cut.
    switched: bool,
    asked: bool,
    gone: bool,
    closes: u32,
    why: Option<Reason>,
}

impl Middle {
    pub fn start(ctx: &mut Context, subsession: Subsession, asker: Option<HostId>) -> Self {
        ctx.report(Role::Middle, subsession, Progress::Requested);
        let middle = Middle::new(subsession, asker);
        middle.measure(ctx);
        middle
    }

    fn new(a: Subsession, asker: Option<HostId>) -> Self {
        Middle {
            a,
            b: None,
            asker,
            phase: Phase::Measuring,
            measured: None,
            proven: None,
            proof_began: Time::ZERO,
            outdated: false,
            left_facts: None,
            right_facts: None,
            attempt: [0; 16],
            plan: None,
            switched: false,
            asked: false,
            gone: false,
            closes: 0,
            why: None,
        }
    }

    pub fn restore(
        ctx: &mut Context,
        (a, b): (Subsession, Subsession),
        asker: Option<HostId>,
    ) -> Self {
        let mut middle = Middle::new(a, asker);
        middle.b = Some(b);
        middle.phase = Phase::Locked;
        middle.ask(ctx);
        middle
    }

    pub fn subsession(&self) -> Subsession {
        self.a
    }

    pub fn left(&self) -> HostId {
        self.a.left.ip()
    }

    pub fn right(&self) -> Option<HostId> {
        self.b.map(|b| b.right.ip())
    }

    pub fn asker(&self) -> Option<HostId> {
        self.asker
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns true if another change that needs this one's left end has to wait. It is answered by
    /// the outcome of this one, so that of two contenders one wins.
    pub fn parks_others(&self) -> bool {
        self.phase < Phase::Locked
    }

    pub fn on_message(&mut self, ctx: &mut Context, from_right: bool, message: Message) -> Flow {
        let change = ctx.change;
        match message {
            Message::Ask { .. } => {
                self.tell_asker(ctx);
                Flow::On
            }
            Message::RequestLock { facts, attempt, .. } => self.lock_requested(ctx, facts, attempt),
            Message::Introduced { facts, .. }
                if matches!(self.phase, Phase::Leaving | Phase::Locking) =>
            {
                self.introduced(ctx, facts)
            }
            Message::NackLock { reason, .. }
                if matches!(self.phase, Phase::Leaving | Phase::Locking) =>
            {
                self.fail(ctx, reason, !from_right)
            }
            Message::Cancel { reason, .. } if self.phase <= Phase::Locked && !self.switched => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.fail(ctx, reason, true)
            }
            // The left anchor has cut, and has released the session since: its session has ended,
            // or the new path has died. The middlebox stays, and continues to relay.
            Message::Cancel { reason, .. } if self.phase == Phase::Locked => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.abandoned(ctx, reason)
            }
            Message::Lost { bytes, .. } if self.phase == Phase::Locked => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.abandoned(ctx, Reason::MiddleboxDied(bytes))
            }
            Message::Cancel { .. } | Message::Back { .. } if self.phase == Phase::Cancelling => {
                ctx.say(self.left(), Message::CancelAck { change });
                Flow::On
            }
            Message::Suspect { .. } | Message::Muted { .. } | Message::Keep { .. }
                if self.phase == Phase::Locked =>
            {
                self.pass_on(ctx, from_right, message)
            }
            Message::Back { round, reason, .. } if self.phase == Phase::Locked => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.taken_back(ctx, round, reason)
            }
            Message::CancelAck { .. } if from_right && self.phase == Phase::Cancelling => {
                self.cancelled()
            }
            Message::Switched { .. } if self.phase == Phase::Locked => self.past_the_cut(ctx),
            Message::Status { phase, .. } if self.phase == Phase::Locked => self.status(ctx, phase),
            Message::Done { .. } if self.phase == Phase::Locked => {
                self.phase = Phase::Closing;
                self.close(ctx)
            }
            _ => ctx.stale(),
        }
    }

    pub fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Measured { result, .. } => match (self.phase, result) {
                (Phase::Measuring, Ok(m)) => self.measured_first(ctx, m),
                (Phase::Leaving | Phase::Locking, Ok(m)) if self.proven.is_none() => {
                    self.proven = Some(Box::new(m));
                    self.proven_or_granted(ctx)
                }
                (Phase::Measuring | Phase::Leaving | Phase::Locking, Err(reason)) => {
                    self.fail(ctx, reason, false)
                }
                _ => ctx.stale(),
            },
            HostEvent::Closed { result, .. } if self.phase == Phase::Closing => match result {
                Ok(()) => self.removed(ctx),
                Err(reason) => {
                    ctx.trouble(reason);
                    Flow::On
                }
            },
            HostEvent::PersistFailed { error, .. } if self.phase == Phase::Locked => {
                ctx.purge();
                // The plan was not sent, so that no host has acted on it.
                self.phase = Phase::Locking;
                self.fail(ctx, Reason::NoRecord(error), false)
            }
            HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    pub fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        match self.phase {
            Phase::Measuring => self.fail(ctx, Reason::TimedOut(self.phase), false),
            Phase::Leaving => self.fail(ctx, Reason::NoAgent(self.left()), false),
            Phase::Locking => {
                let late = match (self.right_facts, self.right()) {
                    (None, Some(right)) => Reason::NoAgent(right),
                    _ => Reason::TimedOut(Phase::Measuring),
                };
                self.fail(ctx, late, false)
            }
            Phase::Locked if self.gone && self.asked => self.abandoned(ctx, Reason::Closing),
            Phase::Locked => {
                self.ask(ctx);
                Flow::On
            }
            Phase::Closing if self.closes < CLOSE_TRIES => self.close(ctx),
            Phase::Closing => {
                ctx.trouble(Reason::TimedOut(self.phase));
                self.removed(ctx)
            }
            _ => self.cancelled(),
        }
    }

    fn ask(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.send_reliably(self.left(), Message::Query { change });
        self.asked = true;
        self.watch_gone(ctx);
    }

    fn status(&mut self, ctx: &mut Context, phase: Phase) -> Flow {
        ctx.drop_pending();
        self.asked = false;
        if phase >= Phase::Cutting {
            return self.past_the_cut(ctx);
        }
        ctx.deadline(SILENCE);
        Flow::On
    }

    /// Waits for `Done` while the middlebox relays the rest. The left anchor repeats `Done` until
    /// it is answered. If its session ends, or takes the old path again, it reports that instead,
    /// for a limited time.
    fn past_the_cut(&mut self, ctx: &mut Context) -> Flow {
        ctx.drop_pending();
        ctx.deadline(STILL);
        if !self.switched {
            self.switched = true;
            ctx.report(Role::Middle, self.a, Progress::Switched);
        }
        // The anchors may still drain data that the kernel sends for a process that has died. The
        // left anchor is therefore asked once more before a session that has ended here is given
        // up.
        self.asked = false;
        self.watch_gone(ctx);
        Flow::On
    }

    fn tell_asker(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        let Some(asker) = self.asker else { return };
        let answer = match (self.phase, &self.why) {
            (Phase::Cancelling, Some(reason)) => Message::Asked {
                change,
                result: Err(reason.clone()),
            },
            (phase, _) => Message::Status { change, phase },
        };
        ctx.say(asker, answer);
    }
}
