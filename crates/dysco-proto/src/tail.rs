//! The right anchor of a session that gets another chain. It decides nothing. The left anchor knows
//! the state of the change, and is asked if it is silent.

use std::time::Duration;

use dysco_common::chain::Token;
use dysco_common::two_paths::Cutoff;

use super::command::Chain;
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::left::TWO_MSL;
use super::message::{Facts, HostId, Message, Subsession};
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
    phase: Phase,
    facts: Option<Facts>,
    cutoff: Option<Cutoff>,
    settled: bool,
    gone: bool,
}

impl Tail {
    pub fn start(ctx: &mut Context, session: Subsession, token: Token, inner: bool) -> Self {
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
            phase: Phase::Locking,
            facts: None,
            cutoff: None,
            settled: false,
            gone: false,
        }
    }

    /// Continues after a restart. Either path works until the left anchor names one.
    pub fn restore(ctx: &mut Context, session: Subsession, token: Token, inner: bool) -> Self {
        let mut tail = Tail::new(session, token, inner);
        tail.hold(ctx);
        tail.phase = Phase::SettingUp;
        let change = ctx.change;
        ctx.send_reliably(tail.left(), Message::Query { change });
        tail
    }

    fn hold(&self, ctx: &mut Context) {
        let session = self.own();
        ctx.command(Chain::Hold { session });
    }

    pub fn session(&self) -> Subsession {
        self.session
    }

    /// Returns the session as the locked side of this host has it: see [`side_of`].
    pub fn own(&self) -> Subsession {
        side_of(&self.session, self.inner)
    }

    /// Returns the host that decides.
    pub fn left(&self) -> HostId {
        self.session.left.ip()
    }

    /// Sets the time after which the left anchor is asked for the state of the change, if it is
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
        match message {
            Message::Extend { .. } if self.phase == Phase::SettingUp => self.say_extended(ctx),
            Message::Switched { cutoff, .. } if self.phase == Phase::SettingUp => {
                self.switch(ctx, cutoff)
            }
            Message::Switched { .. } if self.phase == Phase::Draining => {
                if !self.settled {
                    ctx.drop_pending();
                    self.wait(ctx);
                }
                self.say_switched(ctx)
            }
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

    pub fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Locked { result, .. } if self.phase == Phase::Locking => match result {
                Ok(facts) => self.extend(ctx, facts),
                Err(reason) => self.refuse(ctx, reason),
            },
            HostEvent::Prepared { result, .. } if self.phase == Phase::Preparing => match result {
                Ok(()) => {
                    self.phase = Phase::SettingUp;
                    ctx.report(Role::Tail, self.session, Progress::SetUp);
                    self.wait(ctx);
                    self.say_extended(ctx)
                }
                Err(reason) => self.refuse(ctx, reason),
            },
            HostEvent::Prepared {
                result: Err(reason),
                ..
            } if self.phase == Phase::SettingUp && !self.is_restored() => {
                // The new path rejects the answers of this end: the left anchor cancels.
                let change = ctx.change;
                let result = Err(reason);
                ctx.say(self.left(), Message::Extended { change, result });
                Flow::On
            }
            HostEvent::CutDone { cutoff, .. } if self.phase == Phase::Cutting => {
                self.cutoff = Some(cutoff);
                self.phase = Phase::Draining;
                ctx.report(Role::Tail, self.session, Progress::Switched);
                self.wait(ctx);
                self.say_switched(ctx)
            }
            HostEvent::Drained { .. } if self.phase >= Phase::Cutting && !self.settled => {
                self.settled = true;
                ctx.report(Role::Tail, self.session, Progress::Drained);
                ctx.drop_pending();
                ctx.no_deadline();
                let change = ctx.change;
                // Repeated until `Done` or `Cancel` arrives.
                ctx.send_reliably(self.left(), Message::Settled { change });
                Flow::On
            }
            HostEvent::PersistFailed { error, .. } if self.phase <= Phase::SettingUp => {
                ctx.purge();
                self.refuse(ctx, Reason::NoRecord(error))
            }
            HostEvent::PersistFailed { error, .. } => {
                ctx.trouble(Reason::NoRecord(error));
                Flow::On
            }
            // Both anchors may be on the new path for good, and a reset may not have reached
            // anybody. The left anchor decides.
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
            return self.roll_back(ctx, Reason::Closing);
        }
        if self.phase < Phase::SettingUp {
            return self.refuse(ctx, Reason::TimedOut(self.phase));
        }
        let change = ctx.change;
        ctx.send_reliably(self.left(), Message::Query { change });
        Flow::On
    }

    fn extend(&mut self, ctx: &mut Context, facts: Facts) -> Flow {
        self.facts = Some(facts);
        self.phase = Phase::Preparing;
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
        let result = self.facts.ok_or(Reason::Restarted);
        ctx.say(self.left(), Message::Extended { change, result });
        Flow::On
    }

    fn switch(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        ctx.drop_pending();
        ctx.no_deadline();
        self.phase = Phase::Cutting;
        ctx.command(Chain::SetCutIn { cutoff });
        ctx.command(Chain::Cut);
        Flow::On
    }

    fn say_switched(&self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        if let Some(cutoff) = self.cutoff {
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

    /// Returns true if a former process began this part. That process had the facts.
    fn is_restored(&self) -> bool {
        self.phase > Phase::Locking && self.facts.is_none()
    }

    /// Returns true if `Done` is late. A change is done only after this host has switched. If this
    /// process has not switched, a former one did, and completed the change; a late message then
    /// began this part anew.
    fn is_belated(&self) -> bool {
        self.facts.is_some() && self.cutoff.is_none()
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
        if self.phase > Phase::Locking {
            ctx.command(Chain::Abandon);
            ctx.command(Chain::Release);
            ctx.erase();
        }
        ctx.unlock(self.own());
        let end = match self.phase {
            Phase::Locking => Progress::Refused(reason.clone()),
            _ => Progress::RolledBack(reason.clone()),
        };
        ctx.report(Role::Tail, self.session, end);
        Flow::End(Err(reason))
    }
}
