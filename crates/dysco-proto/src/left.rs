//! The left anchor. It alone decides. Before its cut it may take everything back. After its cut it
//! may do so only if the new path dies before both ends have drained (`path_liveness`).

use std::time::Duration;

use dysco_common::two_paths::Cutoff;

use super::command::{Anchor, Side};
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::message::{Facts, Message, Plan};
use super::names::{ChangeId, HostId, Subsession};
use super::reason::{MessageName, Phase, Reason};
use super::record::{LeftStage, RoleRecord};
use super::report::{Progress, Role};

mod after;
mod before;
mod path_liveness;

/// Time from the request to the plan. Longer than the middle waits for R.
const LOCK: Duration = Duration::from_secs(12);
const PREPARE: Duration = Duration::from_secs(5);
const SET_UP: Duration = Duration::from_secs(5);
/// Time for which a cancel is repeated. A host that misses it asks later.
const CANCEL: Duration = Duration::from_secs(30);
/// A session that has ended, and has not reported its cutoff in this time, was never cut. The data
/// that it sent before its end still reaches the server through the middlebox.
const CUT_AFTER_END: Duration = Duration::from_secs(5);
/// Two MSL after the session's end everything is removed.
pub(super) const TWO_MSL: Duration = Duration::from_secs(240);

/// Returns the message by which the left anchor reports that a change has failed.
pub(super) fn given_up(change: ChangeId, reason: Reason) -> Message {
    match reason {
        Reason::MiddleboxDied(bytes) => Message::Lost { change, bytes },
        reason => Message::Cancel { change, reason },
    }
}

#[derive(Clone, Hash, Debug)]
pub(super) struct Left {
    a: Subsession,
    /// The right anchor's session, on the other side of the middlebox.
    b: Subsession,
    /// Identifier of this request. An answer to a former process has another one.
    attempt: [u8; 16],
    stage: Stage,
    facts: Option<Facts>,
    plan: Option<Plan>,
    new: Option<Subsession>,
    /// True if the right anchor may know of the change: it must be notified of a cancel.
    set_up: bool,
    /// True once the right anchor receives on the new path.
    ready: bool,
    /// Cutoff of this host, in the numbers of the new path's wire.
    cutoff: Option<Cutoff>,
    /// True if the right anchor's cutoff is set here.
    cut_in: bool,
    drained: bool,
    right_drained: bool,
    gone: bool,
    /// Number of the last liveness check of the new path.
    round: u32,
    liveness: Liveness,
    /// True if the right anchor has stopped receiving, and this host is about to do the same.
    muting: bool,
}

/// Phase of the change, with the data that only this phase has.
#[derive(Clone, Hash, Debug)]
enum Stage {
    Locking,
    Preparing,
    SettingUp,
    Cutting,
    Switching,
    Draining,
    Completing {
        /// True if the right anchor has released the old path.
        right_done: bool,
    },
    Cancelling {
        why: Reason,
        /// True if the old path is in use again, and has not yet carried all data of the new path.
        returns: bool,
    },
}

/// Liveness of the new path, between the cut and the end of the old path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Liveness {
    /// The path is presumed alive.
    Presumed,
    /// The right anchor was asked to stop receiving on the path.
    Suspected,
    /// The path stays, dead or alive: the data that it has carried cannot be taken back.
    Committed,
}

impl Left {
    pub(crate) fn start(
        ctx: &mut Context,
        (a, b): (Subsession, Subsession),
        attempt: [u8; 16],
    ) -> Self {
        ctx.report(Role::Left, a, Progress::Requested);
        ctx.persist(RoleRecord::Asked { a, b });
        ctx.command(Anchor::Lock { subsession: a });
        ctx.deadline(LOCK);
        Left {
            attempt,
            ..Left::new(a, b)
        }
    }

    fn new(a: Subsession, b: Subsession) -> Self {
        Left {
            a,
            b,
            attempt: [0; 16],
            stage: Stage::Locking,
            facts: None,
            plan: None,
            new: None,
            set_up: false,
            ready: false,
            cutoff: None,
            cut_in: false,
            drained: false,
            right_drained: false,
            gone: false,
            round: 0,
            liveness: Liveness::Presumed,
            muting: false,
        }
    }

    /// Continues after a restart. `progress` is the plan and the stage of the change, if there was
    /// a plan.
    pub(crate) fn restore(
        ctx: &mut Context,
        (a, b): (Subsession, Subsession),
        progress: Option<(Plan, LeftStage)>,
    ) -> Self {
        let mut left = Left::new(a, b);
        left.plan = progress.map(|(plan, _)| plan);
        left.set_up = true;
        ctx.command(Anchor::Lock { subsession: a });
        let stage = progress.map_or(LeftStage::Preparing, |(_, stage)| stage);
        match stage {
            LeftStage::Preparing => {
                left.stage = Stage::SettingUp;
                left.cancel(ctx, Reason::Restarted);
            }
            LeftStage::Cut { new, round } => {
                left.round = round;
                left.prepare(ctx, new);
                left.stage = Stage::Cutting;
                ctx.no_deadline();
                // A former process may have stopped receiving on the new path.
                ctx.command(Anchor::Unmute);
                ctx.command(Anchor::Cut);
            }
            LeftStage::Completing { new } => {
                left.prepare(ctx, new);
                left.complete(ctx);
            }
            LeftStage::TakenBack { new, round } => {
                left.round = round;
                left.new = Some(new);
                let reason = Reason::NewPathSilent(left.right());
                left.go_back(ctx, new, reason);
            }
        }
        left
    }

    pub(crate) fn subsession(&self) -> Subsession {
        self.a
    }

    pub(crate) fn beyond(&self) -> Subsession {
        self.b
    }

    pub(crate) fn middle(&self) -> HostId {
        self.a.right.ip()
    }

    pub(crate) fn right(&self) -> HostId {
        self.b.right.ip()
    }

    fn neighbour(&self, right: bool) -> HostId {
        if right { self.right() } else { self.middle() }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.stage {
            Stage::Locking => Phase::Locking,
            Stage::Preparing => Phase::Preparing,
            Stage::SettingUp => Phase::SettingUp,
            Stage::Cutting => Phase::Cutting,
            Stage::Switching => Phase::Switching,
            Stage::Draining => Phase::Draining,
            Stage::Completing { .. } => Phase::Completing,
            Stage::Cancelling { .. } => Phase::Cancelling,
        }
    }

    /// Returns true if the old path is in use again, and has not yet carried all data of the new
    /// path.
    fn returns(&self) -> bool {
        matches!(self.stage, Stage::Cancelling { returns: true, .. })
    }

    fn may_cancel(&self) -> bool {
        self.phase() < Phase::Cutting
    }

    pub(crate) fn on_message(
        &mut self,
        ctx: &mut Context,
        from_right: bool,
        message: Message,
    ) -> Flow {
        match message {
            Message::AckLock { plan, attempt, .. }
                if self.phase() == Phase::Locking && attempt == self.attempt =>
            {
                self.granted(ctx, plan)
            }
            Message::NackLock { reason, .. } if self.phase() == Phase::Locking => {
                self.refused(ctx, reason)
            }
            Message::SetUpAck { new, .. } if self.may_cancel() && self.new == Some(new) => {
                self.peer_receives(ctx)
            }
            Message::SetUpNack { reason, .. } if self.may_cancel() => self.cancel(ctx, reason),
            Message::Cancel { reason, .. } if self.may_cancel() => self.cancel(ctx, reason),
            Message::Switched { cutoff, .. } if self.phase() == Phase::Switching => {
                self.right_switched(ctx, cutoff)
            }
            // This end may have been reset already, by a packet from the other anchor's host.
            Message::Broken { bytes, .. } if self.is_between() => self.break_off(ctx, bytes),
            Message::Drained { .. } if self.phase() > Phase::Cutting => {
                self.right_drained = true;
                self.maybe_complete(ctx)
            }
            Message::DoneAck { .. } if self.phase() == Phase::Completing => {
                self.acknowledged(ctx, from_right)
            }
            Message::CancelAck { .. } if self.phase() == Phase::Cancelling => {
                match ctx.drop_pending_to(self.neighbour(from_right)) {
                    true if !self.returns() => self.rolled_back(ctx),
                    _ => Flow::On,
                }
            }
            Message::Muted { round, .. } if self.phase() > Phase::Cutting => {
                self.peer_muted(ctx, round)
            }
            Message::Keep { round, .. } => self.keep(ctx, round),
            Message::Query { .. } => self.answer(ctx, from_right),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase() == Phase::Locking => {
                self.locked_here(ctx, result)
            }
            HostEvent::Reserved { result, .. } if self.phase() < Phase::SettingUp => match result {
                Ok(new) => self.reserved(ctx, new),
                Err(reason) => self.cancel(ctx, reason),
            },
            HostEvent::TwoPaths { result, .. } if self.phase() == Phase::Preparing => {
                match result {
                    Ok(()) => self.prepared(ctx),
                    Err(reason) => self.cancel(ctx, reason),
                }
            }
            HostEvent::Tried { result, .. } if self.phase() == Phase::SettingUp => match result {
                Ok([here, there]) => self.opened(ctx, here, there),
                Err(reason) => self.cancel(ctx, reason),
            },
            HostEvent::CutDone { cutoff, .. } if self.phase() == Phase::Cutting => {
                self.switched(ctx, cutoff)
            }
            HostEvent::Drained { .. } if self.cut_in && !self.drained => {
                self.drained = true;
                ctx.report(Role::Left, self.a, Progress::Drained);
                self.maybe_complete(ctx)
            }
            HostEvent::PathChecked { carries, .. } => self.path_checked(ctx, carries),
            HostEvent::Muted { muted, .. } if self.muting => self.muted(ctx, muted),
            HostEvent::TakenBack { .. } => self.taken_back(ctx),
            HostEvent::PersistFailed { error, .. } => self.no_record(ctx, error),
            HostEvent::Broken { bytes, .. } if self.may_break() => self.break_off(ctx, bytes),
            HostEvent::Broken { .. } | HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        match self.phase() {
            Phase::Locking | Phase::Preparing | Phase::SettingUp => {
                self.cancel(ctx, Reason::TimedOut(self.phase()))
            }
            Phase::Cancelling if self.returns() => self.taken_back(ctx),
            Phase::Cancelling => self.rolled_back(ctx),
            Phase::Cutting if self.gone => {
                self.stage = Stage::SettingUp;
                self.cancel(ctx, Reason::Closing)
            }
            _ if self.gone => {
                ctx.trouble(Reason::TimedOut(self.phase()));
                // The middlebox may still relay. It waits for nothing any more.
                let change = ctx.change;
                let reason = Reason::Closing;
                ctx.say(self.middle(), Message::Cancel { change, reason });
                self.removed(ctx)
            }
            _ => self.check_path(ctx),
        }
    }

    /// Returns true if the middlebox may end the session, which has not ended by itself.
    fn may_break(&self) -> bool {
        (self.phase() == Phase::Cutting || self.is_between()) && !self.gone
    }

    fn let_go(&mut self, ctx: &mut Context) {
        ctx.command(Anchor::Unlock);
        ctx.unlock(self.a);
    }

    fn answer(&mut self, ctx: &mut Context, from_right: bool) -> Flow {
        let change = ctx.change;
        let to = self.neighbour(from_right);
        let status = Message::Status {
            change,
            phase: self.phase(),
        };
        let answer = match (&self.stage, self.cutoff) {
            (Stage::Cancelling { why, .. }, _) => given_up(change, why.clone()),
            (Stage::Completing { right_done }, _) if from_right || *right_done => {
                Message::Done { change }
            }
            (Stage::Switching | Stage::Draining, Some(cutoff)) => {
                Message::Switched { change, cutoff }
            }
            _ => status,
        };
        ctx.say(to, answer);
        Flow::On
    }

    fn persist(&self, ctx: &mut Context, stage: LeftStage) {
        if let Some(plan) = self.plan {
            let a = self.a;
            ctx.persist(RoleRecord::Left { a, plan, stage });
        }
    }
}
