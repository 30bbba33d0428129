//! The steps from the request to leave until both anchors are locked and the plan is made.

use super::*;

impl Middle {
    pub(super) fn measure(&self, ctx: &mut Context) {
        ctx.command(Proxy::Measure { subsession: self.a });
        ctx.deadline(MEASURE);
    }

    pub(super) fn measured_first(&mut self, ctx: &mut Context, m: Measurement) -> Flow {
        if let Err(reason) = self.judge(ctx, &m) {
            return self.fail(ctx, reason, false);
        }
        let Some(b) = self.b else {
            return ctx.stale();
        };
        self.phase = Phase::Leaving;
        let (change, left) = (ctx.change, self.left());
        let leave = Message::Leave {
            change,
            subsession: self.a,
            beyond: b,
        };
        ctx.send_reliably(left, leave);
        if self.introduces_early() {
            self.introduce(ctx, b);
        }
        self.prove(ctx);
        ctx.deadline(LEAVE);
        Flow::On
    }

    fn introduce(&self, ctx: &mut Context, b: Subsession) {
        let introduce = Message::Introduce {
            change: ctx.change,
            subsession: b,
            left: self.left(),
        };
        ctx.send_reliably(b.right.ip(), introduce);
    }

    /// Locks both sessions, unless something already speaks against the change.
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

    /// Handles `RequestLock`: the left anchor is locked.
    pub(super) fn lock_requested(
        &mut self,
        ctx: &mut Context,
        facts: Facts,
        attempt: [u8; 16],
    ) -> Flow {
        let change = ctx.change;
        match (self.phase, &self.why) {
            (Phase::Leaving, _) => {
                ctx.drop_pending_to(self.left());
                self.left_facts = Some(facts);
                self.attempt = attempt;
                self.phase = Phase::Locking;
                if let (Some(b), false) = (self.b, self.introduces_early()) {
                    self.introduce(ctx, b);
                }
                self.compare_ages(ctx);
                ctx.deadline(LOCK);
                self.proven_or_granted(ctx)
            }
            (Phase::Locked, _) => {
                self.say_granted(ctx);
                Flow::On
            }
            (Phase::Cancelling, Some(reason)) => {
                let reason = reason.clone();
                ctx.say(self.left(), Message::NackLock { change, reason });
                Flow::On
            }
            _ => ctx.stale(),
        }
    }

    /// Returns true if the right anchor is asked before the left one has answered. This is not done
    /// if it might be in vain, because the right anchor would stay locked until this host gives up.
    /// It is not done for a relay either: its right anchor may send its replies directly, and would
    /// stop.
    fn introduces_early(&self) -> bool {
        let early = |m: &Measurement| m.left_answers && m.relay.is_none();
        self.measured.as_ref().is_some_and(early)
    }

    /// Requests the proof of the claim and the clocks of the middlebox, while both anchors lock.
    fn prove(&mut self, ctx: &mut Context) {
        self.proven = None;
        self.proof_began = ctx.now;
        self.measure(ctx);
    }

    /// Handles `Introduced`: the right anchor is locked.
    pub(super) fn introduced(&mut self, ctx: &mut Context, facts: Facts) -> Flow {
        let Some(right) = self.right().filter(|_| self.right_facts.is_none()) else {
            return ctx.stale();
        };
        ctx.drop_pending_to(right);
        self.right_facts = Some(facts);
        self.compare_ages(ctx);
        if self.phase == Phase::Leaving {
            return Flow::On;
        }
        ctx.deadline(MEASURE);
        self.proven_or_granted(ctx)
    }

    /// Compares the age of an anchor's facts with that of the proof.
    fn compare_ages(&mut self, ctx: &Context) {
        self.outdated |= ctx.now.saturating_sub(self.proof_began) > FRESH;
    }

    /// Continues when the claim is proven and both anchors are locked.
    pub(super) fn proven_or_granted(&mut self, ctx: &mut Context) -> Flow {
        let (Some(m), Some(_), Some(_)) = (&self.proven, self.left_facts, self.right_facts) else {
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
        let (Some(before), Some(left), Some(right), Some(b)) =
            (self.measured, self.left_facts, self.right_facts, self.b)
        else {
            return ctx.stale();
        };
        let translation = steady(&before, &m).and_then(|()| plan::plan(&m, &left, &right));
        match translation {
            Err(reason) => self.fail(ctx, reason, false),
            Ok(translation) => {
                self.plan = Some(Plan {
                    subsession: b,
                    translation,
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

/// Succeeds if the middlebox added and removed no byte between the two measurements.
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
