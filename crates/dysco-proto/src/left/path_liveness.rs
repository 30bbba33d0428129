//! The return from a new path that dies before both ends have drained. It is possible as long as no
//! data that only the new path has carried was acknowledged.
//!
//! Both anchors must stop receiving on the new path before either sends its new data on the old
//! path again. Otherwise an acknowledgement that arrives on the new path would make an end discard
//! data that the middlebox has never received. The right anchor therefore stops first, and remains
//! so until it gets an answer.

use super::*;

/// Time from the cut, or from the last check, to the next check of the path.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl Left {
    pub(super) fn is_between(&self) -> bool {
        matches!(self.phase(), Phase::Switching | Phase::Draining)
    }

    /// Returns true if the path may be given up.
    fn may_suspect(&self) -> bool {
        self.is_between() && !self.gone && self.liveness != Liveness::Committed
    }

    /// Returns true if the path may be checked.
    fn may_check(&self) -> bool {
        self.may_suspect() && self.liveness == Liveness::Presumed
    }

    pub(super) fn suspects(&self) -> bool {
        self.liveness == Liveness::Suspected
    }

    /// Schedules a check of the path, if the path may be checked then.
    pub(super) fn check_later(&self, ctx: &mut Context) {
        if self.may_check() {
            ctx.deadline(CHECK_INTERVAL);
        }
    }

    pub(super) fn check_path(&self, ctx: &mut Context) -> Flow {
        if self.may_check() {
            ctx.command(Anchor::CheckPath);
        }
        Flow::On
    }

    pub(super) fn path_checked(&mut self, ctx: &mut Context, carries: bool) -> Flow {
        let Some(new) = self.new.filter(|_| self.may_check()) else {
            return ctx.stale();
        };
        if carries {
            self.check_later(ctx);
            return Flow::On;
        }
        self.liveness = Liveness::Suspected;
        self.round += 1;
        let round = self.round;
        // A later process must not take the answer to this check for an answer to its own.
        self.persist(ctx, LeftStage::Cut { new, round });
        self.say_all(ctx);
        Flow::On
    }

    /// Repeats everything that the right anchor has to answer, and nothing else.
    fn say_all(&self, ctx: &mut Context) {
        let change = ctx.change;
        ctx.drop_pending();
        if let (Phase::Switching, Some(cutoff)) = (self.phase(), self.cutoff) {
            ctx.send_reliably(self.right(), Message::Switched { change, cutoff });
        }
        self.say_suspect(ctx);
    }

    pub(super) fn say_suspect(&self, ctx: &mut Context) {
        if self.suspects() && self.may_suspect() {
            let (change, round) = (ctx.change, self.round);
            ctx.send_reliably(self.right(), Message::Suspect { change, round });
            // The message also goes by the middlebox, since the way between the anchors may carry
            // nothing.
            ctx.send_reliably(self.middle(), Message::Suspect { change, round });
        }
    }

    fn say_keep(&self, ctx: &mut Context, round: u32) {
        let change = ctx.change;
        ctx.say(self.right(), Message::Keep { change, round });
        ctx.say(self.middle(), Message::Keep { change, round });
    }

    /// Handles `Muted`: the right anchor does not receive on the new path until it gets an answer.
    pub(super) fn peer_muted(&mut self, ctx: &mut Context, round: u32) -> Flow {
        match self.phase() {
            // `Done` and `Cancel` are repeated until they are answered.
            Phase::Completing | Phase::Cancelling => {}
            _ if self.muting => {}
            _ if self.suspects() && round == self.round && self.may_suspect() => {
                self.muting = true;
                ctx.command(Anchor::Mute);
            }
            _ => self.say_keep(ctx, round),
        }
        Flow::On
    }

    pub(super) fn muted(&mut self, ctx: &mut Context, muted: bool) -> Flow {
        self.muting = false;
        if muted && self.suspects() && self.may_suspect() {
            return self.take_back(ctx);
        }
        if muted {
            ctx.command(Anchor::Unmute);
        }
        // The session has ended meanwhile.
        if !self.is_between() {
            return ctx.stale();
        }
        let round = self.round;
        self.say_keep(ctx, round);
        self.keep(ctx, round)
    }

    /// Keeps the new path, dead or alive, because only that path could have carried some data.
    pub(super) fn keep(&mut self, ctx: &mut Context, round: u32) -> Flow {
        if !self.suspects() || round != self.round || !self.is_between() {
            return ctx.stale();
        }
        self.liveness = Liveness::Committed;
        self.say_all(ctx);
        self.maybe_complete(ctx)
    }

    pub(super) fn clear_suspicion(&mut self, ctx: &mut Context) {
        if self.suspects() {
            self.liveness = Liveness::Presumed;
            if self.is_between() {
                self.say_all(ctx);
            }
        }
    }

    /// Records the return, and returns: neither anchor receives on the new path.
    pub(super) fn take_back(&mut self, ctx: &mut Context) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        let reason = Reason::NewPathSilent(self.right());
        ctx.drop_pending();
        ctx.no_deadline();
        self.liveness = Liveness::Presumed;
        self.persist(
            ctx,
            LeftStage::TakenBack {
                new,
                round: self.round,
            },
        );
        self.go_back(ctx, new, reason);
        Flow::On
    }

    /// Returns to the old path. The return has been recorded.
    pub(super) fn go_back(&mut self, ctx: &mut Context, new: Subsession, reason: Reason) {
        let change = ctx.change;
        self.stage = Stage::Cancelling {
            why: reason.clone(),
            returns: true,
        };
        ctx.command(Anchor::TakeBack { new });
        let round = self.round;
        let cancel = Message::Cancel {
            change,
            reason: reason.clone(),
        };
        ctx.send_reliably(self.right(), cancel);
        let back = Message::Back {
            change,
            round,
            reason,
        };
        ctx.send_reliably(self.middle(), back);
    }

    /// Handles a record that cannot be written: the path stays as it is. A check that was not
    /// recorded may be repeated when there is space again.
    pub(super) fn unrecorded(&mut self, ctx: &mut Context, error: String) -> Flow {
        ctx.purge();
        ctx.trouble(Reason::NoRecord(error));
        self.liveness = Liveness::Presumed;
        if self.phase() == Phase::Cancelling {
            self.stage = match self.cut_in {
                true => Stage::Draining,
                false => Stage::Switching,
            };
            self.liveness = Liveness::Committed;
            ctx.command(Anchor::Unmute);
            self.say_keep(ctx, self.round);
        }
        self.say_all(ctx);
        self.check_later(ctx);
        Flow::On
    }

    /// Ends the return: the old path has carried all data, and the session is as before.
    pub(super) fn taken_back(&mut self, ctx: &mut Context) -> Flow {
        let Stage::Cancelling {
            why,
            returns: returns @ true,
        } = &mut self.stage
        else {
            return ctx.stale();
        };
        *returns = false;
        let why = why.clone();
        ctx.report(Role::Left, self.a, Progress::RolledBack(why));
        ctx.command(Anchor::Release);
        self.let_go(ctx);
        if !ctx.has_pending() {
            return self.rolled_back(ctx);
        }
        ctx.deadline(CANCEL);
        Flow::On
    }
}
