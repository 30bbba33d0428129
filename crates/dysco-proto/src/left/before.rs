//! The steps up to the cut: everything can be taken back.

use dysco_common::two_paths::Fins;

use super::*;

impl Left {
    pub(super) fn locked_here(&mut self, ctx: &mut Context, result: Result<Facts, Reason>) -> Flow {
        match result {
            Ok(facts) if self.facts.is_none() => {
                self.facts = Some(facts);
                let message = Message::RequestLock {
                    change: ctx.change,
                    subsession: self.a,
                    facts,
                    attempt: self.attempt,
                };
                ctx.send_reliably(self.middle(), message);
                ctx.command(Anchor::Reserve {
                    subsession_a: self.a,
                    subsession_b: self.b,
                });
                Flow::On
            }
            Ok(_) => ctx.stale(),
            Err(reason) => {
                let change = ctx.change;
                let nack = reason.clone();
                ctx.say(
                    self.middle(),
                    Message::NackLock {
                        change,
                        reason: nack,
                    },
                );
                self.refused(ctx, reason)
            }
        }
    }

    /// Asks the right anchor to receive on the new path, while the middlebox measures itself.
    pub(super) fn reserved(&mut self, ctx: &mut Context, new: Subsession) -> Flow {
        if self.new.is_some() {
            return ctx.stale();
        }
        self.new = Some(new);
        if self.phase() == Phase::Preparing {
            return self.prepare(ctx, new);
        }
        self.set_up = true;
        let message = self.new_path(ctx, new, false);
        ctx.say(self.right(), message);
        Flow::On
    }

    fn new_path(&self, ctx: &Context, new: Subsession, locked: bool) -> Message {
        Message::SetUp {
            change: ctx.change,
            subsession: self.b,
            new,
            locked,
        }
    }

    pub(super) fn refused(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let change = ctx.change;
        if self.facts.is_some() {
            ctx.command(Anchor::Release);
        }
        self.let_go(ctx);
        if self.set_up {
            let reason = reason.clone();
            ctx.say(self.right(), Message::Cancel { change, reason });
        }
        ctx.erase();
        ctx.report(Role::Left, self.a, Progress::Refused(reason.clone()));
        Flow::End(Err(reason))
    }

    pub(super) fn granted(&mut self, ctx: &mut Context, plan: Plan) -> Flow {
        ctx.drop_pending();
        // A lock that this host has not taken cannot be granted, and neither can that of another
        // session.
        if self.facts.is_none() || plan.subsession != self.b {
            return self.cancel(ctx, Reason::Inconsistent(MessageName::AckLock));
        }
        self.plan = Some(plan);
        self.stage = Stage::Preparing;
        ctx.report(Role::Left, self.a, Progress::Locked);
        self.persist(ctx, LeftStage::Preparing);
        ctx.deadline(PREPARE);
        match self.new {
            Some(new) => self.prepare(ctx, new),
            None => Flow::On,
        }
    }

    pub(super) fn prepare(&mut self, ctx: &mut Context, new: Subsession) -> Flow {
        self.new = Some(new);
        ctx.command(Anchor::Prepare {
            side: Side::Left,
            own: self.a,
            new,
            translation: self.plan.map(|p| p.translation).unwrap_or_default(),
        });
        Flow::On
    }

    pub(super) fn prepared(&mut self, ctx: &mut Context) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        self.stage = Stage::SettingUp;
        self.set_up = true;
        ctx.deadline(SET_UP);
        if self.ready {
            return Self::try_path(ctx);
        }
        let message = self.new_path(ctx, new, true);
        ctx.send_reliably(self.right(), message);
        Flow::On
    }

    /// Handles `SetUpAck`: the right anchor receives on the new path.
    pub(super) fn peer_receives(&mut self, ctx: &mut Context) -> Flow {
        if self.ready {
            return ctx.stale();
        }
        self.ready = true;
        match self.phase() {
            Phase::SettingUp => Self::try_path(ctx),
            _ => Flow::On,
        }
    }

    fn try_path(ctx: &mut Context) -> Flow {
        ctx.drop_pending();
        ctx.command(Anchor::Try);
        Flow::On
    }

    /// Takes the new path, unless the middlebox has closed by itself or by the death of its
    /// process. An end that received its FIN would acknowledge it on the new path as well. The
    /// other end discards segments with such an acknowledgement number (RFC 5961, section 5).
    pub(super) fn opened(&mut self, ctx: &mut Context, here: Fins, there: Fins) -> Flow {
        if here.agree(there) {
            self.cut(ctx)
        } else {
            self.cancel(ctx, Reason::Closing)
        }
    }

    /// Cuts. The change cannot be taken back any more, unless the new path dies (`path_liveness`).
    pub(super) fn cut(&mut self, ctx: &mut Context) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        ctx.drop_pending();
        ctx.no_deadline();
        self.stage = Stage::Cutting;
        ctx.report(Role::Left, self.a, Progress::SetUp);
        self.persist(ctx, LeftStage::Cut { new, round: 0 });
        ctx.command(Anchor::Cut);
        Flow::On
    }

    /// Takes everything back here, and notifies the others. Only before the cut.
    pub(in super::super) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if !self.may_cancel() {
            return ctx.stale();
        }
        let change = ctx.change;
        let prepared = self.plan.is_some();
        if prepared {
            ctx.command(Anchor::Unprepare);
        }
        ctx.command(Anchor::Release);
        self.let_go(ctx);
        ctx.drop_pending();
        self.stage = Stage::Cancelling {
            why: reason.clone(),
            returns: false,
        };
        let end = match prepared {
            true => Progress::RolledBack(reason.clone()),
            false => Progress::Refused(reason.clone()),
        };
        ctx.report(Role::Left, self.a, end);
        let message = Message::Cancel { change, reason };
        match (self.set_up, prepared) {
            (true, true) => ctx.send_reliably(self.right(), message.clone()),
            // The right anchor may not have been introduced. The middle notifies it, or it asks.
            (true, false) => ctx.say(self.right(), message.clone()),
            (false, _) => {}
        }
        ctx.send_reliably(self.middle(), message);
        ctx.deadline(CANCEL);
        Flow::On
    }

    /// Ends the change: the others know of it, or will ask. Until now a crash must find the record.
    pub(super) fn rolled_back(&self, ctx: &mut Context) -> Flow {
        ctx.erase();
        Flow::End(Err(match &self.stage {
            Stage::Cancelling { why, .. } => why.clone(),
            _ => Reason::Cancelled,
        }))
    }

    pub(super) fn no_record(&mut self, ctx: &mut Context, error: String) -> Flow {
        match self.phase() {
            Phase::Locking | Phase::Preparing => {}
            // The cut was ordered after the record, and has not been made.
            Phase::Cutting => self.stage = Stage::SettingUp,
            Phase::Switching | Phase::Draining | Phase::Cancelling
                if self.suspects() || self.returns() =>
            {
                return self.unrecorded(ctx, error);
            }
            _ => {
                ctx.trouble(Reason::NoRecord(error));
                return Flow::On;
            }
        }
        ctx.purge();
        self.cancel(ctx, Reason::NoRecord(error))
    }
}
