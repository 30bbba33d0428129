//! The lock on its way through the middlebox's host, and back.

use super::*;

impl Middle {
    pub(super) fn measure(&self, ctx: &mut Context) {
        ctx.command(Command::Measure {
            change: ctx.change,
            subsession: self.a,
        });
        ctx.deadline(MEASURE);
    }

    pub(super) fn measured_first(&mut self, ctx: &mut Context, m: Measurement) -> Flow {
        if let Err(reason) = self.judge(ctx, &m) {
            return self.fail(ctx, reason, false);
        }
        self.phase = Phase::Leaving;
        let change = ctx.change;
        let subsession = self.a;
        ctx.insist(self.left(), Message::Leave { change, subsession });
        ctx.deadline(LEAVE);
        Flow::On
    }

    /// Takes both sessions, unless something already speaks against the change.
    pub(super) fn judge(&mut self, ctx: &mut Context, m: &Measurement) -> Result<(), Reason> {
        let (a, b) = (m.subsession_a, m.subsession_b);
        ctx.lock(a)?;
        self.a = a;
        ctx.lock(b)?;
        self.b = Some(b);
        self.measured = Some(*m);
        let (left, right) = (a.left.ip(), b.right.ip());
        for host in [left, right] {
            if ctx.core.is_me(host) {
                return Err(Reason::SameHost(host));
            }
        }
        if left == right {
            return Err(Reason::SameHost(left));
        }
        plan::check(m)
    }

    /// Forwards the lock to the right, under the neighbour's own subsession.
    pub(super) fn lock_requested(
        &mut self,
        ctx: &mut Context,
        left_facts: Facts,
        attempt: [u8; 16],
    ) -> Flow {
        let change = ctx.change;
        match (self.phase, self.b, &self.why) {
            (Phase::Leaving, Some(b), _) => {
                ctx.hush();
                self.left_facts = Some(left_facts);
                self.attempt = attempt;
                self.phase = Phase::Locking;
                let message = Message::RequestLock {
                    change,
                    subsession: b,
                    left: self.left(),
                    left_facts,
                    attempt,
                };
                ctx.insist(b.right.ip(), message);
                self.prove(ctx);
                ctx.deadline(LOCK);
                Flow::On
            }
            (Phase::Locked, _, _) => {
                self.say_granted(ctx);
                Flow::On
            }
            (Phase::Cancelling, _, Some(reason)) => {
                let reason = reason.clone();
                ctx.say(self.left(), Message::NackLock { change, reason });
                Flow::On
            }
            _ => ctx.stale(),
        }
    }

    /// Has the claim proven and the middlebox's clocks read, while the lock goes
    /// on to the right.
    fn prove(&mut self, ctx: &mut Context) {
        self.proven = None;
        self.proof_began = ctx.now;
        self.measure(ctx);
    }

    pub(super) fn granted(&mut self, ctx: &mut Context, plan: Plan) -> Flow {
        if self.plan.is_some() {
            return ctx.stale();
        }
        ctx.hush();
        if Some(plan.subsession) != self.b || Some(plan.right) != self.right() {
            return self.fail(ctx, Reason::Inconsistent(MessageName::AckLock), false);
        }
        self.plan = Some(plan);
        self.outdated = ctx.now.saturating_sub(self.proof_began) > FRESH;
        ctx.deadline(MEASURE);
        self.proven_or_granted(ctx)
    }

    /// Goes on when the claim is proven and the right anchor is locked.
    pub(super) fn proven_or_granted(&mut self, ctx: &mut Context) -> Flow {
        let (Some(m), Some(_)) = (&self.proven, self.plan) else {
            return Flow::On;
        };
        let m = **m;
        if self.outdated {
            self.outdated = false;
            self.prove(ctx);
            return Flow::On;
        }
        self.locked(ctx, m)
    }

    fn locked(&mut self, ctx: &mut Context, m: Measurement) -> Flow {
        let (Some(before), Some(plan), Some(left), Some(b)) =
            (self.measured, self.plan, self.left_facts, self.b)
        else {
            return ctx.stale();
        };
        let translation =
            steady(&before, &m).and_then(|()| plan::plan(&m, &left, &plan.right_facts));
        match translation {
            Err(reason) => self.fail(ctx, reason, false),
            Ok(translation) => {
                self.plan = Some(Plan {
                    translation,
                    ..plan
                });
                self.phase = Phase::Locked;
                ctx.report(Role::Middle, self.a, Progress::Locked);
                ctx.persist(RoleRecord::Middle {
                    a: self.a,
                    b,
                    left: self.left(),
                    asker: self.asker,
                });
                self.say_granted(ctx);
                ctx.deadline(SILENCE);
                Flow::On
            }
        }
    }

    pub(super) fn say_granted(&mut self, ctx: &mut Context) {
        let change = ctx.change;
        if let Some(plan) = self.plan {
            let attempt = self.attempt;
            let granted = Message::AckLock {
                change,
                attempt,
                plan,
            };
            ctx.say(self.left(), granted);
        }
    }
}

/// The middlebox added and removed no byte between the two.
pub(in super::super) fn steady(before: &Measurement, after: &Measurement) -> Result<(), Reason> {
    let pair = |m: &Measurement| (m.subsession_a, m.subsession_b);
    let deltas = |m: &Measurement| (m.delta_forward, m.delta_reverse);
    if deltas(before) == deltas(after) && pair(before) == pair(after) {
        return Ok(());
    }
    Err(Reason::DeltaMoved {
        before_forward: before.delta_forward,
        after_forward: after.delta_forward,
        before_reverse: before.delta_reverse,
        after_reverse: after.delta_reverse,
    })
}
