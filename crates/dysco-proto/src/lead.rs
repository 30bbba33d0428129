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
use super::message::{Facts, HostId, Message, Subsession};
use super::reason::{Phase, Reason};
use super::record::RoleRecord;
use super::report::{Progress, Role};
use super::right::SILENCE;

/// Longer than the host itself takes.
const HOLDING: Duration = Duration::from_secs(5);

#[derive(Clone, Hash, Debug)]
pub(super) struct Lead {
    session: Subsession,
    phase: Phase,
    facts: Option<Facts>,
    /// Result of opening the new path, once it is known.
    opened: Option<Result<(), Reason>>,
    cutoff: Option<Cutoff>,
    settled: bool,
    gone: bool,
    why: Option<Reason>,
}

impl Lead {
    pub fn start(ctx: &mut Context, session: Subsession) -> Self {
        ctx.report(Role::Lead, session, Progress::Requested);
        ctx.command(Chain::Hold { session });
        ctx.deadline(HOLDING);
        Lead::new(session)
    }

    fn new(session: Subsession) -> Self {
        Lead {
            session,
            phase: Phase::Locking,
            facts: None,
            opened: None,
            cutoff: None,
            settled: false,
            gone: false,
            why: None,
        }
    }

    /// Continues after a restart. Either path works until the deciding host names one.
    pub fn restore(ctx: &mut Context, session: Subsession, abandoned: bool) -> Self {
        let mut lead = Lead::new(session);
        let change = ctx.change;
        ctx.command(Chain::Hold { session });
        lead.phase = Phase::SettingUp;
        match abandoned {
            true => lead.leave(ctx),
            false => ctx.send_reliably(lead.head(), Message::Query { change }),
        }
        lead
    }

    pub fn session(&self) -> Subsession {
        self.session
    }

    /// Returns the host that decides.
    pub fn head(&self) -> HostId {
        self.session.left.ip()
    }

    /// Sets the time after which the deciding host is asked for the state of the change, if it is
    /// silent. The deadline of a session that has ended here is longer, and no message shortens it.
    fn wait(&self, ctx: &mut Context) {
        if !self.gone {
            ctx.deadline(SILENCE);
        }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    pub fn on_message(&mut self, ctx: &mut Context, message: Message) -> Flow {
        let change = ctx.change;
        match message {
            Message::Lead { .. } if self.phase == Phase::Locked => self.say_held(ctx),
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
            Message::Switched { cutoff, .. }
                if self.may_take() || matches!(self.phase, Phase::Cutting | Phase::Draining) =>
            {
                self.settle(ctx, cutoff)
            }
            Message::Status { .. } if self.phase < Phase::Cancelling && !self.settled => {
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
                let why = self.why.take().unwrap_or(Reason::Cancelled);
                self.let_go(ctx, why)
            }
            _ => ctx.stale(),
        }
    }

    pub fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase == Phase::Locking => match result {
                Ok(facts) => self.held(ctx, facts),
                Err(reason) => self.refuse(ctx, reason),
            },
            HostEvent::Prepared { result, .. }
                if self.phase == Phase::SettingUp && self.opened.is_none() =>
            {
                self.opened = Some(result);
                self.say_opened(ctx)
            }
            HostEvent::CutDone { cutoff, .. } if self.phase == Phase::Cutting => {
                self.cutoff = Some(cutoff);
                self.phase = Phase::Draining;
                ctx.report(Role::Lead, self.session, Progress::Switched);
                self.say_switched(ctx)
            }
            HostEvent::Drained { .. }
                if matches!(self.phase, Phase::Cutting | Phase::Draining) && !self.settled =>
            {
                self.settled = true;
                ctx.report(Role::Lead, self.session, Progress::Drained);
                ctx.drop_pending();
                ctx.no_deadline();
                let change = ctx.change;
                // Repeated until the deciding host reports the end.
                ctx.send_reliably(self.head(), Message::Settled { change });
                Flow::On
            }
            HostEvent::PersistFailed { error, .. } if self.phase == Phase::Locked => {
                ctx.purge();
                self.refuse(ctx, Reason::NoRecord(error))
            }
            HostEvent::PersistFailed { error, .. } => {
                ctx.trouble(Reason::NoRecord(error));
                Flow::On
            }
            // As at the right anchor: a reset may not have reached anybody.
            HostEvent::SessionGone { .. } if self.phase >= Phase::Cutting || self.is_restored() => {
                self.gone = true;
                ctx.deadline(TWO_MSL);
                Flow::On
            }
            HostEvent::SessionGone { .. } => self.refuse(ctx, Reason::Closing),
            _ => ctx.stale(),
        }
    }

    pub fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        if self.gone {
            return self.let_go(ctx, Reason::Closing);
        }
        if self.phase == Phase::Locking {
            return self.refuse(ctx, Reason::TimedOut(self.phase));
        }
        let change = ctx.change;
        ctx.send_reliably(self.head(), Message::Query { change });
        Flow::On
    }

    fn held(&mut self, ctx: &mut Context, facts: Facts) -> Flow {
        self.facts = Some(facts);
        self.phase = Phase::Locked;
        ctx.report(Role::Lead, self.session, Progress::Locked);
        self.persist(ctx, false);
        self.wait(ctx);
        self.say_held(ctx)
    }

    fn say_held(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        if let Some(facts) = self.facts {
            let result = Ok(facts);
            ctx.say(self.head(), Message::Extended { change, result });
        }
        Flow::On
    }

    fn open(&mut self, ctx: &mut Context, chain: Vec<Element>, token: Token, right: Reach) -> Flow {
        match self.phase {
            Phase::Locked => {
                ctx.drop_pending();
                self.phase = Phase::SettingUp;
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
            Phase::SettingUp if self.is_restored() => {
                self.opened = Some(Err(Reason::Restarted));
                self.say_opened(ctx)
            }
            Phase::SettingUp => self.say_opened(ctx),
            _ => ctx.stale(),
        }
    }

    fn say_opened(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        if let Some(result) = self.opened.clone() {
            ctx.say(self.head(), Message::Opened { change, result });
        }
        Flow::On
    }

    fn cut(&mut self, ctx: &mut Context) {
        ctx.drop_pending();
        self.wait(ctx);
        self.phase = Phase::Cutting;
        ctx.command(Chain::Cut);
    }

    fn say_switched(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        if let Some(cutoff) = self.cutoff {
            ctx.say(self.head(), Message::Switched { change, cutoff });
        }
        Flow::On
    }

    /// Handles the right anchor's cutoff: it has taken the new path as well.
    fn settle(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        if self.settled {
            // The message about this is being repeated.
            return Flow::On;
        }
        ctx.drop_pending();
        self.wait(ctx);
        ctx.command(Chain::SetCutIn { cutoff });
        if self.phase < Phase::Cutting {
            // A former process has taken the new path.
            self.cut(ctx);
        }
        Flow::On
    }

    fn complete(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.command(Chain::Complete);
        ctx.erase();
        ctx.unlock(self.session);
        ctx.say(self.head(), Message::DoneAck { change });
        ctx.report(Role::Lead, self.session, Progress::Removed);
        Flow::End(Ok(()))
    }

    /// Returns true if a former process began this part, and may have taken the new path. That
    /// process had the facts.
    fn is_restored(&self) -> bool {
        self.phase > Phase::Locking && self.facts.is_none()
    }

    /// Returns true if `Done` is late: a change is done only after this host has switched. See
    /// `Tail::is_belated`.
    fn is_belated(&self) -> bool {
        self.facts.is_some() && self.cutoff.is_none()
    }

    /// Returns true if the new path may be taken: it is open, or a former process may have received
    /// that report.
    fn may_take(&self) -> bool {
        self.phase == Phase::SettingUp && (self.opened == Some(Ok(())) || self.is_restored())
    }

    /// Returns to the earlier path. The new path is still received until the right anchor has
    /// returned as well.
    fn abandon(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if self.phase != Phase::Cancelling {
            self.why = Some(reason);
            self.persist(ctx, true);
            self.leave(ctx);
        }
        Flow::On
    }

    fn leave(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.no_deadline();
        self.phase = Phase::Cancelling;
        ctx.command(Chain::Abandon);
        ctx.send_reliably(self.head(), Message::Abandoned { change });
        if self.gone {
            ctx.deadline(TWO_MSL);
        }
    }

    fn persist(&self, ctx: &mut Context, abandoned: bool) {
        let session = self.session;
        ctx.persist(RoleRecord::Lead { session, abandoned });
    }

    /// Refuses: the deciding host is notified, and cancels.
    fn refuse(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let change = ctx.change;
        let result = Err(reason.clone());
        ctx.say(self.head(), Message::Extended { change, result });
        self.let_go(ctx, reason)
    }

    /// Releases everything but the earlier path.
    fn let_go(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        ctx.drop_pending();
        let end = match self.phase {
            Phase::Locking => Progress::Refused(reason.clone()),
            _ => {
                ctx.command(Chain::Abandon);
                ctx.command(Chain::Release);
                ctx.erase();
                Progress::RolledBack(reason.clone())
            }
        };
        ctx.unlock(self.session);
        ctx.report(Role::Lead, self.session, end);
        Flow::End(Err(reason))
    }
}
