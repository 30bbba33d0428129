//! Actions of the left anchor: this host, or a host of the chain that gets instructions.

use super::*;

impl Head {
    /// Asks the left anchor to lock its side of the session, if that anchor is another host.
    pub(super) fn ask_left(&self, ctx: &mut Context) {
        let (change, session) = (ctx.change, self.session());
        if let Some(left) = self.order.left() {
            ctx.send_reliably(left, Message::Lead { change, session });
        }
    }

    /// Instructs the left anchor: by a command if that is this host, else by a message. An anchor
    /// that takes no part any more has nothing to do.
    fn have_left(&self, ctx: &mut Context, command: Chain, message: Message) {
        match self.left {
            LeftAnchor::Here => ctx.command(command),
            LeftAnchor::Led(left) => {
                ctx.drop_pending_to(left);
                ctx.send_reliably(left, message);
            }
            LeftAnchor::Released => {}
        }
    }

    pub(super) fn have_opened(&self, ctx: &mut Context, right: Reach) {
        let change = ctx.change;
        let (chain, token) = (self.order.path(), self.token);
        let command = Chain::Open {
            chain: chain.clone(),
            inner: self.order.inner_right().is_some(),
            token,
            delta: self.delta(),
            right,
        };
        let message = Message::Open {
            change,
            chain,
            token,
            right,
        };
        self.have_left(ctx, command, message);
    }

    pub(super) fn have_cut(&self, ctx: &mut Context) {
        let change = ctx.change;
        self.have_left(ctx, Chain::Cut, Message::Cut { change });
    }

    /// Reports the right anchor's cutoff to the left anchor.
    pub(super) fn have_settled(&self, ctx: &mut Context, cutoff: Cutoff) {
        let change = ctx.change;
        let command = Chain::SetCutIn { cutoff };
        self.have_left(ctx, command, Message::Switched { change, cutoff });
    }

    pub(super) fn have_completed(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        self.have_left(ctx, Chain::Complete, Message::Done { change });
        self.await_left();
    }

    /// Returns the left anchor to the earlier path, for any end of the change.
    pub(super) fn have_abandoned(&self, ctx: &mut Context, reason: Reason) {
        let change = ctx.change;
        self.have_left(ctx, Chain::Abandon, Message::Cancel { change, reason });
    }

    /// Makes the left anchor forget the new path, which nobody uses any more.
    pub(super) fn have_released(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        self.await_left();
        self.have_left(ctx, Chain::Release, Message::Release { change });
    }

    /// Waits for the answer of a left anchor that is another host.
    fn await_left(&mut self) {
        if let LeftAnchor::Led(left) = self.left {
            self.waiting.insert(left);
        }
    }

    /// Handles a message of a left anchor that is not this host.
    pub(super) fn left_says(
        &mut self,
        ctx: &mut Context,
        from: &[HostId],
        message: Message,
    ) -> Flow {
        match message {
            Message::Extended { result, .. } => match result {
                Ok(facts) if self.phase() == Phase::Locking => {
                    self.drop_pending_to_left(ctx);
                    self.enlist(ctx, facts)
                }
                Ok(_) => ctx.stale(),
                Err(reason) => self.left_refuses(ctx, reason),
            },
            Message::TellDelta { result, .. } if self.phase() == Phase::Preparing => {
                self.delta_reported(ctx, from, result)
            }
            Message::Opened { result, .. } if self.phase() == Phase::SettingUp => {
                self.drop_pending_to_left(ctx);
                match result {
                    Ok(()) => self.switch(ctx),
                    Err(reason) => self.cancel(ctx, reason),
                }
            }
            Message::Switched { cutoff, .. } if self.phase() == Phase::Cutting => {
                self.drop_pending_to_left(ctx);
                self.switched(ctx, cutoff)
            }
            Message::Settled { .. } if self.phase() == Phase::Draining => {
                self.drop_pending_to_left(ctx);
                match self.stage {
                    // The message about this is being repeated.
                    Stage::Draining {
                        unsettled: Unsettled::Right,
                        ..
                    } => Flow::On,
                    _ => self.left_settles(ctx),
                }
            }
            Message::DoneAck { .. } if self.phase() == Phase::Completing => {
                self.done_with(ctx, from)
            }
            Message::Abandoned { .. } | Message::CancelAck { .. }
                if self.returned() == Some(Returned::Neither) =>
            {
                self.drop_pending_to_left(ctx);
                self.cancel_right(ctx)
            }
            Message::Released { .. } => self.dismissed(ctx, from),
            Message::Query { .. } => self.tell_left(ctx, from),
            _ => ctx.stale(),
        }
    }

    /// Handles a refusal: the left anchor has released its side.
    fn left_refuses(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let cancels = match self.returned() {
            None if self.phase() < Phase::Completing => false,
            Some(Returned::Neither) => true,
            _ => return ctx.stale(),
        };
        self.left = LeftAnchor::Released;
        self.drop_pending_to_left(ctx);
        match cancels {
            true => self.cancel_right(ctx),
            false => self.cancel(ctx, reason),
        }
    }

    fn drop_pending_to_left(&self, ctx: &mut Context) {
        if let Some(left) = self.order.left() {
            ctx.drop_pending_to(left);
        }
    }

    /// Answers the left anchor with the information that this host does not repeat by itself.
    fn tell_left(&mut self, ctx: &mut Context, from: &[HostId]) -> Flow {
        let (change, phase) = (ctx.change, self.phase());
        let answer = match &self.stage {
            // The left anchor has restarted. The facts of its former process are out of date.
            Stage::Locking => return self.cancel(ctx, Reason::Restarted),
            Stage::Cancelling { why, .. } => {
                let reason = why.clone();
                Message::Cancel { change, reason }
            }
            Stage::Completing { .. } | Stage::Closing => Message::Done { change },
            _ => Message::Status { change, phase },
        };
        if let Some(to) = from.first() {
            ctx.say(*to, answer);
        }
        Flow::On
    }

    /// Records that an anchor will not take the earlier path any more.
    pub(super) fn done_with(&mut self, ctx: &mut Context, from: &[HostId]) -> Flow {
        let anchors = self.waiting.iter().filter(|h| from.contains(h));
        for host in anchors.copied().collect::<Vec<_>>() {
            self.waiting.remove(&host);
            ctx.drop_pending_to(host);
        }
        match self.waiting.is_empty() {
            true => self.dismiss_old(ctx),
            false => Flow::On,
        }
    }
}
