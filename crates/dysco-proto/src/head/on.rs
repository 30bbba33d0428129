//! The steps from the request to the end of a change that succeeds.

use super::*;

impl Head {
    pub(super) fn enlist(&mut self, ctx: &mut Context, facts: Facts) -> Flow {
        self.stage = Stage::Preparing {
            facts,
            right_reach: Reach::default(),
        };
        ctx.report(Role::Head, self.session(), Progress::Locked);
        let (change, session, right) = (ctx.change, self.session(), self.right());
        let hosts = hosts_of(self.order.segment_after());
        let before = self.order.segment_before().to_vec();
        let nexts: Vec<HostId> = hosts.iter().skip(1).copied().chain([right]).collect();
        for (host, next) in hosts.into_iter().zip(nexts) {
            self.waiting.insert(host);
            let message = Message::Enlist {
                change,
                session,
                next,
                before: before.clone(),
                paths: self.order.paths.clone(),
                number: self.order.number,
            };
            ctx.send_reliably(host, message);
        }
        self.ask_deltas(ctx);
        self.waiting.insert(right);
        let token = self.token;
        let message = Message::Extend {
            change,
            session,
            token,
        };
        ctx.send_reliably(right, message);
        self.move_state(ctx);
        ctx.deadline(match self.moving.is_empty() {
            true => ENLIST,
            false => STATE,
        });
        Flow::On
    }

    pub(super) fn extended(
        &mut self,
        ctx: &mut Context,
        from: &[HostId],
        result: Result<Facts, Reason>,
    ) -> Flow {
        let right = match result {
            Ok(right) => right,
            Err(reason) => return self.cancel(ctx, reason),
        };
        let Stage::Preparing { facts, right_reach } = &mut self.stage else {
            return ctx.stale();
        };
        *right_reach = right.reach;
        let [left, right] = [*facts, right].map(|facts| self.comparable(facts));
        match plan::unchanged(self.session(), &left, &right) {
            Ok(()) => self.answered(ctx, from),
            Err(reason) => self.cancel(ctx, reason),
        }
    }

    /// Removes the facts that cannot be compared. A host of the chain may have joined the session
    /// later, and takes the number by which its path opened for the session's first. The host that
    /// forwards it reports whether that changes numbers, and the anchors' own numbers show it. The
    /// clocks are those of the two ends.
    fn comparable(&self, mut facts: Facts) -> Facts {
        if self.order.left().is_some() || self.order.inner_right().is_some() {
            (facts.local.isn, facts.remote.isn) = (0, 0);
            (facts.tsval_out, facts.tsval_in) = (0, 0);
        }
        facts
    }

    /// Records that an awaited host is ready.
    pub(super) fn answered(&mut self, ctx: &mut Context, from: &[HostId]) -> Flow {
        let Some(host) = self.waiting.iter().find(|h| from.contains(h)).copied() else {
            return ctx.stale();
        };
        self.waiting.remove(&host);
        ctx.drop_pending_to(host);
        // A host may have another name in the other chain.
        let mut before = hosts_of(self.order.segment_before());
        before.retain(|h| from.contains(h));
        if !before.is_empty() {
            self.staying.extend(before);
            self.staying.insert(host);
        }
        if self.remains(host) {
            self.ask_delta(ctx, host);
        }
        self.go_on(ctx)
    }

    /// Copies the state of the firewalls that leave, while the other hosts prepare.
    fn move_state(&mut self, ctx: &mut Context) {
        let session = self.session();
        for (from, to) in self.order.state.iter().copied() {
            self.moving.insert(to);
            ctx.command(Chain::MoveState { session, from, to });
        }
    }

    /// Handles the end of an installation of state on a host.
    pub(super) fn state_moved(
        &mut self,
        ctx: &mut Context,
        to: HostId,
        result: Result<(), Reason>,
    ) -> Flow {
        self.moving.remove(&to);
        match (self.phase(), result) {
            (Phase::Preparing, Ok(())) => self.go_on(ctx),
            (Phase::Preparing, Err(reason)) => self.cancel(ctx, reason),
            // The end was awaited, so that the installed state is forgotten as well.
            _ if self.returned() == Some(Returned::Both) && self.moving.is_empty() => {
                self.dismiss_new(ctx)
            }
            _ => Flow::On,
        }
    }

    /// Opens the new path: all hosts are ready, and the leaving hosts have reported their deltas.
    pub(super) fn set_up(&mut self, ctx: &mut Context) -> Flow {
        let Stage::Preparing { right_reach, .. } = self.stage else {
            return ctx.stale();
        };
        self.stage = Stage::SettingUp;
        self.have_opened(ctx, right_reach);
        ctx.deadline(OPEN);
        Flow::On
    }

    pub(super) fn switch(&mut self, ctx: &mut Context) -> Flow {
        self.stage = Stage::Cutting;
        ctx.report(Role::Head, self.session(), Progress::SetUp);
        self.have_cut(ctx);
        Flow::On
    }

    pub(super) fn switched(&mut self, ctx: &mut Context, cutoff: Cutoff) -> Flow {
        self.stage = Stage::Switching {
            cutoff,
            right_settled: false,
        };
        ctx.report(Role::Head, self.session(), Progress::Switched);
        let change = ctx.change;
        ctx.send_reliably(self.right(), Message::Switched { change, cutoff });
        ctx.deadline(SETTLE);
        Flow::On
    }

    /// Handles the right anchor's cutoff: it takes the new path as well.
    pub(super) fn right_switched(&mut self, ctx: &mut Context, right: Cutoff) -> Flow {
        let Stage::Switching {
            cutoff,
            right_settled,
        } = self.stage
        else {
            return ctx.stale();
        };
        ctx.drop_pending();
        let unsettled = match right_settled {
            true => Unsettled::Left,
            false => Unsettled::Both,
        };
        self.stage = Stage::Draining { cutoff, unsettled };
        self.have_settled(ctx, right);
        Flow::On
    }

    /// Records that the left anchor's side of the new path has carried all that it had to.
    pub(super) fn left_settles(&mut self, ctx: &mut Context) -> Flow {
        let both = match &mut self.stage {
            Stage::Draining { unsettled, .. } if *unsettled != Unsettled::Right => {
                std::mem::replace(unsettled, Unsettled::Right) == Unsettled::Left
            }
            _ => return ctx.stale(),
        };
        ctx.report(Role::Head, self.session(), Progress::Drained);
        match both {
            true => self.complete(ctx, false),
            false => Flow::On,
        }
    }

    /// Records that the right anchor's side has done so, or answers the right anchor.
    pub(super) fn right_settles(&mut self, ctx: &mut Context) -> Flow {
        match &mut self.stage {
            Stage::Switching { right_settled, .. } => *right_settled = true,
            Stage::Draining { unsettled, .. } if *unsettled == Unsettled::Right => {
                return self.complete(ctx, false);
            }
            Stage::Draining { unsettled, .. } => *unsettled = Unsettled::Left,
            _ => return self.tell(ctx),
        }
        Flow::On
    }

    /// Completes the change. It cannot be taken back any more. `recorded`: the record states that
    /// already.
    pub(super) fn complete(&mut self, ctx: &mut Context, recorded: bool) -> Flow {
        self.stage = Stage::Completing { recorded };
        ctx.drop_pending();
        ctx.no_deadline();
        self.persist(ctx, HeadStage::Completing);
        let (change, session) = (ctx.change, self.session());
        ctx.command(Chain::Splice {
            session,
            left: self.order.left(),
            right: self.order.inner_right(),
            hosts: self.order.segment_after().to_vec(),
            number: self.order.number,
        });
        self.waiting = BTreeSet::from([self.right()]);
        self.have_completed(ctx);
        ctx.send_reliably(self.right(), Message::Done { change });
        Flow::On
    }

    /// Waits for late packets: neither anchor sends anything on the old path any more.
    pub(super) fn dismiss_old(&mut self, ctx: &mut Context) -> Flow {
        ctx.drop_pending();
        self.stage = Stage::Closing;
        self.waiting.clear();
        if self.order.segment_before().is_empty() {
            return self.done(ctx);
        }
        ctx.deadline(LATE);
        Flow::On
    }

    pub(super) fn say_dismiss(&mut self, ctx: &mut Context) -> Flow {
        let (change, session) = (ctx.change, self.session());
        for host in hosts_of(self.order.segment_before()) {
            self.waiting.insert(host);
            let scope = match self.is_staying(host) {
                true => Scope::PathBefore,
                false => Scope::Session,
            };
            let message = Message::Dismiss {
                change,
                session,
                scope,
                paths: self.order.paths.clone(),
            };
            ctx.send_reliably(host, message);
        }
        ctx.deadline(DISMISS);
        Flow::On
    }

    pub(super) fn dismissed(&mut self, ctx: &mut Context, from: &[HostId]) -> Flow {
        let hosts = self.waiting.iter().filter(|h| from.contains(h));
        let hosts: Vec<HostId> = hosts.copied().collect();
        if hosts.is_empty() {
            // A former process asked. This one has not asked anybody yet.
            return ctx.stale();
        }
        for host in hosts {
            self.waiting.remove(&host);
            ctx.drop_pending_to(host);
        }
        if !self.waiting.is_empty() {
            return Flow::On;
        }
        match self.stage {
            Stage::Closing => self.done(ctx),
            Stage::Cancelling {
                returned: Returned::Both,
                ..
            } => self.rolled_back(ctx),
            _ => Flow::On,
        }
    }

    pub(super) fn done(&mut self, ctx: &mut Context) -> Flow {
        self.let_go(ctx);
        ctx.report(Role::Head, self.session(), Progress::Removed);
        Flow::End(Ok(()))
    }

    pub(super) fn let_go(&self, ctx: &mut Context) {
        ctx.drop_pending();
        ctx.erase();
        ctx.unlock_segment(&self.session());
    }
}
