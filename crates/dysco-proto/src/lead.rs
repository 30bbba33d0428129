//! The left anchor of a segment of a session's chain, if the segment does not begin at the host
//! that opened the session. This anchor decides nothing. The host that opened the session (`head`)
//! orders it to take the new path and to leave it.

use std::time::Duration;

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::Cutoff;
use dysco_common::{Delta, Element};

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

mod end;

/// Longer than the host itself takes.
const HOLDING: Duration = Duration::from_secs(5);

#[derive(Clone, Hash, Debug)]
pub(super) struct Lead {
    session: Subsession,
    stage: Stage,
}

/// Phase of the change, with the data that only this phase has.
#[derive(Clone, Hash, Debug)]
enum Stage {
    Locking,
    Locked {
        facts: Facts,
    },
    SettingUp {
        /// Result of opening the new path, once it is known.
        opened: Option<Result<(), Reason>>,
    },
    /// A former process may have taken the new path. That process had the facts.
    Restored {
        /// True if the session has ended.
        gone: bool,
    },
    Cutting {
        /// True if a former process had opened the path.
        restored: bool,
        settled: bool,
        gone: bool,
    },
    Draining {
        cutoff: Cutoff,
        settled: bool,
        gone: bool,
    },
    Cancelling {
        /// `None` after a restart: only the former process had it.
        why: Option<Reason>,
        switched: Switched,
        gone: bool,
    },
}

/// Knowledge of this host about its switch to the path that it leaves.
#[derive(Clone, Copy, Hash, Debug)]
enum Switched {
    No,
    At(Cutoff),
    /// A former process may have.
    Unknown,
}

impl Lead {
    pub(crate) fn start(ctx: &mut Context, session: Subsession) -> Self {
        ctx.report(Role::Lead, session, Progress::Requested);
        ctx.command(Chain::Hold { session });
        ctx.deadline(HOLDING);
        Lead::new(session)
    }

    fn new(session: Subsession) -> Self {
        Lead {
            session,
            stage: Stage::Locking,
        }
    }

    /// Continues after a restart. Either path works until the deciding host names one.
    pub(crate) fn restore(ctx: &mut Context, session: Subsession, abandoned: bool) -> Self {
        let mut lead = Lead::new(session);
        let change = ctx.change;
        ctx.command(Chain::Hold { session });
        lead.stage = Stage::Restored { gone: false };
        match abandoned {
            true => lead.leave(ctx, None),
            false => ctx.send_reliably(lead.head(), Message::Query { change }),
        }
        lead
    }

    pub(crate) fn session(&self) -> Subsession {
        self.session
    }

    /// Returns the host that decides.
    pub(crate) fn head(&self) -> HostId {
        self.session.left.ip()
    }

    /// Sets the time after which the deciding host is asked for the state of the change, if it is
    /// silent. The deadline of a session that has ended here is longer, and no message shortens it.
    fn wait(&self, ctx: &mut Context) {
        if !self.is_gone() {
            ctx.deadline(SILENCE);
        }
    }

    /// Returns true if the session has ended, and the deciding host has the word.
    fn is_gone(&self) -> bool {
        match self.stage {
            Stage::Locking | Stage::Locked { .. } | Stage::SettingUp { .. } => false,
            Stage::Restored { gone }
            | Stage::Cutting { gone, .. }
            | Stage::Draining { gone, .. }
            | Stage::Cancelling { gone, .. } => gone,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        match self.stage {
            Stage::Locking => Phase::Locking,
            Stage::Locked { .. } => Phase::Locked,
            Stage::SettingUp { .. } | Stage::Restored { .. } => Phase::SettingUp,
            Stage::Cutting { .. } => Phase::Cutting,
            Stage::Draining { .. } => Phase::Draining,
            Stage::Cancelling { .. } => Phase::Cancelling,
        }
    }

    pub(crate) fn on_message(&mut self, ctx: &mut Context, message: Message) -> Flow {
        let change = ctx.change;
        match message {
            Message::Lead { .. } if self.phase() == Phase::Locked => self.say_held(ctx),
            Message::Open {
                chain,
                token,
                right,
                ..
            } => self.open(ctx, chain, token, right),
            Message::Cut { .. } if self.may_take() => {
                self.cut(ctx);
                Flow::On
            }
            Message::Cut { .. } => self.say_switched(ctx),
            Message::Switched { cutoff, .. } => self.settle(ctx, cutoff),
            Message::Status { .. } if !self.is_settled() && self.phase() < Phase::Cancelling => {
                ctx.drop_pending();
                self.wait(ctx);
                Flow::On
            }
            Message::Done { .. } if self.is_belated() => {
                ctx.say(self.head(), Message::DoneAck { change });
                self.let_go(ctx, Reason::UnknownChange)
            }
            Message::Done { .. } => self.complete(ctx),
            Message::Cancel { reason, .. } => self.abandon(ctx, reason),
            Message::Release { .. } => {
                ctx.say(self.head(), Message::Released { change });
                let why = match &mut self.stage {
                    Stage::Cancelling { why, .. } => why.take(),
                    _ => None,
                };
                self.let_go(ctx, why.unwrap_or(Reason::Cancelled))
            }
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase() == Phase::Locking => match result {
                Ok(facts) => self.held(ctx, facts),
                Err(reason) => self.refuse(ctx, reason),
            },
            HostEvent::Prepared { result, .. } => match &mut self.stage {
                Stage::SettingUp { opened } if opened.is_none() => {
                    *opened = Some(result);
                    self.say_opened(ctx)
                }
                _ => ctx.stale(),
            },
            HostEvent::CutDone { cutoff, .. } => self.cut_done(ctx, cutoff),
            HostEvent::Drained { .. } => self.drained(ctx),
            HostEvent::PersistFailed { error, .. } if self.phase() == Phase::Locked => {
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

    fn cut_done(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        let Stage::Cutting { settled, gone, .. } = self.stage else {
            return ctx.stale();
        };
        self.stage = Stage::Draining {
            cutoff,
            settled,
            gone,
        };
        ctx.report(Role::Lead, self.session, Progress::Switched);
        self.say_switched(ctx)
    }

    fn drained(&mut self, ctx: &mut Context) -> Flow {
        match &mut self.stage {
            Stage::Cutting { settled, .. } | Stage::Draining { settled, .. } if !*settled => {
                *settled = true;
            }
            _ => return ctx.stale(),
        }
        ctx.report(Role::Lead, self.session, Progress::Drained);
        ctx.drop_pending();
        if !self.is_gone() {
            ctx.no_deadline();
        }
        let change = ctx.change;
        // Repeated until the deciding host reports the end.
        ctx.send_reliably(self.head(), Message::Settled { change });
        Flow::On
    }

    fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        match &mut self.stage {
            Stage::Locking | Stage::Locked { .. } | Stage::SettingUp { .. } => {
                self.refuse(ctx, Reason::Closing)
            }
            // As at the right anchor: a reset may not have reached anybody.
            Stage::Restored { gone }
            | Stage::Cutting { gone, .. }
            | Stage::Draining { gone, .. }
            | Stage::Cancelling { gone, .. } => {
                *gone = true;
                ctx.deadline(TWO_MSL);
                Flow::On
            }
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        if self.is_gone() {
            return self.let_go(ctx, Reason::Closing);
        }
        let phase = self.phase();
        if phase == Phase::Locking {
            return self.refuse(ctx, Reason::TimedOut(phase));
        }
        let change = ctx.change;
        ctx.send_reliably(self.head(), Message::Query { change });
        Flow::On
    }

    fn held(&mut self, ctx: &mut Context, facts: Facts) -> Flow {
        self.stage = Stage::Locked { facts };
        ctx.report(Role::Lead, self.session, Progress::Locked);
        self.persist(ctx, false);
        self.wait(ctx);
        self.say_held(ctx)
    }

    fn say_held(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        if let Stage::Locked { facts } = self.stage {
            let result = Ok(facts);
            ctx.say(self.head(), Message::Extended { change, result });
        }
        Flow::On
    }

    fn open(&mut self, ctx: &mut Context, chain: Vec<Element>, token: Token, right: Reach) -> Flow {
        match self.stage {
            Stage::Locked { .. } => {
                ctx.drop_pending();
                self.stage = Stage::SettingUp { opened: None };
                self.wait(ctx);
                ctx.command(Chain::Open {
                    chain,
                    // The command does not record a chain.
                    inner: false,
                    token,
                    // No host that has added bytes leaves behind this host.
                    delta: Delta::default(),
                    right,
                });
                Flow::On
            }
            Stage::SettingUp { .. } | Stage::Restored { .. } => self.say_opened(ctx),
            _ => ctx.stale(),
        }
    }

    fn say_opened(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        let result = match &self.stage {
            Stage::SettingUp { opened } => opened.clone(),
            _ => Some(Err(Reason::Restarted)),
        };
        if let Some(result) = result {
            ctx.say(self.head(), Message::Opened { change, result });
        }
        Flow::On
    }

    fn cut(&mut self, ctx: &mut Context) {
        ctx.drop_pending();
        self.wait(ctx);
        self.stage = Stage::Cutting {
            restored: matches!(self.stage, Stage::Restored { .. }),
            settled: false,
            gone: self.is_gone(),
        };
        ctx.command(Chain::Cut);
    }

    fn say_switched(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        if let Switched::At(cutoff) = self.switched() {
            ctx.say(self.head(), Message::Switched { change, cutoff });
        }
        Flow::On
    }

    /// Handles the right anchor's cutoff: it has taken the new path as well.
    fn settle(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        if self.is_settled() {
            // The message about this is being repeated.
            return Flow::On;
        }
        let takes = self.may_take();
        if !takes && !matches!(self.phase(), Phase::Cutting | Phase::Draining) {
            return ctx.stale();
        }
        ctx.drop_pending();
        self.wait(ctx);
        ctx.command(Chain::SetCutIn { cutoff });
        if takes {
            // A former process has taken the new path.
            self.cut(ctx);
        }
        Flow::On
    }

    /// Returns true if the new path has carried all data, and the deciding host is being notified.
    fn is_settled(&self) -> bool {
        match self.stage {
            Stage::Cutting { settled, .. } | Stage::Draining { settled, .. } => settled,
            _ => false,
        }
    }

    fn switched(&self) -> Switched {
        match self.stage {
            Stage::Draining { cutoff, .. } => Switched::At(cutoff),
            Stage::Cancelling { switched, .. } => switched,
            Stage::Locked { .. }
            | Stage::SettingUp { .. }
            | Stage::Cutting {
                restored: false, ..
            } => Switched::No,
            Stage::Locking | Stage::Restored { .. } | Stage::Cutting { restored: true, .. } => {
                Switched::Unknown
            }
        }
    }

    /// Returns true if `Done` is late: a change is done only after this host has switched. See
    /// `Tail::is_belated`.
    fn is_belated(&self) -> bool {
        matches!(self.switched(), Switched::No)
    }

    /// Returns true if the new path may be taken: it is open, or a former process may have received
    /// that report.
    fn may_take(&self) -> bool {
        matches!(
            self.stage,
            Stage::SettingUp {
                opened: Some(Ok(()))
            } | Stage::Restored { .. }
        )
    }
}
