//! The steps from the request to leave until both anchors are locked and the plan is made.

use super::*;

impl Proof {
    fn begin(ctx: &Context) -> Proof {
        Proof {
            began: ctx.now,
            outdated: false,
            result: None,
        }
    }

    /// Compares its age with that of an anchor's facts, which are new.
    fn compare_ages(&mut self, ctx: &Context) {
        self.outdated |= ctx.now.saturating_sub(self.began) > FRESH;
    }
}

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
        self.stage = Stage::Claimed(Box::new(Claim {
            measured: m,
            proof: Proof::begin(ctx),
            left: None,
            right: None,
        }));
        let (change, left) = (ctx.change, self.left());
        let leave = Message::Leave {
            change,
            subsession: self.a,
            beyond: b,
        };
        ctx.send_reliably(left, leave);
        if introduces_early(&m) {
            self.introduce(ctx, b);
        }
        self.measure(ctx);
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
        let (left, right) = (a.left.ip(), b.right.ip());
        for host in [left, right] {
            if ctx.core.is_me(host) {
                return Err(Reason::EndAtMiddlebox(host));
            }
        }
        if left == right {
            return Err(Reason::SameHost(left));
        }
        plan::check(m)
    }

    /// Handles a message that arrives while the middlebox is measured and the anchors lock.
    pub(super) fn anchor_says(
        &mut self,
        ctx: &mut Context,
        from_right: bool,
        message: Message,
    ) -> Flow {
        match (&self.stage, message) {
            (_, Message::Cancel { reason, .. }) => {
                let change = ctx.change;
                ctx.say(self.left(), Message::CancelAck { change });
                self.fail(ctx, reason, true)
            }
            (Stage::Claimed(_), Message::Introduced { facts, .. }) => self.introduced(ctx, facts),
            (Stage::Claimed(_), Message::NackLock { reason, .. }) => {
                self.fail(ctx, reason, !from_right)
            }
            _ => ctx.stale(),
        }
    }

    /// Handles `RequestLock`: the left anchor is locked.
    pub(super) fn lock_requested(&mut self, ctx: &mut Context, request: LockRequest) -> Flow {
        let (change, left) = (ctx.change, self.left());
        match &mut self.stage {
            Stage::Claimed(claim) if claim.left.is_none() => {
                ctx.drop_pending_to(left);
                claim.left = Some(request);
                claim.proof.compare_ages(ctx);
                let early = introduces_early(&claim.measured);
                if let (Some(b), false) = (self.b, early) {
                    self.introduce(ctx, b);
                }
                ctx.deadline(LOCK);
                self.proven_or_granted(ctx)
            }
            Stage::Locked { .. } => {
                self.say_granted(ctx);
                Flow::On
            }
            Stage::Cancelling { why } => {
                let reason = why.clone();
                ctx.say(left, Message::NackLock { change, reason });
                Flow::On
            }
            _ => ctx.stale(),
        }
    }

    /// Handles `Introduced`: the right anchor is locked.
    fn introduced(&mut self, ctx: &mut Context, facts: Facts) -> Flow {
        let right = self.right();
        let (Some(right), Stage::Claimed(claim)) = (right, &mut self.stage) else {
            return ctx.stale();
        };
        if claim.right.is_some() {
            return ctx.stale();
        }
        ctx.drop_pending_to(right);
        claim.right = Some(facts);
        claim.proof.compare_ages(ctx);
        if claim.left.is_none() {
            return Flow::On;
        }
        ctx.deadline(MEASURE);
        self.proven_or_granted(ctx)
    }

    /// Continues when the claim is proven and both anchors are locked.
    pub(super) fn proven_or_granted(&mut self, ctx: &mut Context) -> Flow {
        let Stage::Claimed(claim) = &mut self.stage else {
            return ctx.stale();
        };
        let (Some(proven), Some(left), Some(right)) = (claim.proof.result, claim.left, claim.right)
        else {
            return Flow::On;
        };
        if claim.proof.outdated {
            claim.proof = Proof::begin(ctx);
            self.measure(ctx);
            return Flow::On;
        }
        let translation = steady(&claim.measured, &proven)
            .and_then(|()| plan::plan(&proven, &left.facts, &right));
        match (translation, self.b) {
            (Err(reason), _) => self.fail(ctx, reason, false),
            (Ok(translation), Some(subsession)) => {
                let plan = Plan {
                    subsession,
                    translation,
                };
                let attempt = left.attempt;
                self.locked(ctx, Granted { plan, attempt })
            }
            (Ok(_), None) => ctx.stale(),
        }
    }

    fn locked(&mut self, ctx: &mut Context, granted: Granted) -> Flow {
        self.stage = Stage::Locked {
            granted: Some(granted),
            switched: false,
            asked: false,
            gone: false,
        };
        ctx.report(Role::Middle, self.a, Progress::Locked);
        ctx.persist(RoleRecord::Middle {
            a: self.a,
            b: granted.plan.subsession,
            left: self.left(),
            asker: self.asker,
        });
        self.say_granted(ctx);
        ctx.deadline(SILENCE);
        Flow::On
    }

    fn say_granted(&self, ctx: &mut Context) {
        let change = ctx.change;
        if let Stage::Locked {
            granted: Some(Granted { plan, attempt }),
            ..
        } = self.stage
        {
            let granted = Message::AckLock {
                change,
                attempt,
                plan,
            };
            ctx.say(self.left(), granted);
        }
    }
}

/// Returns true if the right anchor is asked before the left one has answered. This is not done if
/// it might be in vain, because the right anchor would stay locked until this host gives up. It is
/// not done for a relay either: its right anchor may send its replies directly, and would stop.
fn introduces_early(measured: &Measurement) -> bool {
    measured.left_answers && measured.relay.is_none()
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
