//! The right anchor of a session that gets another chain. It decides nothing. The left anchor knows
//! the state of the change, and is asked if it is silent.

use std::time::Duration;

use dysco_common::chain::Token;
use dysco_common::two_paths::Cutoff;

use super::command::Chain;
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{Facts, Message};
use super::names::{HostId, Subsession};
use super::reason::{Phase, Reason};
use super::record::RoleRecord;
use super::report::{Progress, Role};
use super::right::SILENCE;

/// Longer than any time that the left anchor waits.
const PREPARING: Duration = Duration::from_secs(5);

/// Returns the session as a right anchor has it. A host of the session's chain has two sides of the
/// session, and may be an anchor of either at the same time. The side towards the end that opened
/// the session is named as if the other end had opened it.
pub(super) fn side_of(session: &Subsession, inner: bool) -> Subsession {
    match inner {
        false => *session,
        true => Subsession {
            left: session.right,
            right: session.left,
        },
    }
}

#[derive(Clone, Hash, Debug)]
pub(super) struct Tail {
    session: Subsession,
    token: Token,
    /// True if this host is a host of the chain at which the segment ends, but not the session.
    inner: bool,
    stage: Stage,
}

/// Phase of the change, with the data that only this phase has.
#[derive(Clone, Hash, Debug)]
enum Stage {
    Locking,
    Preparing {
        facts: Facts,
    },
    SettingUp {
        facts: Facts,
    },
    /// The new path is set up, and the left anchor may have cut. A former process had the facts.
    Restored {
        /// True if the session has ended.
        gone: bool,
    },
    Cutting {
        /// True if a former process had set up the path.
        restored: bool,
        settled: bool,
        gone: bool,
    },
    Draining {
        cutoff: Cutoff,
        settled: bool,
        gone: bool,
    },
}

impl Tail {
    pub(crate) fn start(ctx: &mut Context, session: Subsession, token: Token, inner: bool) -> Self {
        ctx.report(Role::Tail, session, Progress::Requested);
        let tail = Tail::new(session, token, inner);
        tail.hold(ctx);
        ctx.deadline(PREPARING);
        tail
    }

    fn new(session: Subsession, token: Token, inner: bool) -> Self {
        Tail {
            session,
            token,
            inner,
            stage: Stage::Locking,
        }
    }

    /// Continues after a restart. Either path works until the left anchor names one.
    pub(crate) fn restore(
        ctx: &mut Context,
        session: Subsession,
        token: Token,
        inner: bool,
    ) -> Self {
        let mut tail = Tail::new(session, token, inner);
        tail.hold(ctx);
        tail.stage = Stage::Restored { gone: false };
        let change = ctx.change;
        ctx.send_reliably(tail.left(), Message::Query { change });
        tail
    }

    fn hold(&self, ctx: &mut Context) {
        let session = self.own();
        ctx.command(Chain::Hold { session });
    }

    pub(crate) fn session(&self) -> Subsession {
        self.session
    }

    /// Returns the session as the locked side of this host has it: see [`side_of`].
    pub(crate) fn own(&self) -> Subsession {
        side_of(&self.session, self.inner)
    }

    /// Returns the host that decides.
    pub(crate) fn left(&self) -> HostId {
        self.session.left.ip()
    }

    /// Sets the time after which the left anchor is asked for the state of the change, if it is
    /// silent. The deadline of a session that has ended here is longer, and no message shortens it.
    fn wait(&self, ctx: &mut Context) {
        if !self.is_gone() {
            ctx.deadline(SILENCE);
        }
    }

    /// Removes the deadline, unless the session has gone: then the deciding host may be gone as well.
    fn wait_without_limit(&self, ctx: &mut Context) {
        if !self.is_gone() {
            ctx.no_deadline();
        }
    }

    /// Returns true if the session has ended, and the left anchor decides.
    fn is_gone(&self) -> bool {
        match self.stage {
            Stage::Locking | Stage::Preparing { .. } | Stage::SettingUp { .. } => false,
            Stage::Restored { gone }
            | Stage::Cutting { gone, .. }
            | Stage::Draining { gone, .. } => gone,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.stage {
            Stage::Locking => Phase::Locking,
            Stage::Preparing { .. } => Phase::Preparing,
            Stage::SettingUp { .. } | Stage::Restored { .. } => Phase::SettingUp,
            Stage::Cutting { .. } => Phase::Cutting,
            Stage::Draining { .. } => Phase::Draining,
        }
    }

    pub(crate) fn on_message(&mut self, ctx: &mut Context, message: Message) -> Flow {
        match message {
            Message::Extend { .. } if self.phase() == Phase::SettingUp => self.say_extended(ctx),
            Message::Switched { cutoff, .. } => self.switched(ctx, cutoff),
            Message::Status { .. } => {
                ctx.drop_pending();
                self.wait(ctx);
                Flow::On
            }
            Message::Done { .. } if self.is_belated() => self.let_go(ctx),
            Message::Done { .. } => self.complete(ctx),
            Message::Cancel { reason, .. } => {
                let change = ctx.change;
                ctx.say(self.left(), Message::CancelAck { change });
                self.roll_back(ctx, reason)
            }
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase() == Phase::Locking => match result {
                Ok(facts) => self.extend(ctx, facts),
                Err(reason) => self.refuse(ctx, reason),
            },
            HostEvent::Prepared { result, .. } => self.path_prepared(ctx, result),
            HostEvent::CutDone { cutoff, .. } => self.cut_done(ctx, cutoff),
            HostEvent::Drained { .. } => self.drained(ctx),
            HostEvent::PersistFailed { error, .. } if self.phase() <= Phase::SettingUp => {
                ctx.purge();
                self.refuse(ctx, Reason::NoRecord(error))
            }
            HostEvent::PersistFailed { error, .. } => {
                ctx.trouble(Reason::NoRecord(error));
                Flow::On
            }
            HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    fn path_prepared(&mut self, ctx: &mut Context, result: Result<(), Reason>) -> Flow {
        match (&self.stage, result) {
            (Stage::Preparing { facts }, Ok(())) => {
                self.stage = Stage::SettingUp { facts: *facts };
                ctx.report(Role::Tail, self.session, Progress::SetUp);
                self.wait(ctx);
                self.say_extended(ctx)
            }
            (Stage::Preparing { .. }, Err(reason)) => self.refuse(ctx, reason),
            (Stage::SettingUp { .. }, Err(reason)) => {
                // The new path rejects the answers of this end: the left anchor cancels.
                let change = ctx.change;
                let result = Err(reason);
                ctx.say(self.left(), Message::Extended { change, result });
                Flow::On
            }
            _ => ctx.stale(),
        }
    }

    fn cut_done(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        let Stage::Cutting { settled, gone, .. } = self.stage else {
            return ctx.stale();
        };
        self.stage = Stage::Draining {
            cutoff,
            settled,
            gone,
        };
        ctx.report(Role::Tail, self.session, Progress::Switched);
        self.wait(ctx);
        self.say_switched(ctx)
    }

    fn drained(&mut self, ctx: &mut Context) -> Flow {
        match &mut self.stage {
            Stage::Cutting { settled, .. } | Stage::Draining { settled, .. } if !*settled => {
                *settled = true;
            }
            _ => return ctx.stale(),
        }
        ctx.report(Role::Tail, self.session, Progress::Drained);
        ctx.drop_pending();
        self.wait_without_limit(ctx);
        let change = ctx.change;
        // Repeated until `Done` or `Cancel` arrives.
        ctx.send_reliably(self.left(), Message::Settled { change });
        Flow::On
    }

    fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        match &mut self.stage {
            Stage::Locking | Stage::Preparing { .. } | Stage::SettingUp { .. } => {
                self.refuse(ctx, Reason::Closing)
            }
            // Both anchors may be on the new path for good, and a reset may not have reached
            // anybody. The left anchor decides.
            Stage::Restored { gone }
            | Stage::Cutting { gone, .. }
            | Stage::Draining { gone, .. } => {
                *gone = true;
                ctx.deadline(TWO_MSL);
                Flow::On
            }
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        if self.is_gone() {
            return self.roll_back(ctx, Reason::Closing);
        }
        let phase = self.phase();
        if phase < Phase::SettingUp {
            return self.refuse(ctx, Reason::TimedOut(phase));
        }
        let change = ctx.change;
        ctx.send_reliably(self.left(), Message::Query { change });
        Flow::On
    }

    fn extend(&mut self, ctx: &mut Context, facts: Facts) -> Flow {
        self.stage = Stage::Preparing { facts };
        ctx.report(Role::Tail, self.session, Progress::Locked);
        let (session, token) = (self.session, self.token);
        let inner = self.inner;
        ctx.persist(RoleRecord::Tail {
            session,
            token,
            inner,
        });
        ctx.command(Chain::Extend { token });
        Flow::On
    }

    fn say_extended(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        // The left anchor has not received the facts of a former process, or it would not ask. If
        // its message is late, it may have cut, and decides about the path.
        let result = match self.stage {
            Stage::SettingUp { facts } => Ok(facts),
            _ => Err(Reason::Restarted),
        };
        ctx.say(self.left(), Message::Extended { change, result });
        Flow::On
    }

    /// Handles the left anchor's cutoff.
    fn switched(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        let (restored, gone) = match self.stage {
            Stage::SettingUp { .. } => (false, false),
            Stage::Restored { gone } => (true, gone),
            Stage::Draining { settled, .. } => {
                if !settled {
                    ctx.drop_pending();
                    self.wait(ctx);
                }
                return self.say_switched(ctx);
            }
            _ => return ctx.stale(),
        };
        ctx.drop_pending();
        self.wait_without_limit(ctx);
        self.stage = Stage::Cutting {
            restored,
            settled: false,
            gone,
        };
        ctx.command(Chain::SetCutIn { cutoff });
        ctx.command(Chain::Cut);
        Flow::On
    }

    fn say_switched(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        if let Stage::Draining { cutoff, .. } = self.stage {
            ctx.say(self.left(), Message::Switched { change, cutoff });
        }
        Flow::On
    }

    fn complete(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.command(Chain::Complete);
        ctx.erase();
        ctx.unlock(self.own());
        ctx.say(self.left(), Message::DoneAck { change });
        ctx.report(Role::Tail, self.session, Progress::Removed);
        Flow::End(Ok(()))
    }

    /// Returns true if `Done` is late. A change is done only after this host has switched. If this
    /// process has not switched, a former one did, and completed the change; a late message then
    /// began this part anew.
    fn is_belated(&self) -> bool {
        match self.stage {
            Stage::Preparing { .. } | Stage::SettingUp { .. } => true,
            Stage::Cutting { restored, .. } => !restored,
            Stage::Locking | Stage::Restored { .. } | Stage::Draining { .. } => false,
        }
    }

    /// Forgets the path that was awaited.
    fn let_go(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.command(Chain::Abandon);
        ctx.command(Chain::Release);
        ctx.erase();
        ctx.unlock(self.own());
        ctx.say(self.left(), Message::DoneAck { change });
        // The outcome of the change itself was reported earlier.
        let why = Progress::Refused(Reason::UnknownChange);
        ctx.report(Role::Tail, self.session, why);
        Flow::End(Ok(()))
    }

    /// Refuses: the left anchor is notified, and cancels.
    fn refuse(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let change = ctx.change;
        let result = Err(reason.clone());
        ctx.say(self.left(), Message::Extended { change, result });
        self.roll_back(ctx, reason)
    }

    fn roll_back(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        ctx.drop_pending();
        let phase = self.phase();
        if phase > Phase::Locking {
            ctx.command(Chain::Abandon);
            ctx.command(Chain::Release);
            ctx.erase();
        }
        ctx.unlock(self.own());
        let end = match phase {
            Phase::Locking => Progress::Refused(reason.clone()),
            _ => Progress::RolledBack(reason.clone()),
        };
        ctx.report(Role::Tail, self.session, end);
        Flow::End(Err(reason))
    }
}
