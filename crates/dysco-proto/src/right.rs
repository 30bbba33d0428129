//! The right anchor. Once prepared it decides nothing. The left anchor knows the state of the
//! change, and is asked if it is silent.

use std::time::Duration;

use dysco_common::two_paths::Cutoff;

use super::command::Anchor;
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{Facts, Message};
use super::names::{HostId, Subsession};
use super::reason::{Phase, Reason};
use super::record::{RightStage, RoleRecord};
use super::report::{Progress, Role};

mod end;
mod path_liveness;
mod set_up;
mod stage;

use end::SessionState;
use path_liveness::Reception;
use stage::{CutOver, SetUp, Stage};

/// Time after which an unused lock is released. Mostly longer than the middle waits for the left
/// anchor, and then for its own sockets.
pub(super) const LOCK: Duration = Duration::from_secs(20);
/// Time of silence after which the left anchor is asked.
pub(super) const SILENCE: Duration = Duration::from_secs(3);
/// Time after which a session that has ended will not be cut any more.
const CUT_AFTER_END: Duration = Duration::from_secs(5);

#[derive(Clone, Hash, Debug)]
pub(super) struct Right {
    b: Subsession,
    middle: HostId,
    left: HostId,
    session_state: SessionState,
    stage: Stage,
}

impl Right {
    pub(crate) fn start(ctx: &mut Context, b: Subsession, left: HostId) -> Self {
        ctx.report(Role::Right, b, Progress::Requested);
        ctx.command(Anchor::Lock { subsession: b });
        ctx.deadline(LOCK);
        Right::new(b, left)
    }

    fn new(b: Subsession, left: HostId) -> Self {
        Right {
            b,
            middle: b.left.ip(),
            left,
            session_state: SessionState::Open,
            stage: Stage::Locking,
        }
    }

    pub(crate) fn restore(
        ctx: &mut Context,
        b: Subsession,
        left: HostId,
        new: Subsession,
        stage: RightStage,
    ) -> Self {
        let mut right = Right::new(b, left);
        ctx.command(Anchor::Lock { subsession: b });
        if let RightStage::Muted { round, cutoff } = stage {
            right.restore_muted(ctx, new, round, cutoff);
            return right;
        }
        right.prepare(ctx, new, None);
        // A former process may have stopped receiving on the new path.
        ctx.command(Anchor::Unmute);
        if let RightStage::Switched { cutoff } = stage {
            right.cut(ctx, new, cutoff);
        }
        right
    }

    pub(crate) fn subsession(&self) -> Subsession {
        self.b
    }

    pub(crate) fn middle(&self) -> HostId {
        self.middle
    }

    pub(crate) fn left(&self) -> HostId {
        self.left
    }

    pub(crate) fn on_message(
        &mut self,
        ctx: &mut Context,
        from_left: bool,
        message: Message,
    ) -> Flow {
        match message {
            Message::Introduce { .. } => self.introduced(ctx),
            Message::SetUp { new, .. } => match &self.stage {
                Stage::Locked { facts } => {
                    let facts = Some(*facts);
                    self.persist(ctx, new, RightStage::Prepared);
                    self.prepare(ctx, new, facts)
                }
                Stage::SettingUp(path) => {
                    self.say_set_up(ctx, path);
                    Flow::On
                }
                _ => ctx.stale(),
            },
            Message::Suspect { round, .. } if self.is_between() => self.suspected(ctx, round),
            Message::Keep { round, .. } => self.keep(ctx, round),
            Message::Lost { .. } | Message::Cancel { .. } | Message::Back { .. } => {
                self.given_up(ctx, from_left, message)
            }
            Message::Switched { cutoff, .. } => self.left_switched(ctx, cutoff),
            Message::Status { .. } if from_left => match &mut self.stage {
                Stage::SettingUp(path) => {
                    ctx.drop_pending();
                    ctx.deadline(SILENCE);
                    path.asked = false;
                    Flow::On
                }
                _ => ctx.stale(),
            },
            Message::Done { .. } => match self.stage {
                Stage::Locking | Stage::Locked { .. } | Stage::Cancelling { .. } => ctx.stale(),
                _ => self.complete(ctx),
            },
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase() == Phase::Locking => match result {
                Ok(facts) => {
                    self.stage = Stage::Locked { facts };
                    ctx.report(Role::Right, self.b, Progress::Locked);
                    self.introduced(ctx)
                }
                Err(reason) => self.refuse(ctx, reason),
            },
            HostEvent::TwoPaths { result, .. } => self.path_prepared(ctx, result),
            HostEvent::CutDone { cutoff, .. } => match &self.stage {
                Stage::Cutting(path) => {
                    let cutoff = Some(cutoff);
                    self.settle(
                        ctx,
                        CutOver {
                            cutoff,
                            ..path.clone()
                        },
                    )
                }
                _ => ctx.stale(),
            },
            HostEvent::Drained { .. } => self.drained(ctx),
            HostEvent::Muted { muted, .. } => self.muted(ctx, muted),
            HostEvent::TakenBack { .. } => match &self.stage {
                Stage::Cancelling { why, .. } => self.taken_back(ctx, why.clone()),
                _ => ctx.stale(),
            },
            HostEvent::PersistFailed { error, .. } => self.no_record(ctx, error),
            HostEvent::Broken { bytes, .. } => self.was_broken(ctx, bytes),
            HostEvent::Tried {
                result: Err(reason),
                ..
            } if self.phase() == Phase::SettingUp => {
                // A hint: the left anchor cancels, unless it has cut.
                let change = ctx.change;
                ctx.say(self.left, Message::SetUpNack { change, reason });
                Flow::On
            }
            HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        let (phase, gone) = (self.phase(), self.is_gone());
        match &mut self.stage {
            Stage::Cancelling { why, .. } => {
                let why = why.clone();
                self.taken_back(ctx, why)
            }
            Stage::Locking | Stage::Locked { .. } => self.roll_back(ctx, Reason::TimedOut(phase)),
            Stage::Preparing { asked: true, .. } | Stage::SettingUp(SetUp { asked: true, .. })
                if gone =>
            {
                self.roll_back(ctx, Reason::Closing)
            }
            Stage::SettingUp(path) if path.reception.is_muted() => Flow::On,
            Stage::Preparing { asked, .. } | Stage::SettingUp(SetUp { asked, .. }) => {
                *asked = true;
                let change = ctx.change;
                ctx.send_reliably(self.left, Message::Query { change });
                self.watch_gone(ctx);
                Flow::On
            }
            Stage::Cutting(path) if gone => {
                let path = path.clone();
                self.settle(ctx, path)
            }
            Stage::Draining(_) if gone => {
                ctx.trouble(Reason::TimedOut(phase));
                self.complete(ctx)
            }
            Stage::Cutting(_) | Stage::Draining(_) => Flow::On,
        }
    }

    fn path_prepared(&mut self, ctx: &mut Context, result: Result<(), Reason>) -> Flow {
        let Stage::Preparing { new, facts, asked } = self.stage else {
            return ctx.stale();
        };
        let unprepared = match result {
            Ok(()) => None,
            // A former process may have prepared the path, and the left anchor may have cut.
            Err(reason) if facts.is_none() => Some(reason),
            Err(reason) => return self.fail(ctx, reason),
        };
        let path = SetUp {
            new,
            facts,
            unprepared,
            asked,
            reception: Reception::Receives,
            cut_in: None,
        };
        match &path.unprepared {
            None => self.prepared(ctx, &path),
            Some(reason) => ctx.trouble(reason.clone()),
        }
        self.stage = Stage::SettingUp(path);
        Flow::On
    }

    /// Handles the cutoff of the left anchor.
    fn left_switched(&mut self, ctx: &mut Context, to: Cutoff) -> Flow {
        match &mut self.stage {
            // Applied once this host receives on the path again.
            Stage::SettingUp(path) if path.reception.is_muted() => path.cut_in = Some(to),
            Stage::Cutting(path) | Stage::Draining(path) if path.reception.is_muted() => {
                path.cut_in = to;
            }
            Stage::SettingUp(path) => {
                let new = path.new;
                self.persist(ctx, new, RightStage::Switched { cutoff: to });
                return self.cut(ctx, new, to);
            }
            Stage::Draining(path) => path.say_switched(ctx, self.left),
            _ => return ctx.stale(),
        }
        Flow::On
    }

    fn drained(&mut self, ctx: &mut Context) -> Flow {
        match &mut self.stage {
            Stage::Cutting(CutOver { drained, .. })
            | Stage::Draining(CutOver { drained, .. })
            | Stage::Cancelling { drained, .. }
                if !*drained =>
            {
                *drained = true;
            }
            _ => return ctx.stale(),
        }
        ctx.report(Role::Right, self.b, Progress::Drained);
        self.say_drained(ctx);
        Flow::On
    }

    fn is_gone(&self) -> bool {
        self.session_state != SessionState::Open
    }

    fn cut(&mut self, ctx: &mut Context, new: Subsession, cutoff: Cutoff) -> Flow {
        ctx.drop_pending();
        ctx.no_deadline();
        let (asked, drained, before) = match &self.stage {
            Stage::Preparing { asked, .. } => (*asked, false, None),
            Stage::SettingUp(path) => (path.asked, false, None),
            // A path that is resumed may have been cut over before.
            Stage::Cutting(path) | Stage::Draining(path) => (path.asked, path.drained, path.cutoff),
            _ => (false, false, None),
        };
        self.stage = Stage::Cutting(CutOver {
            new,
            cut_in: cutoff,
            cutoff: before,
            asked,
            drained,
            reception: self.reception(),
        });
        // The wire of the new path has this session's own numbers.
        ctx.command(Anchor::SetCutIn { cutoff });
        ctx.command(Anchor::Cut);
        if self.is_gone() {
            ctx.deadline(CUT_AFTER_END);
        }
        Flow::On
    }

    fn settle(&mut self, ctx: &mut Context, path: CutOver) -> Flow {
        ctx.no_deadline();
        self.watch_gone(ctx);
        ctx.report(Role::Right, self.b, Progress::Switched);
        path.say_switched(ctx, self.left);
        self.stage = Stage::Draining(path);
        self.say_drained(ctx);
        Flow::On
    }

    /// Repeats `Drained` or `Broken` until `Done` or `Lost` arrives, but not while the new path may
    /// be given up.
    fn say_drained(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        let Stage::Draining(path) = &self.stage else {
            return;
        };
        let message = match self.session_state {
            SessionState::Broken(bytes) => Message::Broken { change, bytes },
            SessionState::Ended => Message::Drained { change },
            SessionState::Open if path.drained => Message::Drained { change },
            SessionState::Open => return,
        };
        if !path.reception.is_muted() {
            ctx.drop_pending();
            ctx.send_reliably(self.left, message);
        }
    }

    fn persist(&self, ctx: &mut Context, new: Subsession, stage: RightStage) {
        ctx.persist(RoleRecord::Right {
            b: self.b,
            left: self.left,
            new,
            stage,
        });
    }
}
