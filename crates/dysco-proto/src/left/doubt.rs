//! The return from a new path that dies before both ends have drained. It is possible as long as no
//! data that only the new path has carried was acknowledged.
//!
//! Both anchors must stop receiving on the new path before either sends its new data on the old
//! path again. Otherwise an acknowledgement that arrives on the new path would make an end discard
//! data that the middlebox has never received. The right anchor therefore stops first, and remains
//! so until it gets an answer.

use super::*;

/// Time from the cut, or from the last check, to the next check of the path.
const LOOK: Duration = Duration::from_secs(5);

impl Left {
    pub(super) fn is_between(&self) -> bool {
        matches!(self.phase(), Phase::Switching | Phase::Draining)
    }

    /// Returns true if the path may be given up.
    fn may_doubt(&self) -> bool {
        self.is_between() && !self.gone && self.trust != Trust::Kept
    }

    /// Returns true if the path may come into doubt.
    fn may_look(&self) -> bool {
        self.may_doubt() && self.trust == Trust::Given
    }

    pub(super) fn doubts(&self) -> bool {
        self.trust == Trust::Doubted
    }

    /// Schedules a check of the path, if the path may be doubted then.
    pub(super) fn look_later(&self, ctx: &mut Context) {
        if self.may_look() {
            ctx.deadline(LOOK);
        }
    }

    pub(super) fn look(&self, ctx: &mut Context) -> Flow {
        if self.may_look() {
            ctx.command(Anchor::Look);
        }
        Flow::On
    }

    pub(super) fn looked(&mut self, ctx: &mut Context, carries: bool) -> Flow {
        let Some(new) = self.new.filter(|_| self.may_look()) else {
            return ctx.stale();
        };
        if carries {
            self.look_later(ctx);
            return Flow::On;
        }
        self.trust = Trust::Doubted;
        self.round += 1;
        let round = self.round;
        // A later process must not take the answer to this doubt for an answer to its own.
        self.persist(ctx, LeftStage::Cut { new, round });
        self.say_all(ctx);
        Flow::On
    }

    /// Repeats everything that the right anchor has to answer, and nothing else.
    fn say_all(&self, ctx: &mut Context) {
        let change = ctx.change;
        ctx.hush();
        if let (Phase::Switching, Some(cutoff)) = (self.phase(), self.cutoff) {
            ctx.insist(self.right(), Message::Switched { change, cutoff });
        }
        self.say_doubt(ctx);
    }

    pub(super) fn say_doubt(&self, ctx: &mut Context) {
        if self.doubts() && self.may_doubt() {
            let (change, round) = (ctx.change, self.round);
            ctx.insist(self.right(), Message::Doubt { change, round });
            // The message also goes by the middlebox, since the way between the anchors may carry
            // nothing.
            ctx.insist(self.middle(), Message::Doubt { change, round });
        }
    }

    fn say_keep(&self, ctx: &mut Context, round: u32) {
        let change = ctx.change;
        ctx.say(self.right(), Message::Keep { change, round });
        ctx.say(self.middle(), Message::Keep { change, round });
    }

    /// Handles `Deaf`: the right anchor does not receive on the new path until it gets an answer.
    pub(super) fn deaf_there(&mut self, ctx: &mut Context, round: u32) -> Flow {
        match self.phase() {
            // `Done` and `Cancel` are repeated until they are answered.
            Phase::Completing | Phase::Cancelling => {}
            _ if self.deafens => {}
            _ if self.doubts() && round == self.round && self.may_doubt() => {
                self.deafens = true;
                ctx.command(Anchor::Deafen);
            }
            _ => self.say_keep(ctx, round),
        }
        Flow::On
    }

    pub(super) fn deafened(&mut self, ctx: &mut Context, deaf: bool) -> Flow {
        self.deafens = false;
        if deaf && self.doubts() && self.may_doubt() {
            return self.take_back(ctx);
        }
        if deaf {
            ctx.command(Anchor::Hear);
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
        if !self.doubts() || round != self.round || !self.is_between() {
            return ctx.stale();
        }
        self.trust = Trust::Kept;
        self.say_all(ctx);
        self.maybe_complete(ctx)
    }

    pub(super) fn doubt_no_more(&mut self, ctx: &mut Context) {
        if self.doubts() {
            self.trust = Trust::Given;
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
        ctx.hush();
        ctx.no_deadline();
        self.trust = Trust::Given;
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
        ctx.insist(self.right(), cancel);
        let back = Message::Back {
            change,
            round,
            reason,
        };
        ctx.insist(self.middle(), back);
    }

    /// Handles a record that cannot be written: the path stays as it is. A doubt that was not
    /// recorded may be repeated when there is space again.
    pub(super) fn unrecorded(&mut self, ctx: &mut Context, error: String) -> Flow {
        ctx.purge();
        ctx.trouble(Reason::NoRecord(error));
        self.trust = Trust::Given;
        if self.phase() == Phase::Cancelling {
            self.stage = match self.cut_in {
                true => Stage::Draining,
                false => Stage::Switching,
            };
            self.trust = Trust::Kept;
            ctx.command(Anchor::Hear);
            self.say_keep(ctx, self.round);
        }
        self.say_all(ctx);
        self.look_later(ctx);
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
        if !ctx.insists() {
            return self.rolled_back(ctx);
        }
        ctx.deadline(CANCEL);
        Flow::On
    }
}
