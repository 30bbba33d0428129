//! The end of a change at the left anchor of a segment.

use super::*;

impl Lead {
    pub(super) fn complete(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.command(Chain::Complete);
        ctx.erase();
        ctx.unlock(self.session);
        ctx.say(self.head(), Message::DoneAck { change });
        ctx.report(Role::Lead, self.session, Progress::Removed);
        Flow::End(Ok(()))
    }

    /// Returns to the earlier path. The new path is still received until the right anchor has
    /// returned as well.
    pub(super) fn abandon(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if self.phase() != Phase::Cancelling {
            self.persist(ctx, true);
            self.leave(ctx, Some(reason));
        }
        Flow::On
    }

    pub(super) fn leave(&mut self, ctx: &mut Context, why: Option<Reason>) {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.no_deadline();
        self.stage = Stage::Cancelling {
            why,
            switched: self.switched(),
            gone: self.is_gone(),
        };
        ctx.command(Chain::Abandon);
        ctx.send_reliably(self.head(), Message::Abandoned { change });
        if self.is_gone() {
            ctx.deadline(TWO_MSL);
        }
    }

    pub(super) fn persist(&self, ctx: &mut Context, abandoned: bool) {
        let session = self.session;
        ctx.persist(RoleRecord::Lead { session, abandoned });
    }

    /// Refuses: the deciding host is notified, and cancels.
    pub(super) fn refuse(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let change = ctx.change;
        let result = Err(reason.clone());
        ctx.say(self.head(), Message::Extended { change, result });
        self.let_go(ctx, reason)
    }

    /// Releases everything but the earlier path.
    pub(super) fn let_go(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        ctx.drop_pending();
        let end = match self.phase() {
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
