//! The steps after the cut: every failure is met by going on.

use super::*;

impl Left {
    pub(super) fn switched(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        let Some(plan) = self.plan else {
            return ctx.stale();
        };
        let cutoff = cutoff.moved(plan.translation.seq_out);
        self.cutoff = Some(cutoff);
        self.stage = Stage::Switching;
        ctx.report(Role::Left, self.a, Progress::Switched);
        let change = ctx.change;
        ctx.send_reliably(self.right(), Message::Switched { change, cutoff });
        ctx.say(self.middle(), Message::Switched { change, cutoff });
        self.check_later(ctx);
        self.watch_gone(ctx);
        Flow::On
    }

    pub(super) fn right_switched(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        let Some(plan) = self.plan else {
            return ctx.stale();
        };
        ctx.drop_pending();
        self.cut_in = true;
        self.stage = Stage::Draining;
        self.say_suspect(ctx);
        ctx.command(Anchor::SetCutIn {
            cutoff: cutoff.moved(plan.translation.seq_in),
        });
        self.maybe_complete(ctx)
    }

    pub(super) fn maybe_complete(&mut self, ctx: &mut Context) -> Flow {
        let drained = self.drained || self.gone;
        let settled =
            self.phase() == Phase::Draining || (self.phase() == Phase::Switching && self.gone);
        // A suspected path is not completed.
        let sure = !self.suspects() || self.gone;
        if drained && self.right_drained && settled && sure {
            return self.complete(ctx);
        }
        Flow::On
    }

    pub(super) fn complete(&mut self, ctx: &mut Context) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        self.stage = Stage::Completing { right_done: false };
        ctx.drop_pending();
        ctx.no_deadline();
        self.persist(ctx, LeftStage::Completing { new });
        let change = ctx.change;
        ctx.command(Anchor::Complete);
        ctx.send_reliably(self.right(), Message::Done { change });
        self.watch_gone(ctx);
        Flow::On
    }

    /// Handles `DoneAck`. The middle is released last: while the right anchor is in two paths, its
    /// end may still retransmit data that only the middlebox can acknowledge.
    pub(super) fn acknowledged(&mut self, ctx: &mut Context, from_right: bool) -> Flow {
        let change = ctx.change;
        match (&mut self.stage, from_right) {
            (Stage::Completing { right_done }, true) if !*right_done => {
                *right_done = true;
                ctx.drop_pending();
                ctx.send_reliably(self.middle(), Message::Done { change });
                Flow::On
            }
            (Stage::Completing { right_done: true }, false) => self.removed(ctx),
            _ => ctx.stale(),
        }
    }

    pub(super) fn removed(&mut self, ctx: &mut Context) -> Flow {
        self.let_go(ctx);
        ctx.erase();
        ctx.report(Role::Left, self.a, Progress::Removed);
        Flow::End(Ok(()))
    }

    /// Ends the session for both ends, because the data that the middlebox held is lost. No path is
    /// taken.
    pub(super) fn break_off(&mut self, ctx: &mut Context, bytes: u32) -> Flow {
        let change = ctx.change;
        let reason = Reason::MiddleboxDied(bytes);
        ctx.command(Anchor::Reset);
        ctx.command(Anchor::Release);
        self.let_go(ctx);
        ctx.drop_pending();
        (self.liveness, self.muting) = (Liveness::Presumed, false);
        self.stage = Stage::Cancelling {
            why: reason.clone(),
            returns: false,
        };
        ctx.report(Role::Left, self.a, Progress::Lost(reason));
        let message = Message::Lost { change, bytes };
        ctx.send_reliably(self.right(), message.clone());
        ctx.send_reliably(self.middle(), message);
        ctx.deadline(CANCEL);
        Flow::On
    }

    pub(super) fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        if self.may_cancel() {
            return self.cancel(ctx, Reason::Closing);
        }
        self.gone = true;
        self.clear_suspicion(ctx);
        self.watch_gone(ctx);
        if self.phase() == Phase::Cutting {
            ctx.deadline(CUT_AFTER_END);
        }
        self.maybe_complete(ctx)
    }

    pub(super) fn watch_gone(&self, ctx: &mut Context) {
        if self.gone {
            ctx.deadline(TWO_MSL);
        }
    }
}
