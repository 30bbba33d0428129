//! The end of a change at the middlebox's host.

use super::*;

impl Middle {
    pub(super) fn close(&mut self, ctx: &mut Context) -> Flow {
        let Some(b) = self.b else {
            return ctx.stale();
        };
        ctx.drop_pending();
        self.closes += 1;
        ctx.command(Proxy::Close {
            subsession_a: self.a,
            subsession_b: b,
        });
        ctx.deadline(CLOSE);
        Flow::On
    }

    pub(super) fn removed(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        ctx.erase();
        ctx.say(self.left(), Message::DoneAck { change });
        ctx.report(Role::Middle, self.a, Progress::Removed);
        self.finish(ctx, Ok(()))
    }

    /// Ends the change; everything stays as it was. `left_knows`: the left anchor has reported the
    /// failure itself.
    pub(super) fn fail(&mut self, ctx: &mut Context, reason: Reason, left_knows: bool) -> Flow {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.no_deadline();
        let end = match self.phase {
            Phase::Locked => {
                ctx.erase();
                Progress::RolledBack(reason.clone())
            }
            _ => Progress::Refused(reason.clone()),
        };
        let asked = matches!(self.phase, Phase::Leaving | Phase::Locking | Phase::Locked);
        if asked && !left_knows {
            let reason = reason.clone();
            ctx.say(self.left(), Message::NackLock { change, reason });
        }
        ctx.report(Role::Middle, self.a, end);
        let flow = self.finish(ctx, Err(reason.clone()));
        match self.right() {
            Some(right) if asked => {
                self.phase = Phase::Cancelling;
                self.why = Some(reason.clone());
                ctx.send_reliably(right, Message::Cancel { change, reason });
                ctx.deadline(CANCEL);
                Flow::On
            }
            _ => flow,
        }
    }

    /// Ends the change without a removal: the session has ended first, or has returned to the old
    /// path.
    pub(super) fn abandoned(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        ctx.erase();
        ctx.report(Role::Middle, self.a, Progress::given_up(reason.clone()));
        self.finish(ctx, Err(reason))
    }

    /// Forwards the anchors' messages about a new path that has died. The way between the anchors
    /// may carry nothing.
    pub(super) fn pass_on(&self, ctx: &mut Context, from_right: bool, message: Message) -> Flow {
        match (from_right, self.right()) {
            (true, _) => ctx.say(self.left(), message),
            (false, Some(right)) => ctx.say(right, message),
            (false, None) => return ctx.stale(),
        }
        Flow::On
    }

    /// Handles `Back`: both anchors take the old path again. The right anchor may not know it yet.
    pub(super) fn taken_back(&mut self, ctx: &mut Context, round: u32, reason: Reason) -> Flow {
        ctx.drop_pending();
        let flow = self.abandoned(ctx, reason.clone());
        let Some(right) = self.right() else {
            return flow;
        };
        self.phase = Phase::Cancelling;
        self.why = Some(reason.clone());
        let change = ctx.change;
        let back = Message::Back {
            change,
            round,
            reason,
        };
        ctx.send_reliably(right, back);
        ctx.deadline(CANCEL);
        Flow::On
    }

    pub(super) fn cancelled(&self) -> Flow {
        Flow::End(Err(self.why.clone().unwrap_or(Reason::Cancelled)))
    }

    pub(super) fn finish(&mut self, ctx: &mut Context, result: Result<(), Reason>) -> Flow {
        let change: ChangeId = ctx.change;
        ctx.unlock(self.a);
        if let Some(b) = self.b {
            ctx.unlock(b);
        }
        if let Some(asker) = self.asker {
            let result = result.clone();
            ctx.say(asker, Message::Asked { change, result });
        }
        Flow::End(result)
    }

    /// Cancels at the operator's request. This host can cancel until it has sent the plan.
    /// Afterwards the left anchor can, until it cuts.
    pub(in super::super) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if self.phase < Phase::Locked {
            return self.fail(ctx, reason, false);
        }
        if self.phase > Phase::Locked || self.switched {
            return ctx.stale();
        }
        let change = ctx.change;
        ctx.drop_pending();
        ctx.send_reliably(self.left(), Message::Cancel { change, reason });
        ctx.deadline(SILENCE);
        Flow::On
    }

    pub(super) fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        self.gone = true;
        match self.phase {
            Phase::Locked if !self.switched => self.cancel(ctx, Reason::Closing),
            Phase::Locked => {
                self.watch_gone(ctx);
                Flow::On
            }
            phase if phase < Phase::Locked => self.fail(ctx, Reason::Closing, false),
            _ => Flow::On,
        }
    }

    pub(super) fn watch_gone(&self, ctx: &mut Context) {
        if self.gone {
            ctx.deadline(TWO_MSL);
        }
    }
}
