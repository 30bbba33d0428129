//! Everything can be taken back until the change is completed.

use super::*;

impl Head {
    /// Returns to the earlier path, here at once and then at the right anchor. While the right
    /// anchor still takes the new path, that path must stay open.
    pub(in super::super) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if self.phase() >= Phase::Completing {
            return ctx.stale();
        }
        self.take_back(ctx, reason, Extent::of(self.phase()))
    }

    /// Cancels a change that had come this far.
    pub(super) fn take_back(&mut self, ctx: &mut Context, why: Reason, extent: Extent) -> Flow {
        ctx.drop_pending();
        self.waiting.clear();
        self.unreported.clear();
        self.have_abandoned(ctx, why.clone());
        self.stage = Stage::Cancelling {
            why,
            extent,
            returned: Returned::Neither,
            reported: false,
        };
        ctx.deadline(CANCEL);
        match self.left {
            LeftAnchor::Led(_) => Flow::On,
            LeftAnchor::Here | LeftAnchor::Released => self.cancel_right(ctx),
        }
    }

    /// Cancels at the right anchor, since the left anchor has returned.
    pub(super) fn cancel_right(&mut self, ctx: &mut Context) -> Flow {
        let Stage::Cancelling {
            why,
            extent,
            returned,
            ..
        } = &mut self.stage
        else {
            return ctx.stale();
        };
        *returned = Returned::Left;
        if *extent == Extent::Locked {
            return self.dismiss_new(ctx);
        }
        let (change, reason) = (ctx.change, why.clone());
        ctx.send_reliably(self.right(), Message::Cancel { change, reason });
        ctx.deadline(CANCEL);
        Flow::On
    }

    /// Handles the silence of a host that was notified of the cancel.
    pub(super) fn late_to_return(
        &mut self,
        ctx: &mut Context,
        returned: Returned,
        extent: Extent,
    ) -> Flow {
        match (returned, extent) {
            // As long as an anchor is silent, its end of the new path is needed. The anchor is
            // notified until it answers.
            (Returned::Neither | Returned::Left, Extent::Taken) => {
                self.tell_end(ctx);
                Flow::On
            }
            (Returned::Neither | Returned::Left, _) => self.dismiss_new(ctx),
            (Returned::Both, _) if !self.moving.is_empty() => {
                self.moving.clear();
                self.dismiss_new(ctx)
            }
            (Returned::Both, _) => self.rolled_back(ctx),
        }
    }

    /// Dismisses the hosts of the new chain. The right anchor has returned too, or will when it
    /// asks.
    pub(super) fn dismiss_new(&mut self, ctx: &mut Context) -> Flow {
        let Stage::Cancelling {
            extent, returned, ..
        } = &mut self.stage
        else {
            return ctx.stale();
        };
        *returned = Returned::Both;
        let extent = *extent;
        ctx.drop_pending();
        if !self.moving.is_empty() {
            // State that is installed after the host was asked to forget it would remain.
            ctx.deadline(STATE);
            return Flow::On;
        }
        self.have_released(ctx);
        let (change, session) = (ctx.change, self.session());
        // A host that was not enlisted has nothing to forget.
        let hosts = match extent {
            Extent::Locked => Vec::new(),
            _ => hosts_of(self.order.segment_after()),
        };
        self.waiting.extend(&hosts);
        if self.waiting.is_empty() {
            return self.rolled_back(ctx);
        }
        for host in hosts {
            let scope = match (self.is_staying(host), extent) {
                (true, Extent::Opened | Extent::Taken) => Scope::NewPath,
                // Of two paths that the host may have since an earlier change, one is in use.
                (true, _) => Scope::Unopened,
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
        if self.left == LeftAnchor::Here {
            ctx.command(Chain::Release);
        }
        self.let_go(ctx);
        self.tell_end(ctx);
        let why = match &self.stage {
            Stage::Cancelling { why, .. } => why.clone(),
            _ => Reason::Cancelled,
        };
        Flow::End(Err(why))
    }

    /// Reports the end of a cancelled change, once.
    pub(super) fn tell_end(&mut self, ctx: &mut Context) {
        let session = self.session();
        if let Stage::Cancelling {
            why,
            extent,
            reported: reported @ false,
            ..
        } = &mut self.stage
        {
            *reported = true;
            let end = match extent {
                Extent::Locked => Progress::Refused(why.clone()),
                _ => Progress::RolledBack(why.clone()),
            };
            ctx.report(Role::Head, session, end);
        }
    }

    pub(super) fn no_record(&mut self, ctx: &mut Context, error: String) -> Flow {
        let reason = Reason::NoRecord(error);
        let extent = match self.stage {
            Stage::Completing { recorded: true } | Stage::Closing | Stage::Cancelling { .. } => {
                ctx.trouble(reason);
                return Flow::On;
            }
            Stage::Locking | Stage::Preparing { .. } => Extent::Locked,
            _ => Extent::of(self.phase()),
        };
        // No host has received anything yet that depends on the record.
        ctx.purge();
        self.moving.clear();
        if let (Extent::Locked, LeftAnchor::Led(_)) = (extent, self.left) {
            self.left = LeftAnchor::Released;
        }
        self.take_back(ctx, reason, extent)
    }
}
