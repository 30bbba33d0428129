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

    /// Instructs the left anchor: by a command if that is this host, else by a message.
    fn have_left(&self, ctx: &mut Context, command: Chain, message: Message) {
        match self.order.left() {
            None => ctx.command(command),
            Some(left) => {
                ctx.drop_pending_to(left);
                ctx.send_reliably(left, message);
            }
        }
    }

    pub(super) fn have_opened(&self, ctx: &mut Context) {
        let change = ctx.change;
        let (chain, token, right) = (self.order.path(), self.token, self.right_reach);
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
        self.waiting.extend(self.order.left());
    }

    /// Returns the left anchor to the earlier path, whatever the end of the change is.
    pub(super) fn have_abandoned(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        let reason = self.why.clone().unwrap_or(Reason::Cancelled);
        match self.led {
            // Another host that was not asked has nothing to take back.
            false if self.order.left().is_some() => {}
            _ => {
                let command = Chain::Abandon;
                self.have_left(ctx, command, Message::Cancel { change, reason });
            }
        }
        self.left_back = !self.led;
    }

    /// Makes the left anchor forget the new path, which nobody uses any more.
    pub(super) fn have_released(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        if self.led {
            self.waiting.extend(self.order.left());
        }
        if self.led || self.order.left().is_none() {
            let command = Chain::Release;
            self.have_left(ctx, command, Message::Release { change });
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
                Ok(facts) if self.phase == Phase::Locking => {
                    self.drop_pending_to_left(ctx);
                    self.enlist(ctx, facts)
                }
                Ok(_) => ctx.stale(),
                Err(reason) => self.left_refuses(ctx, reason),
            },
            Message::Opened { result, .. } if self.phase == Phase::SettingUp => {
                self.drop_pending_to_left(ctx);
                match result {
                    Ok(()) => self.switch(ctx),
                    Err(reason) => self.cancel(ctx, reason),
                }
            }
            Message::Switched { cutoff, .. } if self.phase == Phase::Cutting => {
                self.drop_pending_to_left(ctx);
                self.switched(ctx, cutoff)
            }
            Message::Settled { .. } if self.phase == Phase::Draining => {
                self.drop_pending_to_left(ctx);
                self.settles(ctx)
            }
            Message::DoneAck { .. } if self.phase == Phase::Completing => self.done_with(ctx, from),
            Message::Abandoned { .. } | Message::CancelAck { .. }
                if self.phase == Phase::Cancelling && !self.left_back =>
            {
                self.drop_pending_to_left(ctx);
                self.left_back = true;
                self.cancel_right(ctx)
            }
            Message::Released { .. } => self.dismissed(ctx, from),
            Message::Query { .. } => self.tell_left(ctx, from),
            _ => ctx.stale(),
        }
    }

    /// Handles a refusal: the left anchor has released its side.
    fn left_refuses(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let cancels = self.phase == Phase::Cancelling;
        if self.phase >= Phase::Completing && (!cancels || self.left_back) {
            return ctx.stale();
        }
        self.led = false;
        self.drop_pending_to_left(ctx);
        if cancels {
            self.left_back = true;
            return self.cancel_right(ctx);
        }
        self.cancel(ctx, reason)
    }

    fn drop_pending_to_left(&self, ctx: &mut Context) {
        if let Some(left) = self.order.left() {
            ctx.drop_pending_to(left);
        }
    }

    /// Answers the left anchor with the information that this host does not repeat by itself.
    fn tell_left(&mut self, ctx: &mut Context, from: &[HostId]) -> Flow {
        let (change, phase) = (ctx.change, self.phase);
        let answer = match phase {
            // The left anchor has restarted. The facts of its former process are out of date.
            Phase::Locking => return self.cancel(ctx, Reason::Restarted),
            Phase::Cancelling => Message::Cancel {
                change,
                reason: self.why.clone().unwrap_or(Reason::Cancelled),
            },
            Phase::Completing | Phase::Closing => Message::Done { change },
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
