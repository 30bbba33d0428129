//! The end of a change at the middlebox's host.

use super::*;

impl Middle {
    pub(super) fn close(&mut self, ctx: &mut Context) -> Flow {
        let (Some(b), Stage::Closing { tries }) = (self.b, &mut self.stage) else {
            return ctx.stale();
        };
        *tries += 1;
        ctx.drop_pending();
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
        if self.phase() != Phase::Locked {
            return self.refuse(ctx, reason, left_knows);
        }
        ctx.erase();
        ctx.report(Role::Middle, self.a, Progress::RolledBack(reason.clone()));
        self.cancel_anchors(ctx, reason, left_knows)
    }

    /// Ends a change of which nothing is recorded.
    pub(super) fn refuse(&mut self, ctx: &mut Context, reason: Reason, left_knows: bool) -> Flow {
        ctx.report(Role::Middle, self.a, Progress::Refused(reason.clone()));
        self.cancel_anchors(ctx, reason, left_knows)
    }

    fn cancel_anchors(&mut self, ctx: &mut Context, reason: Reason, left_knows: bool) -> Flow {
        let change = ctx.change;
        ctx.drop_pending();
        ctx.no_deadline();
        let asked = matches!(self.stage, Stage::Claimed(_) | Stage::Locked { .. });
        if asked && !left_knows {
            let reason = reason.clone();
            ctx.say(self.left(), Message::NackLock { change, reason });
        }
        let flow = self.finish(ctx, Err(reason.clone()));
        match self.right() {
            Some(_) if asked => {
                let cancel = Message::Cancel {
                    change,
                    reason: reason.clone(),
                };
                self.notify_right(ctx, reason, cancel)
            }
            _ => flow,
        }
    }

    /// Repeats this message to the right anchor until it is answered.
    fn notify_right(&mut self, ctx: &mut Context, why: Reason, message: Message) -> Flow {
        self.stage = Stage::Cancelling { why };
        if let Some(right) = self.right() {
            ctx.send_reliably(right, message);
        }
        ctx.deadline(CANCEL);
        Flow::On
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
        if self.right().is_none() {
            return flow;
        }
        let back = Message::Back {
            change: ctx.change,
            round,
            reason: reason.clone(),
        };
        self.notify_right(ctx, reason, back)
    }

    pub(super) fn cancelled(&self) -> Flow {
        Flow::End(Err(match &self.stage {
            Stage::Cancelling { why } => why.clone(),
            _ => Reason::Cancelled,
        }))
    }

    pub(super) fn finish(&mut self, ctx: &mut Context, result: Result<(), Reason>) -> Flow {
        ctx.finish([Some(self.a), self.b], self.asker, result)
    }

    /// Cancels at the operator's request. This host can cancel until it has sent the plan.
    /// Afterwards the left anchor can, until it cuts.
    pub(in super::super) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        match self.stage {
            Stage::Measuring | Stage::Claimed(_) => return self.fail(ctx, reason, false),
            Stage::Locked {
                switched: false, ..
            } => {}
            _ => return ctx.stale(),
        }
        let change = ctx.change;
        ctx.drop_pending();
        ctx.send_reliably(self.left(), Message::Cancel { change, reason });
        ctx.deadline(SILENCE);
        Flow::On
    }

    pub(super) fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        match &mut self.stage {
            Stage::Measuring | Stage::Claimed(_) => self.fail(ctx, Reason::Closing, false),
            Stage::Locked { switched, gone, .. } => {
                *gone = true;
                if !*switched {
                    return self.cancel(ctx, Reason::Closing);
                }
                self.watch_gone(ctx);
                Flow::On
            }
            Stage::Closing { .. } | Stage::Cancelling { .. } => Flow::On,
        }
    }

    pub(super) fn watch_gone(&self, ctx: &mut Context) {
        if let Stage::Locked { gone: true, .. } = self.stage {
            ctx.deadline(TWO_MSL);
        }
    }
}
