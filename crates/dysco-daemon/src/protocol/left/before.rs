//! Up to the cut: everything can be taken back.

use super::*;

impl Left {
    pub(super) fn locked_here(&mut self, ctx: &mut Context, result: Result<Facts, Reason>) -> Flow {
        match result {
            Ok(facts) if self.facts.is_none() => {
                self.facts = Some(facts);
                let message = Message::RequestLock {
                    change: ctx.change,
                    subsession: self.a,
                    left: self.a.left.ip(),
                    left_facts: facts,
                    attempt: self.attempt,
                };
                ctx.insist(self.middle, message);
                Flow::On
            }
            Ok(_) => ctx.stale(),
            Err(reason) => {
                let change = ctx.change;
                let nack = reason.clone();
                ctx.say(
                    self.middle,
                    Message::NackLock {
                        change,
                        reason: nack,
                    },
                );
                self.refused(ctx, reason)
            }
        }
    }

    pub(super) fn refused(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        self.let_go(ctx);
        ctx.command(Command::Erase { change: ctx.change });
        ctx.report(Role::Left, self.a, Progress::Refused(reason.clone()));
        Flow::End(Err(reason))
    }

    pub(super) fn granted(&mut self, ctx: &mut Context, plan: Plan) -> Flow {
        ctx.hush();
        // A lock that this host has not taken itself cannot be granted, and the
        // right anchor is where the plan's subsession ends.
        if self.facts.is_none() || plan.right != plan.subsession.right.ip() {
            return self.cancel(ctx, Reason::Inconsistent(MessageName::AckLock));
        }
        self.plan = Some(plan);
        self.phase = Phase::Preparing;
        ctx.report(Role::Left, self.a, Progress::Locked);
        self.persist(ctx, LeftStage::Preparing);
        ctx.command(Command::Reserve {
            change: ctx.change,
            subsession_a: self.a,
            subsession_b: plan.subsession,
        });
        ctx.deadline(PREPARE);
        Flow::On
    }

    pub(super) fn prepare(&mut self, ctx: &mut Context, new: Subsession) -> Flow {
        self.new = Some(new);
        ctx.command(Command::Prepare {
            change: ctx.change,
            side: Side::Left,
            own: self.a,
            new,
            translation: self.plan.map(|p| p.translation).unwrap_or_default(),
        });
        Flow::On
    }

    pub(super) fn set_up(&mut self, ctx: &mut Context) -> Flow {
        let (Some(plan), Some(new)) = (self.plan, self.new) else {
            return ctx.stale();
        };
        self.phase = Phase::SettingUp;
        self.introduced = true;
        ctx.deadline(SET_UP);
        let message = Message::SetUp {
            change: ctx.change,
            subsession: plan.subsession,
            new,
        };
        ctx.insist(plan.right, message);
        Flow::On
    }

    /// No way back from here.
    pub(super) fn cut(&mut self, ctx: &mut Context) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        ctx.hush();
        ctx.no_deadline();
        self.phase = Phase::Cutting;
        ctx.report(Role::Left, self.a, Progress::SetUp);
        self.persist(ctx, LeftStage::Cut { new });
        ctx.command(Command::Cut { change: ctx.change });
        Flow::On
    }

    /// Takes everything back here and tells the others. Only before the cut.
    pub(in super::super) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        if !self.may_cancel() {
            return ctx.stale();
        }
        let change = ctx.change;
        let prepared = self.plan.is_some();
        if prepared {
            ctx.command(Command::Unprepare { change });
            ctx.command(Command::Release { change });
        }
        self.let_go(ctx);
        ctx.hush();
        self.phase = Phase::Cancelling;
        self.why = Some(reason.clone());
        let end = match prepared {
            true => Progress::RolledBack(reason.clone()),
            false => Progress::Refused(reason.clone()),
        };
        ctx.report(Role::Left, self.a, end);
        let message = Message::Cancel { change, reason };
        if let (true, Some(right)) = (self.introduced, self.right()) {
            ctx.insist(right, message.clone());
        }
        ctx.insist(self.middle, message);
        ctx.deadline(CANCEL);
        Flow::On
    }

    /// The others know, or will ask. Until now a crash must find the record.
    pub(super) fn rolled_back(&self, ctx: &mut Context) -> Flow {
        ctx.command(Command::Erase { change: ctx.change });
        Flow::End(Err(self.why.clone().unwrap_or(Reason::Cancelled)))
    }

    pub(super) fn no_record(&mut self, ctx: &mut Context, error: String) -> Flow {
        match self.phase {
            Phase::Locking | Phase::Preparing => {}
            // The cut was ordered behind the record: it has not been made.
            Phase::Cutting => self.phase = Phase::SettingUp,
            _ => {
                ctx.trouble(Reason::NoRecord(error));
                return Flow::On;
            }
        }
        ctx.purge();
        self.cancel(ctx, Reason::NoRecord(error))
    }
}
