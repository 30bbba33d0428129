//! The host of a middlebox that is both anchors as well. It sends no message, and can fail only by
//! itself. Before the cut it takes everything back. After the cut it takes nothing back.

use std::time::Duration;

use dysco_common::Translation;

use super::command::{Pair, Proxy};
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{Facts, Measurement, Message};
use super::middle::{CLOSE, CLOSE_TRIES, MEASURE, steady};
use super::names::{HostId, Subsession};
use super::plan;
use super::reason::{Phase, Reason};
use super::record::LocalStage;
use super::report::{Progress, Role};

mod end;

const PREPARE: Duration = Duration::from_secs(5);
/// A session that has ended, and was not cut in this time, will never be cut. The data that the
/// proxy still holds takes the old path.
const CUT_AFTER_END: Duration = Duration::from_secs(5);

#[derive(Clone, Hash, Debug)]
pub(super) struct Local {
    /// Session A. Until it is measured, the session that the request named.
    a: Subsession,
    b: Option<Subsession>,
    asker: Option<HostId>,
    phase: Phase,
    measured: Option<Measurement>,
    /// Facts of the two ends, once both sessions are locked.
    ends: Option<[Facts; 2]>,
    translation: Translation,
    gone: bool,
    closes: u32,
}

impl Local {
    pub(crate) fn start(ctx: &mut Context, subsession: Subsession, asker: Option<HostId>) -> Self {
        ctx.report(Role::Local, subsession, Progress::Requested);
        let local = Local::new(subsession, asker);
        local.measure(ctx);
        local
    }

    fn new(a: Subsession, asker: Option<HostId>) -> Self {
        Local {
            a,
            b: None,
            asker,
            phase: Phase::Measuring,
            measured: None,
            ends: None,
            translation: Translation::default(),
            gone: false,
            closes: 0,
        }
    }

    /// Continues from a record, or takes everything back at the first timeout.
    pub(crate) fn restore(
        ctx: &mut Context,
        (a, b): (Subsession, Subsession),
        asker: Option<HostId>,
        translation: Translation,
        stage: LocalStage,
    ) -> Self {
        let mut local = Local::new(a, asker);
        local.b = Some(b);
        local.translation = translation;
        ctx.command(Pair::LockPair {
            subsession_a: a,
            subsession_b: b,
        });
        match stage {
            LocalStage::Preparing => {
                local.phase = Phase::Preparing;
                ctx.deadline(Duration::ZERO);
            }
            LocalStage::Cut => {
                local.join(ctx, b);
                local.phase = Phase::Cutting;
                ctx.no_deadline();
                ctx.command(Pair::Cut);
            }
            LocalStage::Completing => local.complete(ctx, b),
        }
        local
    }

    pub(crate) fn subsession(&self) -> Subsession {
        self.a
    }

    /// Returns session B, once it is known.
    pub(crate) fn other(&self) -> Option<Subsession> {
        self.b
    }

    pub(crate) fn asker(&self) -> Option<HostId> {
        self.asker
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Handles a message. Only an asker may send one.
    pub(crate) fn on_message(&mut self, ctx: &mut Context, message: &Message) -> Flow {
        let (change, phase) = (ctx.change, self.phase);
        match (message, self.asker) {
            (Message::Ask { .. }, Some(asker)) => {
                ctx.say(asker, Message::Status { change, phase });
                Flow::On
            }
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Measured { result, .. } => match (self.phase, result) {
                (Phase::Measuring, Ok(m)) => self.measured_first(ctx, m),
                (Phase::Locking, Ok(m)) => self.measured_again(ctx, m),
                (Phase::Measuring | Phase::Locking, Err(reason)) => self.fail(ctx, reason),
                _ => ctx.stale(),
            },
            HostEvent::PairLocked { result, .. } if self.phase == Phase::Locking => match result {
                Ok(ends) if self.ends.is_none() => {
                    self.ends = Some(ends);
                    self.measure(ctx);
                    Flow::On
                }
                Ok(_) => ctx.stale(),
                Err(reason) => self.fail(ctx, reason),
            },
            HostEvent::Prepared { result, .. } if self.phase == Phase::Preparing => match result {
                Ok(()) => self.cut(ctx),
                Err(reason) => self.fail(ctx, reason),
            },
            HostEvent::CutDone { .. } if self.phase == Phase::Cutting => {
                self.phase = Phase::Draining;
                ctx.report(Role::Local, self.a, Progress::Switched);
                if self.gone {
                    ctx.deadline(TWO_MSL);
                }
                Flow::On
            }
            HostEvent::Drained { .. } if self.phase == Phase::Draining => {
                ctx.report(Role::Local, self.a, Progress::Drained);
                self.end_of_drain(ctx)
            }
            HostEvent::Closed { result, .. } if self.phase == Phase::Closing => match result {
                Ok(()) => self.removed(ctx),
                Err(reason) => {
                    ctx.trouble(reason);
                    Flow::On
                }
            },
            HostEvent::PersistFailed { error, .. } => self.no_record(ctx, error),
            HostEvent::Broken { bytes, .. } if self.is_between() => self.break_off(ctx, bytes),
            HostEvent::Broken { .. } | HostEvent::SessionGone { .. } => self.session_gone(ctx),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        match self.phase {
            // A former process recorded that it would prepare, and nothing after that.
            Phase::Preparing if self.measured.is_none() => self.fail(ctx, Reason::Restarted),
            Phase::Measuring | Phase::Locking | Phase::Preparing => {
                self.fail(ctx, Reason::TimedOut(self.phase))
            }
            Phase::Closing if self.closes < CLOSE_TRIES => {
                self.close(ctx);
                Flow::On
            }
            Phase::Closing => {
                ctx.trouble(Reason::TimedOut(self.phase));
                self.removed(ctx)
            }
            Phase::Cutting if self.gone => {
                self.phase = Phase::Preparing;
                self.fail(ctx, Reason::Closing)
            }
            _ if self.gone => {
                ctx.trouble(Reason::TimedOut(self.phase));
                self.end_of_drain(ctx)
            }
            _ => Flow::On,
        }
    }

    fn measure(&self, ctx: &mut Context) {
        ctx.command(Proxy::Measure { subsession: self.a });
        ctx.deadline(MEASURE);
    }

    fn measured_first(&mut self, ctx: &mut Context, m: Measurement) -> Flow {
        if let Err(reason) = self.judge(ctx, &m) {
            return self.fail(ctx, reason);
        }
        self.phase = Phase::Locking;
        ctx.command(Pair::LockPair {
            subsession_a: m.subsession_a,
            subsession_b: m.subsession_b,
        });
        Flow::On
    }

    /// Locks both sessions, unless something already speaks against the change.
    fn judge(&mut self, ctx: &mut Context, m: &Measurement) -> Result<(), Reason> {
        let (a, b) = (m.subsession_a, m.subsession_b);
        ctx.lock(a)?;
        self.a = a;
        ctx.lock(b)?;
        self.b = Some(b);
        self.measured = Some(*m);
        if m.relay.is_some() {
            return Err(Reason::AlreadyOut);
        }
        for end in [a.left.ip(), b.right.ip()] {
            // Packets of such a session pass no interface.
            if ctx.core.is_me(end) {
                return Err(Reason::EndAtMiddlebox(end));
            }
        }
        plan::check(m)
    }

    /// Handles the measurement under the lock, which is later than the reading of the ends' clocks.
    fn measured_again(&mut self, ctx: &mut Context, m: Measurement) -> Flow {
        let (Some(before), Some([left, right]), Some(b)) = (self.measured, self.ends, self.b)
        else {
            return ctx.stale();
        };
        let translation = steady(&before, &m).and_then(|()| plan::plan(&m, &left, &right));
        match translation {
            Err(reason) => self.fail(ctx, reason),
            Ok(translation) => {
                self.translation = translation;
                self.phase = Phase::Preparing;
                ctx.report(Role::Local, self.a, Progress::Locked);
                self.persist(ctx, b, LocalStage::Preparing);
                self.join(ctx, b);
                ctx.deadline(PREPARE);
                Flow::On
            }
        }
    }

    fn join(&self, ctx: &mut Context, b: Subsession) {
        ctx.command(Pair::Join {
            subsession_a: self.a,
            subsession_b: b,
            translation: self.translation,
        });
    }

    /// Cuts. The change cannot be taken back any more.
    fn cut(&mut self, ctx: &mut Context) -> Flow {
        let Some(b) = self.b else {
            return ctx.stale();
        };
        ctx.no_deadline();
        self.phase = Phase::Cutting;
        ctx.report(Role::Local, self.a, Progress::SetUp);
        self.persist(ctx, b, LocalStage::Cut);
        ctx.command(Pair::Cut);
        Flow::On
    }

    fn end_of_drain(&mut self, ctx: &mut Context) -> Flow {
        match self.b {
            Some(b) => self.complete(ctx, b),
            None => return ctx.stale(),
        }
        Flow::On
    }

    fn complete(&mut self, ctx: &mut Context, b: Subsession) {
        self.phase = Phase::Closing;
        self.persist(ctx, b, LocalStage::Completing);
        ctx.command(Pair::Complete);
        self.close(ctx);
    }

    fn close(&mut self, ctx: &mut Context) {
        let Some(b) = self.b else { return };
        self.closes += 1;
        ctx.command(Pair::Close {
            subsession_a: self.a,
            subsession_b: b,
        });
        ctx.deadline(CLOSE);
    }

    fn removed(&mut self, ctx: &mut Context) -> Flow {
        self.let_go(ctx);
        ctx.erase();
        ctx.report(Role::Local, self.a, Progress::Removed);
        self.finish(ctx, Ok(()))
    }

    /// Cancels at the operator's request.
    pub(crate) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if self.phase < Phase::Cutting {
            return self.fail(ctx, reason);
        }
        ctx.stale()
    }
}
