//! The right anchor. Once prepared it decides nothing. The left anchor knows the state of the
//! change, and is asked if it is silent.

use std::time::Duration;

use dysco_common::Translation;
use dysco_common::two_paths::Cutoff;

use super::command::{Anchor, Side};
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{Facts, HostId, Message, Subsession};
use super::reason::{Phase, Reason};
use super::record::{RightStage, RoleRecord};
use super::report::{Progress, Role};

mod end;
mod path_liveness;

use end::SessionState;
use path_liveness::Reception;

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
    phase: Phase,
    facts: Option<Facts>,
    new: Option<Subsession>,
    cutoff: Option<Cutoff>,
    /// Cutoff of the left anchor.
    cut_in: Option<Cutoff>,
    drained: bool,
    session_state: SessionState,
    /// True if the left anchor was asked and has not answered.
    asked: bool,
    /// Reason why this process could not prepare the path that a former process recorded.
    unprepared: Option<Reason>,
    reception: Reception,
    /// Reason of the return, while the session returns to the old path.
    why: Option<Reason>,
}

impl Right {
    pub fn start(ctx: &mut Context, b: Subsession, left: HostId) -> Self {
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
            phase: Phase::Locking,
            facts: None,
            new: None,
            cutoff: None,
            cut_in: None,
            drained: false,
            session_state: SessionState::Open,
            asked: false,
            unprepared: None,
            reception: Reception::Receives,
            why: None,
        }
    }

    pub fn restore(
        ctx: &mut Context,
        b: Subsession,
        left: HostId,
        new: Subsession,
        stage: RightStage,
    ) -> Self {
        let mut right = Right::new(b, left);
        ctx.command(Anchor::Lock { subsession: b });
        if let RightStage::Muted { round, cutoff } = stage {
            right.new = Some(new);
            right.restore_muted(ctx, round, cutoff);
            return right;
        }
        right.prepare(ctx, new);
        // A former process may have stopped receiving on the new path.
        ctx.command(Anchor::Unmute);
        if let RightStage::Switched { cutoff } = stage {
            right.cut(ctx, cutoff);
        }
        right
    }

    pub fn subsession(&self) -> Subsession {
        self.b
    }

    pub fn middle(&self) -> HostId {
        self.middle
    }

    pub fn left(&self) -> HostId {
        self.left
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn on_message(&mut self, ctx: &mut Context, from_left: bool, message: Message) -> Flow {
        match message {
            Message::Introduce { .. } if (Phase::Locked..Phase::Cutting).contains(&self.phase) => {
                self.say_introduced(ctx)
            }
            Message::SetUp { new, .. } if self.phase == Phase::Locked => {
                self.persist(ctx, new, RightStage::Prepared);
                self.prepare(ctx, new)
            }
            Message::SetUp { .. } if self.phase == Phase::SettingUp => {
                self.say_set_up(ctx);
                Flow::On
            }
            Message::Suspect { round, .. } if self.is_between() => self.suspected(ctx, round),
            Message::Keep { round, .. } => self.keep(ctx, round),
            Message::Lost { .. } | Message::Cancel { .. } | Message::Back { .. } => {
                self.given_up(ctx, from_left, message)
            }
            Message::Done { .. } if self.phase == Phase::Cancelling => ctx.stale(),
            Message::Switched { cutoff, .. } if self.reception.is_muted() => {
                // Applied once this host receives on the path again.
                self.cut_in = Some(cutoff);
                Flow::On
            }
            Message::Switched { cutoff, .. } if self.phase == Phase::SettingUp => {
                if let Some(new) = self.new {
                    self.persist(ctx, new, RightStage::Switched { cutoff });
                }
                self.cut(ctx, cutoff)
            }
            Message::Switched { .. } if self.phase == Phase::Draining => {
                self.say_switched(ctx);
                Flow::On
            }
            Message::Status { .. } if from_left && self.phase == Phase::SettingUp => {
                ctx.drop_pending();
                ctx.deadline(SILENCE);
                self.asked = false;
                Flow::On
            }
            Message::Done { .. } if self.phase >= Phase::Preparing => self.complete(ctx),
            _ => ctx.stale(),
        }
    }

    pub fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase == Phase::Locking => match result {
                Ok(facts) => {
                    self.facts = Some(facts);
                    self.phase = Phase::Locked;
                    ctx.report(Role::Right, self.b, Progress::Locked);
                    self.say_introduced(ctx)
                }
                Err(reason) => self.refuse(ctx, reason),
            },
            HostEvent::TwoPaths { result, .. } if self.phase == Phase::Preparing => match result {
                Ok(()) => self.prepared(ctx),
                Err(reason) if self.is_restored() => {
                    // A former process may have prepared the path, and the left anchor may have
                    // cut.
                    self.phase = Phase::SettingUp;
                    self.unprepared = Some(reason.clone());
                    ctx.trouble(reason);
                    Flow::On
                }
                Err(reason) => self.fail(ctx, reason),
            },
            HostEvent::CutDone { cutoff, .. } if self.phase == Phase::Cutting => {
                self.cutoff = Some(cutoff);
                self.settle(ctx)
            }
            HostEvent::Drained { .. } if self.phase >= Phase::Cutting && !self.drained => {
                self.drained = true;
                ctx.report(Role::Right, self.b, Progress::Drained);
                self.say_drained(ctx);
                Flow::On
            }
            HostEvent::Muted { muted, .. } => self.muted(ctx, muted),
            HostEvent::TakenBack { .. } if self.phase == Phase::Cancelling => self.taken_back(ctx),
            HostEvent::PersistFailed { error, .. } => self.no_record(ctx, error),
            HostEvent::Broken { bytes, .. } => self.was_broken(ctx, bytes),
            HostEvent::Tried {
                result: Err(reason),
                ..
            } if self.phase == Phase::SettingUp => {
                // A hint: the left anchor cancels, unless it has cut.
                let change = ctx.change;
                ctx.say(self.left, Message::SetUpNack { change, reason });
                Flow::On
            }
            HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    pub fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        match self.phase {
            Phase::Cancelling => self.taken_back(ctx),
            Phase::Locking | Phase::Locked => self.roll_back(ctx, Reason::TimedOut(self.phase)),
            Phase::Preparing | Phase::SettingUp if self.is_gone() && self.asked => {
                self.roll_back(ctx, Reason::Closing)
            }
            Phase::Preparing | Phase::SettingUp if self.reception.is_muted() => Flow::On,
            Phase::Preparing | Phase::SettingUp => {
                ctx.send_reliably(self.left, Message::Query { change });
                self.asked = true;
                self.watch_gone(ctx);
                Flow::On
            }
            Phase::Cutting if self.is_gone() => self.settle(ctx),
            _ if self.is_gone() => {
                ctx.trouble(Reason::TimedOut(self.phase));
                self.complete(ctx)
            }
            _ => Flow::On,
        }
    }

    /// Returns true if a former process began this part. That process had the facts.
    fn is_restored(&self) -> bool {
        self.phase > Phase::Locking && self.facts.is_none()
    }

    fn is_gone(&self) -> bool {
        self.session_state != SessionState::Open
    }

    /// Returns true if the left anchor may have cut, so that the session may be moving to the new
    /// path.
    fn is_between(&self) -> bool {
        matches!(
            self.phase,
            Phase::SettingUp | Phase::Cutting | Phase::Draining
        )
    }

    fn say_introduced(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        let message = match self.facts {
            Some(facts) => Message::Introduced { change, facts },
            // A former process had the facts.
            None => Message::NackLock {
                change,
                reason: Reason::Restarted,
            },
        };
        ctx.say(self.middle, message);
        Flow::On
    }

    fn prepare(&mut self, ctx: &mut Context, new: Subsession) -> Flow {
        self.new = Some(new);
        self.phase = Phase::Preparing;
        ctx.command(Anchor::Prepare {
            side: Side::Right,
            own: self.b,
            new,
            translation: Translation::default(),
        });
        ctx.deadline(SILENCE);
        Flow::On
    }

    /// Records that this host receives on the new path.
    fn prepared(&mut self, ctx: &mut Context) -> Flow {
        self.phase = Phase::SettingUp;
        ctx.report(Role::Right, self.b, Progress::SetUp);
        ctx.drop_pending();
        ctx.deadline(SILENCE);
        self.say_set_up(ctx);
        Flow::On
    }

    fn say_set_up(&self, ctx: &mut Context) {
        let change = ctx.change;
        let message = match (self.unprepared.clone(), self.new) {
            (None, Some(new)) => Message::SetUpAck { change, new },
            // The left anchor cancels, unless it has cut.
            (Some(reason), _) => Message::SetUpNack { change, reason },
            (None, None) => return,
        };
        ctx.say(self.left, message);
    }

    fn cut(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        ctx.drop_pending();
        ctx.no_deadline();
        self.cut_in = Some(cutoff);
        self.phase = Phase::Cutting;
        // The wire of the new path has this session's own numbers.
        ctx.command(Anchor::SetCutIn { cutoff });
        ctx.command(Anchor::Cut);
        if self.is_gone() {
            ctx.deadline(CUT_AFTER_END);
        }
        Flow::On
    }

    fn settle(&mut self, ctx: &mut Context) -> Flow {
        self.phase = Phase::Draining;
        ctx.no_deadline();
        self.watch_gone(ctx);
        ctx.report(Role::Right, self.b, Progress::Switched);
        self.say_switched(ctx);
        self.say_drained(ctx);
        Flow::On
    }

    fn say_switched(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        if let Some(cutoff) = self.cutoff {
            ctx.say(self.left, Message::Switched { change, cutoff });
        }
    }

    /// Repeats `Drained` or `Broken` until `Done` or `Lost` arrives, but not while the new path may
    /// be given up.
    fn say_drained(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        let message = match self.session_state {
            SessionState::Broken(bytes) => Message::Broken { change, bytes },
            SessionState::Ended => Message::Drained { change },
            SessionState::Open if self.drained => Message::Drained { change },
            SessionState::Open => return,
        };
        if self.phase == Phase::Draining && !self.reception.is_muted() {
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
