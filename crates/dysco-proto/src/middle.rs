//! The middlebox's host. It asks both anchors to lock, makes the plan from their facts and its own
//! measurement, and releases its sessions last.

use std::time::Duration;

use super::command::Proxy;
use super::context::{Context, Flow, Time};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{Facts, Measurement, Message, Plan};
use super::names::{HostId, Subsession};
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
    stage: Stage,
}

/// Phase of the change, with the data that only this phase has.
#[derive(Clone, Hash, Debug)]
enum Stage {
    Measuring,
    /// The anchors lock, and the claim is proven.
    Claimed(Box<Claim>),
    Locked {
        /// The answer to the left anchor. `None` after a restart: only the former process had it.
        granted: Option<Granted>,
        /// True if the left anchor may have cut.
        switched: bool,
        /// True if the left anchor was asked and has not answered.
        asked: bool,
        /// True if the session has ended.
        gone: bool,
    },
    Closing {
        /// Attempts to close so far.
        tries: u32,
    },
    Cancelling {
        why: Reason,
    },
}

/// Facts of the session before both anchors are locked and the claim is proven.
#[derive(Clone, Hash, Debug)]
struct Claim {
    /// The measurement as it was claimed.
    measured: Measurement,
    proof: Proof,
    /// The left anchor is locked once it has requested the plan.
    left: Option<LockRequest>,
    right: Option<Facts>,
}

/// Second measurement, while the anchors lock.
#[derive(Clone, Hash, Debug)]
struct Proof {
    began: Time,
    /// True if it is too old for an anchor's facts.
    outdated: bool,
    result: Option<Measurement>,
}

/// Request of the left anchor for the plan.
#[derive(Clone, Copy, Hash, Debug)]
struct LockRequest {
    facts: Facts,
    attempt: [u8; 16],
}

/// The plan, and the request that it answers.
#[derive(Clone, Copy, Hash, Debug)]
struct Granted {
    plan: Plan,
    attempt: [u8; 16],
}

impl Middle {
    pub(crate) fn start(ctx: &mut Context, subsession: Subsession, asker: Option<HostId>) -> Self {
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
            stage: Stage::Measuring,
        }
    }

    pub(crate) fn restore(
        ctx: &mut Context,
        (a, b): (Subsession, Subsession),
        asker: Option<HostId>,
    ) -> Self {
        let mut middle = Middle::new(a, asker);
        middle.b = Some(b);
        middle.stage = Stage::Locked {
            granted: None,
            switched: false,
            asked: false,
            gone: false,
        };
        middle.ask(ctx);
        middle
    }

    pub(crate) fn subsession(&self) -> Subsession {
        self.a
    }

    pub(crate) fn left(&self) -> HostId {
        self.a.left.ip()
    }

    pub(crate) fn right(&self) -> Option<HostId> {
        self.b.map(|b| b.right.ip())
    }

    pub(crate) fn asker(&self) -> Option<HostId> {
        self.asker
    }

    pub(crate) fn phase(&self) -> Phase {
        match &self.stage {
            Stage::Measuring => Phase::Measuring,
            Stage::Claimed(claim) if claim.left.is_none() => Phase::Leaving,
            Stage::Claimed(_) => Phase::Locking,
            Stage::Locked { .. } => Phase::Locked,
            Stage::Closing { .. } => Phase::Closing,
            Stage::Cancelling { .. } => Phase::Cancelling,
        }
    }

    fn may_have_switched(&self) -> bool {
        matches!(self.stage, Stage::Locked { switched: true, .. })
    }

    /// Returns true if another change that needs this one's left end has to wait. It is answered by
    /// the outcome of this one, so that of two contenders one wins.
    pub(crate) fn parks_others(&self) -> bool {
        self.phase() < Phase::Locked
    }

    pub(crate) fn on_message(
        &mut self,
        ctx: &mut Context,
        from_right: bool,
        message: Message,
    ) -> Flow {
        match message {
            Message::Ask { .. } => {
                self.tell_asker(ctx);
                return Flow::On;
            }
            Message::RequestLock { facts, attempt, .. } => {
                return self.lock_requested(ctx, LockRequest { facts, attempt });
            }
            _ => {}
        }
        match self.stage {
            Stage::Measuring | Stage::Claimed(_) => self.anchor_says(ctx, from_right, message),
            Stage::Locked { .. } => self.on_message_locked(ctx, from_right, message),
            Stage::Cancelling { .. } => match message {
                Message::Cancel { .. } | Message::Back { .. } => {
                    let change = ctx.change;
                    ctx.say(self.left(), Message::CancelAck { change });
                    Flow::On
                }
                Message::CancelAck { .. } if from_right => self.cancelled(),
                _ => ctx.stale(),
            },
            Stage::Closing { .. } => ctx.stale(),
        }
    }

    /// Handles a message that arrives when the anchors act.
    fn on_message_locked(&mut self, ctx: &mut Context, from_right: bool, message: Message) -> Flow {
        let change = ctx.change;
        match message {
            Message::Cancel { reason, .. } if !self.may_have_switched() => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.fail(ctx, reason, true)
            }
            // The left anchor has cut, and has released the session since: its session has ended,
            // or the new path has died. The middlebox stays, and continues to relay.
            Message::Cancel { reason, .. } => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.abandoned(ctx, reason)
            }
            Message::Lost { bytes, .. } => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.abandoned(ctx, Reason::MiddleboxDied(bytes))
            }
            Message::Suspect { .. } | Message::Muted { .. } | Message::Keep { .. } => {
                self.pass_on(ctx, from_right, message)
            }
            Message::Back { round, reason, .. } => {
                ctx.say(self.left(), Message::CancelAck { change });
                self.taken_back(ctx, round, reason)
            }
            Message::Switched { .. } => self.past_the_cut(ctx),
            Message::Status { phase, .. } => self.status(ctx, phase),
            Message::Done { .. } => {
                self.stage = Stage::Closing { tries: 0 };
                self.close(ctx)
            }
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Measured { result, .. } => match (&mut self.stage, result) {
                (Stage::Measuring, Ok(m)) => self.measured_first(ctx, m),
                (Stage::Claimed(claim), Ok(m)) if claim.proof.result.is_none() => {
                    claim.proof.result = Some(m);
                    self.proven_or_granted(ctx)
                }
                (Stage::Measuring | Stage::Claimed(_), Err(reason)) => {
                    self.fail(ctx, reason, false)
                }
                _ => ctx.stale(),
            },
            HostEvent::Closed { result, .. } if self.phase() == Phase::Closing => match result {
                Ok(()) => self.removed(ctx),
                Err(reason) => {
                    ctx.trouble(reason);
                    Flow::On
                }
            },
            HostEvent::PersistFailed { error, .. } if self.phase() == Phase::Locked => {
                ctx.purge();
                // The plan was not sent, so that no host has acted on it.
                self.refuse(ctx, Reason::NoRecord(error), false)
            }
            HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        let phase = self.phase();
        match &self.stage {
            Stage::Measuring => self.fail(ctx, Reason::TimedOut(phase), false),
            Stage::Claimed(claim) => {
                let late = match (&claim.left, &claim.right, self.right()) {
                    (None, ..) => Reason::NoAgent(self.left()),
                    (Some(_), None, Some(right)) => Reason::NoAgent(right),
                    _ => Reason::TimedOut(Phase::Measuring),
                };
                self.fail(ctx, late, false)
            }
            Stage::Locked {
                gone: true,
                asked: true,
                ..
            } => self.abandoned(ctx, Reason::Closing),
            Stage::Locked { .. } => {
                self.ask(ctx);
                Flow::On
            }
            Stage::Closing { tries } if *tries < CLOSE_TRIES => self.close(ctx),
            Stage::Closing { .. } => {
                ctx.trouble(Reason::TimedOut(phase));
                self.removed(ctx)
            }
            Stage::Cancelling { .. } => self.cancelled(),
        }
    }

    fn ask(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.send_reliably(self.left(), Message::Query { change });
        self.set_asked(true);
        self.watch_gone(ctx);
    }

    fn set_asked(&mut self, now: bool) {
        if let Stage::Locked { asked, .. } = &mut self.stage {
            *asked = now;
        }
    }

    fn status(&mut self, ctx: &mut Context, phase: Phase) -> Flow {
        ctx.drop_pending();
        self.set_asked(false);
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
        if let Stage::Locked {
            switched, asked, ..
        } = &mut self.stage
        {
            // The anchors may still drain data that the kernel sends for a process that has died.
            // The left anchor is therefore asked once more before a session that has ended here is
            // given up.
            *asked = false;
            if !std::mem::replace(switched, true) {
                ctx.report(Role::Middle, self.a, Progress::Switched);
            }
        }
        self.watch_gone(ctx);
        Flow::On
    }

    fn tell_asker(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        let Some(asker) = self.asker else { return };
        let answer = match &self.stage {
            Stage::Cancelling { why } => {
                let result = Err(why.clone());
                Message::Asked { change, result }
            }
            _ => Message::Status {
                change,
                phase: self.phase(),
            },
        };
        ctx.say(asker, answer);
    }
}
