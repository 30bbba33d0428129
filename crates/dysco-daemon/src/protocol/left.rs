//! The left anchor. It alone decides: before its cut it may take everything
//! back, after it nobody may.

use std::time::Duration;

use super::command::{Command, HostEvent, Progress, Role, Side};
use super::context::{Context, Flow};
use super::message::{Facts, HostId, Message, Plan, Subsession};
use super::reason::{MessageName, Phase, Reason};
use super::record::{LeftStage, RoleRecord};

/// From the request to the plan: longer than the middle's patience with R.
const LOCK: Duration = Duration::from_secs(12);
const PREPARE: Duration = Duration::from_secs(5);
const SET_UP: Duration = Duration::from_secs(5);
/// How long a cancel is repeated; who misses it will ask.
const CANCEL: Duration = Duration::from_secs(30);
/// A session that is gone and has not told its cutoff by then was never cut:
/// what it sent before it went still reaches the server through the middlebox.
const CUT_OF_GONE: Duration = Duration::from_secs(5);
/// Two MSL after the session's end nothing is kept.
pub(super) const GONE: Duration = Duration::from_secs(240);

#[derive(Debug)]
pub(super) struct Left {
    a: Subsession,
    middle: HostId,
    phase: Phase,
    facts: Option<Facts>,
    plan: Option<Plan>,
    new: Option<Subsession>,
    /// SetUp has been said: the right anchor must hear of a cancel.
    introduced: bool,
    /// Own cutoff, as the wire of the new path numbers it.
    cutoff: Option<u32>,
    /// The right anchor's is set here.
    cut_in: bool,
    drained: bool,
    right_drained: bool,
    right_done: bool,
    gone: bool,
    why: Option<Reason>,
}

impl Left {
    pub fn start(ctx: &mut Context, a: Subsession) -> Self {
        ctx.report(Role::Left, a, Progress::Requested);
        ctx.command(Command::Lock {
            change: ctx.change,
            subsession: a,
        });
        ctx.deadline(LOCK);
        Left::new(a)
    }

    fn new(a: Subsession) -> Self {
        Left {
            a,
            middle: a.right.ip(),
            phase: Phase::Locking,
            facts: None,
            plan: None,
            new: None,
            introduced: false,
            cutoff: None,
            cut_in: false,
            drained: false,
            right_drained: false,
            right_done: false,
            gone: false,
            why: None,
        }
    }

    pub fn restore(ctx: &mut Context, a: Subsession, plan: Plan, stage: LeftStage) -> Self {
        let mut left = Left::new(a);
        left.plan = Some(plan);
        left.introduced = true;
        let change = ctx.change;
        ctx.command(Command::Lock {
            change,
            subsession: a,
        });
        let (LeftStage::Cut { new } | LeftStage::Completing { new }) = stage else {
            left.phase = Phase::SettingUp;
            left.cancel(ctx, Reason::Restarted);
            return left;
        };
        left.prepare(ctx, new);
        if stage == (LeftStage::Cut { new }) {
            left.phase = Phase::Cutting;
            ctx.no_deadline();
            ctx.command(Command::Cut { change });
        } else {
            left.complete(ctx);
        }
        left
    }

    pub fn subsession(&self) -> Subsession {
        self.a
    }

    pub fn middle(&self) -> HostId {
        self.middle
    }

    pub fn right(&self) -> Option<HostId> {
        self.plan.map(|p| p.right)
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    fn may_cancel(&self) -> bool {
        self.phase < Phase::Cutting
    }

    pub fn on_message(&mut self, ctx: &mut Context, from_right: bool, message: Message) -> Flow {
        match message {
            Message::AckLock { plan, .. } if self.phase == Phase::Locking => {
                self.granted(ctx, plan)
            }
            Message::NackLock { reason, .. } if self.phase == Phase::Locking => {
                self.refused(ctx, reason)
            }
            Message::SetUpAck { .. } if self.phase == Phase::SettingUp => self.cut(ctx),
            Message::SetUpNack { reason, .. } if self.phase == Phase::SettingUp => {
                self.cancel(ctx, reason)
            }
            Message::Cancel { reason, .. } if self.may_cancel() => self.cancel(ctx, reason),
            Message::Switched { cutoff, .. } if self.phase == Phase::Switching => {
                self.right_switched(ctx, cutoff)
            }
            Message::Drained { .. } if self.phase > Phase::Cutting => {
                self.right_drained = true;
                self.maybe_complete(ctx)
            }
            Message::DoneAck { .. } if self.phase == Phase::Completing => {
                self.acknowledged(ctx, from_right)
            }
            Message::CancelAck { .. } if self.phase == Phase::Cancelling => {
                let from = if from_right { self.right() } else { None };
                match ctx.hush_to(from.unwrap_or(self.middle)) {
                    true => self.rolled_back(),
                    false => Flow::On,
                }
            }
            Message::Query { .. } => self.answer(ctx, from_right),
            _ => ctx.stale(),
        }
    }

    pub fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase == Phase::Locking => {
                self.locked_here(ctx, result)
            }
            HostEvent::Reserved { result, .. } if self.phase == Phase::Preparing => match result {
                Ok(new) => self.prepare(ctx, new),
                Err(reason) => self.cancel(ctx, reason),
            },
            HostEvent::Prepared { result, .. } if self.phase == Phase::Preparing => match result {
                Ok(()) => self.set_up(ctx),
                Err(reason) => self.cancel(ctx, reason),
            },
            HostEvent::CutDone { cutoff, .. } if self.phase == Phase::Cutting => {
                self.switched(ctx, cutoff)
            }
            HostEvent::Drained { .. } if self.cut_in && !self.drained => {
                self.drained = true;
                ctx.report(Role::Left, self.a, Progress::Drained);
                self.maybe_complete(ctx)
            }
            HostEvent::PersistFailed { error, .. } => self.no_record(ctx, error),
            HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    pub fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        match self.phase {
            Phase::Locking | Phase::Preparing | Phase::SettingUp => {
                self.cancel(ctx, Reason::TimedOut(self.phase))
            }
            Phase::Cancelling => self.rolled_back(),
            Phase::Cutting if self.gone => {
                self.phase = Phase::SettingUp;
                self.cancel(ctx, Reason::Closing)
            }
            _ if self.gone => {
                ctx.trouble(Reason::TimedOut(self.phase));
                self.removed(ctx)
            }
            _ => Flow::On,
        }
    }

    fn locked_here(&mut self, ctx: &mut Context, result: Result<Facts, Reason>) -> Flow {
        match result {
            Ok(facts) if self.facts.is_none() => {
                self.facts = Some(facts);
                let message = Message::RequestLock {
                    change: ctx.change,
                    subsession: self.a,
                    left: self.a.left.ip(),
                    left_facts: facts,
                };
                ctx.insist(self.middle, message);
                Flow::On
            }
            Ok(_) => ctx.stale(),
            Err(reason) => {
                let change = ctx.change;
                let nack = reason.clone();
                ctx.say(
                    self.middle,
                    Message::NackLock {
                        change,
                        reason: nack,
                    },
                );
                self.refused(ctx, reason)
            }
        }
    }

    fn refused(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        self.let_go(ctx);
        ctx.report(Role::Left, self.a, Progress::Refused(reason.clone()));
        Flow::End(Err(reason))
    }

    fn granted(&mut self, ctx: &mut Context, plan: Plan) -> Flow {
        ctx.hush();
        // A lock that this host has not taken itself cannot be granted, and the
        // right anchor is where the plan's subsession ends.
        if self.facts.is_none() || plan.right != plan.subsession.right.ip() {
            return self.cancel(ctx, Reason::Inconsistent(MessageName::AckLock));
        }
        self.plan = Some(plan);
        self.phase = Phase::Preparing;
        ctx.report(Role::Left, self.a, Progress::Locked);
        self.persist(ctx, LeftStage::Preparing);
        ctx.command(Command::Reserve {
            change: ctx.change,
            subsession_a: self.a,
            subsession_b: plan.subsession,
        });
        ctx.deadline(PREPARE);
        Flow::On
    }

    fn prepare(&mut self, ctx: &mut Context, new: Subsession) -> Flow {
        self.new = Some(new);
        ctx.command(Command::Prepare {
            change: ctx.change,
            side: Side::Left,
            own: self.a,
            new,
            translation: self.plan.map(|p| p.translation).unwrap_or_default(),
        });
        Flow::On
    }

    fn set_up(&mut self, ctx: &mut Context) -> Flow {
        let (Some(plan), Some(new)) = (self.plan, self.new) else {
            return ctx.stale();
        };
        self.phase = Phase::SettingUp;
        self.introduced = true;
        ctx.deadline(SET_UP);
        let message = Message::SetUp {
            change: ctx.change,
            subsession: plan.subsession,
            new,
        };
        ctx.insist(plan.right, message);
        Flow::On
    }

    /// No way back from here.
    fn cut(&mut self, ctx: &mut Context) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        ctx.hush();
        ctx.no_deadline();
        self.phase = Phase::Cutting;
        ctx.report(Role::Left, self.a, Progress::SetUp);
        self.persist(ctx, LeftStage::Cut { new });
        ctx.command(Command::Cut { change: ctx.change });
        Flow::On
    }

    fn switched(&mut self, ctx: &mut Context, cutoff: u32) -> Flow {
        let Some(plan) = self.plan else {
            return ctx.stale();
        };
        let cutoff = cutoff.wrapping_add(plan.translation.seq_out);
        self.cutoff = Some(cutoff);
        self.phase = Phase::Switching;
        ctx.report(Role::Left, self.a, Progress::Switched);
        let change = ctx.change;
        ctx.insist(plan.right, Message::Switched { change, cutoff });
        ctx.say(self.middle, Message::Switched { change, cutoff });
        self.watch_gone(ctx);
        Flow::On
    }

    fn right_switched(&mut self, ctx: &mut Context, cutoff: u32) -> Flow {
        let Some(plan) = self.plan else {
            return ctx.stale();
        };
        ctx.hush();
        self.cut_in = true;
        self.phase = Phase::Draining;
        ctx.command(Command::SetCutIn {
            change: ctx.change,
            cutoff: cutoff.wrapping_add(plan.translation.seq_in),
        });
        self.maybe_complete(ctx)
    }

    fn maybe_complete(&mut self, ctx: &mut Context) -> Flow {
        let drained = self.drained || self.gone;
        let settled =
            self.phase == Phase::Draining || (self.phase == Phase::Switching && self.gone);
        if drained && self.right_drained && settled {
            return self.complete(ctx);
        }
        Flow::On
    }

    fn complete(&mut self, ctx: &mut Context) -> Flow {
        let (Some(plan), Some(new)) = (self.plan, self.new) else {
            return ctx.stale();
        };
        self.phase = Phase::Completing;
        ctx.hush();
        self.persist(ctx, LeftStage::Completing { new });
        let change = ctx.change;
        ctx.command(Command::Complete { change });
        ctx.insist(plan.right, Message::Done { change });
        self.watch_gone(ctx);
        Flow::On
    }

    /// The middle goes last: while the right anchor is in two paths its end may
    /// still repeat something that only the middlebox can acknowledge.
    fn acknowledged(&mut self, ctx: &mut Context, from_right: bool) -> Flow {
        let change = ctx.change;
        match (self.right_done, from_right) {
            (false, true) => {
                self.right_done = true;
                ctx.hush();
                ctx.insist(self.middle, Message::Done { change });
                Flow::On
            }
            (true, false) => self.removed(ctx),
            _ => ctx.stale(),
        }
    }

    fn removed(&mut self, ctx: &mut Context) -> Flow {
        ctx.command(Command::Erase { change: ctx.change });
        self.let_go(ctx);
        ctx.report(Role::Left, self.a, Progress::Removed);
        Flow::End(Ok(()))
    }

    /// Takes everything back here and tells the others. Only before the cut.
    pub fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if !self.may_cancel() {
            return ctx.stale();
        }
        let change = ctx.change;
        let prepared = self.plan.is_some();
        if prepared {
            ctx.command(Command::Unprepare { change });
            ctx.command(Command::Release { change });
            ctx.command(Command::Erase { change });
        }
        self.let_go(ctx);
        ctx.hush();
        self.phase = Phase::Cancelling;
        self.why = Some(reason.clone());
        let end = match prepared {
            true => Progress::RolledBack(reason.clone()),
            false => Progress::Refused(reason.clone()),
        };
        ctx.report(Role::Left, self.a, end);
        let message = Message::Cancel { change, reason };
        if let (true, Some(right)) = (self.introduced, self.right()) {
            ctx.insist(right, message.clone());
        }
        ctx.insist(self.middle, message);
        ctx.deadline(CANCEL);
        Flow::On
    }

    fn rolled_back(&self) -> Flow {
        Flow::End(Err(self.why.clone().unwrap_or(Reason::Cancelled)))
    }

    fn let_go(&mut self, ctx: &mut Context) {
        ctx.command(Command::Unlock {
            change: ctx.change,
            subsession: self.a,
        });
        ctx.unlock(self.a);
    }

    fn answer(&mut self, ctx: &mut Context, from_right: bool) -> Flow {
        let change = ctx.change;
        let to = match (from_right, self.right()) {
            (true, Some(right)) => right,
            _ => self.middle,
        };
        let status = Message::Status {
            change,
            phase: self.phase,
        };
        let answer = match (self.phase, self.cutoff) {
            (Phase::Cancelling, _) => Message::Cancel {
                change,
                reason: self.why.clone().unwrap_or(Reason::Cancelled),
            },
            (Phase::Completing, _) if from_right || self.right_done => Message::Done { change },
            (Phase::Switching | Phase::Draining, Some(cutoff)) => {
                Message::Switched { change, cutoff }
            }
            _ => status,
        };
        ctx.say(to, answer);
        Flow::On
    }

    fn no_record(&mut self, ctx: &mut Context, error: String) -> Flow {
        match self.phase {
            Phase::Preparing => {}
            // The cut was ordered behind the record: it has not been made.
            Phase::Cutting => self.phase = Phase::SettingUp,
            _ => {
                ctx.trouble(Reason::NoRecord(error));
                return Flow::On;
            }
        }
        ctx.purge();
        self.cancel(ctx, Reason::NoRecord(error))
    }

    fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        if self.may_cancel() {
            return self.cancel(ctx, Reason::Closing);
        }
        self.gone = true;
        self.watch_gone(ctx);
        if self.phase == Phase::Cutting {
            ctx.deadline(CUT_OF_GONE);
        }
        self.maybe_complete(ctx)
    }

    fn watch_gone(&self, ctx: &mut Context) {
        if self.gone {
            ctx.deadline(GONE);
        }
    }

    fn persist(&self, ctx: &mut Context, stage: LeftStage) {
        if let Some(plan) = self.plan {
            let a = self.a;
            ctx.persist(RoleRecord::Left { a, plan, stage });
        }
    }
}
