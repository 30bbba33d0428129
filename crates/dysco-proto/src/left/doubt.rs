//! A new path that dies before both ends are drained: back to the old one, as long as
//! nothing that it alone has carried was acknowledged.
//!
//! Both anchors must hear it no more before either sends its new data the old way again:
//! an acknowledgement that came by the new path meanwhile would have an end forget what
//! the middlebox has never got. So the right one stops first, and keeps to that until it
//! is answered.

use super::*;

/// How long after the cut, or after the last look, the path is looked at.
const LOOK: Duration = Duration::from_secs(5);

impl Left {
    pub(super) fn is_between(&self) -> bool {
        matches!(self.phase, Phase::Switching | Phase::Draining)
    }

    fn may_doubt(&self) -> bool {
        self.is_between() && !self.gone && !self.carries
    }

    /// The path is looked at in a while, if it is in doubt by then.
    pub(super) fn look_later(&self, ctx: &mut Context) {
        if self.may_doubt() && !self.doubts {
            ctx.deadline(LOOK);
        }
    }

    pub(super) fn look(&self, ctx: &mut Context) -> Flow {
        if self.may_doubt() && !self.doubts {
            ctx.command(Command::Look { change: ctx.change });
        }
        Flow::On
    }

    pub(super) fn looked(&mut self, ctx: &mut Context, carries: bool) -> Flow {
        let Some(new) = self.new.filter(|_| self.may_doubt() && !self.doubts) else {
            return ctx.stale();
        };
        if carries {
            self.look_later(ctx);
            return Flow::On;
        }
        self.doubts = true;
        self.round += 1;
        let round = self.round;
        // A later process must not take the answer to this one for one to its own.
        self.persist(ctx, LeftStage::Cut { new, round });
        self.say_all(ctx);
        Flow::On
    }

    /// All that the right anchor has to answer, and nothing else.
    fn say_all(&self, ctx: &mut Context) {
        let change = ctx.change;
        ctx.hush();
        if let (Phase::Switching, Some(cutoff)) = (self.phase, self.cutoff) {
            ctx.insist(self.right(), Message::Switched { change, cutoff });
        }
        self.say_doubt(ctx);
    }

    pub(super) fn say_doubt(&self, ctx: &mut Context) {
        if self.doubts && self.may_doubt() {
            let (change, round) = (ctx.change, self.round);
            ctx.insist(self.right(), Message::Doubt { change, round });
            // What carries nothing for the session may carry no message either.
            ctx.insist(self.middle(), Message::Doubt { change, round });
        }
    }

    fn say_keep(&self, ctx: &mut Context, round: u32) {
        let change = ctx.change;
        ctx.say(self.right(), Message::Keep { change, round });
        ctx.say(self.middle(), Message::Keep { change, round });
    }

    /// The right anchor hears the new path no more, until it is answered.
    pub(super) fn deaf_there(&mut self, ctx: &mut Context, round: u32) -> Flow {
        let change = ctx.change;
        match self.phase {
            // Both are said again until they are answered.
            Phase::Completing | Phase::Cancelling => {}
            _ if self.deafens => {}
            _ if self.doubts && round == self.round && self.may_doubt() => {
                self.deafens = true;
                ctx.command(Command::Deafen { change });
            }
            _ => self.say_keep(ctx, round),
        }
        Flow::On
    }

    pub(super) fn deafened(&mut self, ctx: &mut Context, deaf: bool) -> Flow {
        let change = ctx.change;
        self.deafens = false;
        if deaf && self.doubts && self.may_doubt() {
            return self.take_back(ctx);
        }
        if deaf {
            ctx.command(Command::Hear { change });
        }
        // The session has gone meanwhile.
        if !self.is_between() {
            return ctx.stale();
        }
        let round = self.round;
        self.say_keep(ctx, round);
        self.keep(ctx, round)
    }

    /// It has carried what only it could: it stays, whether it lives or not.
    pub(super) fn keep(&mut self, ctx: &mut Context, round: u32) -> Flow {
        if !self.doubts || round != self.round || !self.is_between() {
            return ctx.stale();
        }
        self.carries = true;
        self.doubt_no_more(ctx);
        self.maybe_complete(ctx)
    }

    pub(super) fn doubt_no_more(&mut self, ctx: &mut Context) {
        if std::mem::take(&mut self.doubts) && self.is_between() {
            self.say_all(ctx);
        }
    }

    /// Neither anchor hears the new path.
    pub(super) fn take_back(&mut self, ctx: &mut Context) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        let reason = Reason::NewPathSilent(self.right());
        ctx.hush();
        ctx.no_deadline();
        self.doubts = false;
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

    /// It is recorded that it is taken back.
    pub(super) fn go_back(&mut self, ctx: &mut Context, new: Subsession, reason: Reason) {
        let change = ctx.change;
        self.returns = true;
        self.phase = Phase::Cancelling;
        self.why = Some(reason.clone());
        ctx.command(Command::TakeBack { change, new });
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

    /// A record cannot be written: the path is kept as it is. A doubt that is not recorded
    /// may come again, when there is room.
    pub(super) fn unrecorded(&mut self, ctx: &mut Context, error: String) -> Flow {
        ctx.purge();
        ctx.trouble(Reason::NoRecord(error));
        self.doubts = false;
        if self.phase == Phase::Cancelling {
            self.phase = match self.cut_in {
                true => Phase::Draining,
                false => Phase::Switching,
            };
            (self.returns, self.carries, self.why) = (false, true, None);
            ctx.command(Command::Hear { change: ctx.change });
            self.say_keep(ctx, self.round);
        }
        self.say_all(ctx);
        self.look_later(ctx);
        Flow::On
    }

    /// The old path has all: the session is as it was.
    pub(super) fn taken_back(&mut self, ctx: &mut Context) -> Flow {
        if self.phase != Phase::Cancelling || !self.returns {
            return ctx.stale();
        }
        self.returns = false;
        let why = self.why.clone().unwrap_or(Reason::Cancelled);
        ctx.report(Role::Left, self.a, Progress::RolledBack(why));
        ctx.command(Command::Release { change: ctx.change });
        self.let_go(ctx);
        if !ctx.insists() {
            return self.rolled_back(ctx);
        }
        ctx.deadline(CANCEL);
        Flow::On
    }
}
