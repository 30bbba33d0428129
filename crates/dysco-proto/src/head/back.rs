//! Everything can be taken back until the change is completed.

use super::*;

impl Head {
    /// Returns to the earlier path, here at once and then at the right anchor. While the right
    /// anchor still takes the new path, that path must stay open.
    pub(in super::super) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if self.phase >= Phase::Completing {
            return ctx.stale();
        }
        self.begun = self.phase > Phase::Locking;
        ctx.drop_pending();
        self.phase = Phase::Cancelling;
        self.waiting.clear();
        self.unreported.clear();
        self.why = Some(reason.clone());
        self.have_abandoned(ctx);
        ctx.deadline(CANCEL);
        match self.left_back {
            true => self.cancel_right(ctx),
            false => Flow::On,
        }
    }

    /// Cancels at the right anchor, since the left anchor has returned.
    pub(super) fn cancel_right(&mut self, ctx: &mut Context) -> Flow {
        if !self.introduced {
            return self.dismiss_new(ctx);
        }
        let change = ctx.change;
        let reason = self.why.clone().unwrap_or(Reason::Cancelled);
        ctx.send_reliably(self.right(), Message::Cancel { change, reason });
        ctx.deadline(CANCEL);
        Flow::On
    }

    /// Dismisses the hosts of the new chain. The right anchor has returned too, or will when it
    /// asks.
    pub(super) fn dismiss_new(&mut self, ctx: &mut Context) -> Flow {
        ctx.drop_pending();
        (self.left_back, self.right_done) = (true, true);
        if !self.moving.is_empty() {
            // State that is installed after the host was asked to forget it would remain.
            ctx.deadline(STATE);
            return Flow::On;
        }
        self.have_released(ctx);
        let (change, session) = (ctx.change, self.session());
        // A host that was not enlisted has nothing to forget.
        let hosts = match self.introduced {
            true => hosts_of(self.order.segment_after()),
            false => Vec::new(),
        };
        self.waiting.extend(&hosts);
        if self.waiting.is_empty() {
            return self.rolled_back(ctx);
        }
        for host in hosts {
            let scope = match (self.is_staying(host), self.opened) {
                (true, true) => Scope::NewPath,
                // Of two paths that the host may have since an earlier change, one is in use.
                (true, false) => Scope::Unopened,
                (false, _) => Scope::Newcomer,
            };
            let message = Message::Dismiss {
                change,
                session,
                scope,
                paths: vec![self.order.number],
            };
            ctx.send_reliably(host, message);
        }
        ctx.deadline(DISMISS);
        Flow::On
    }

    pub(super) fn rolled_back(&mut self, ctx: &mut Context) -> Flow {
        if self.order.left().is_none() {
            ctx.command(Chain::Release);
        }
        self.let_go(ctx);
        self.tell_end(ctx);
        Flow::End(Err(self.why.clone().unwrap_or(Reason::Cancelled)))
    }

    /// Reports the end of the change, once.
    pub(super) fn tell_end(&mut self, ctx: &mut Context) {
        let reason = self.why.clone().unwrap_or(Reason::Cancelled);
        let end = match self.begun {
            true => Progress::RolledBack(reason),
            false => Progress::Refused(reason),
        };
        if !std::mem::replace(&mut self.reported, true) {
            ctx.report(Role::Head, self.session(), end);
        }
    }

    pub(super) fn no_record(&mut self, ctx: &mut Context, error: String) -> Flow {
        if self.phase > Phase::Completing || self.recorded {
            ctx.trouble(Reason::NoRecord(error));
            return Flow::On;
        }
        // No host has received anything yet that depends on the record.
        ctx.purge();
        self.moving.clear();
        self.phase = self.phase.min(Phase::Draining);
        if self.phase == Phase::Preparing {
            (self.phase, self.introduced) = (Phase::Locking, false);
        }
        if self.phase == Phase::Locking {
            self.led = false;
        }
        self.cancel(ctx, Reason::NoRecord(error))
    }
}
