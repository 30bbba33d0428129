//! The right anchor's part in the doubt about a new path. The left anchor receives nothing on that
//! path any more. This anchor stops receiving on it as well, until the left anchor decides (see
//! `left::doubt`).

use super::*;

/// Reception on the new path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Hearing {
    /// The host receives.
    Hears,
    /// The left anchor's doubt of this number is being examined.
    Examined(u32),
    /// The host has stopped receiving, for the doubt of this number.
    Deaf(u32),
}

impl Hearing {
    pub(super) fn is_deaf(self) -> bool {
        matches!(self, Hearing::Deaf(_))
    }
}

impl Right {
    pub(super) fn doubted(&mut self, ctx: &mut Context, round: u32) -> Flow {
        match self.hearing {
            Hearing::Deaf(deaf) if deaf >= round => return ctx.stale(),
            // The earlier doubt is of a former process of the left anchor, which has not received
            // the answer.
            Hearing::Deaf(_) => return self.fall_deaf(ctx, round),
            _ if self.is_gone() => {
                self.say_keep(ctx, round);
                return Flow::On;
            }
            Hearing::Examined(_) => {}
            Hearing::Hears => ctx.command(Anchor::Deafen),
        }
        self.hearing = Hearing::Examined(round);
        Flow::On
    }

    pub(super) fn deafened(&mut self, ctx: &mut Context, deaf: bool) -> Flow {
        let Hearing::Examined(round) = self.hearing else {
            return ctx.stale();
        };
        self.hearing = Hearing::Hears;
        if !self.is_between() {
            return ctx.stale();
        }
        if deaf {
            return self.fall_deaf(ctx, round);
        }
        self.say_keep(ctx, round);
        Flow::On
    }

    pub(super) fn say_keep(&self, ctx: &mut Context, round: u32) {
        let change = ctx.change;
        ctx.say(self.left, Message::Keep { change, round });
        ctx.say(self.middle, Message::Keep { change, round });
    }

    /// Answers `Deaf`. The answer must outlive this process, because the left anchor depends on it.
    fn fall_deaf(&mut self, ctx: &mut Context, round: u32) -> Flow {
        self.hearing = Hearing::Deaf(round);
        if let Some(new) = self.new {
            let cutoff = self.cut_in;
            self.persist(ctx, new, RightStage::Deaf { round, cutoff });
        }
        ctx.hush();
        self.say_deaf(ctx);
        Flow::On
    }

    fn say_deaf(&self, ctx: &mut Context) {
        if let Hearing::Deaf(round) = self.hearing {
            let change = ctx.change;
            ctx.insist(self.left, Message::Deaf { change, round });
            ctx.insist(self.middle, Message::Deaf { change, round });
        }
    }

    /// Continues after a restart, if a former process had stopped receiving on the new path.
    pub(super) fn restore_deaf(&mut self, ctx: &mut Context, round: u32, cutoff: Option<Cutoff>) {
        self.hearing = Hearing::Deaf(round);
        self.cut_in = cutoff;
        self.phase = match cutoff {
            Some(_) => Phase::Draining,
            None => Phase::SettingUp,
        };
        ctx.command(Anchor::Deafen);
        self.say_deaf(ctx);
    }

    /// Keeps the new path, and resumes receiving on it.
    pub(super) fn keep(&mut self, ctx: &mut Context, round: u32) -> Flow {
        if self.hearing != Hearing::Deaf(round) {
            return ctx.stale();
        }
        self.hearing = Hearing::Hears;
        ctx.command(Anchor::Hear);
        ctx.hush();
        let Some(new) = self.new else {
            return Flow::On;
        };
        match self.cut_in {
            Some(cutoff) => {
                self.persist(ctx, new, RightStage::Switched { cutoff });
                self.cut(ctx, cutoff)
            }
            None => {
                self.persist(ctx, new, RightStage::Prepared);
                self.asked = false;
                ctx.deadline(SILENCE);
                Flow::On
            }
        }
    }

    /// Returns to the old path: neither anchor receives on the new path.
    pub(super) fn take_back(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let Some(new) = self.new else {
            return ctx.stale();
        };
        ctx.hush();
        ctx.no_deadline();
        self.hearing = Hearing::Hears;
        self.phase = Phase::Cancelling;
        self.why = Some(reason);
        // A process that finds the record asks, and gets the same answer.
        ctx.command(Anchor::TakeBack { new });
        Flow::On
    }

    /// Ends the return: the old path has carried all data, and the session is as before.
    pub(super) fn taken_back(&mut self, ctx: &mut Context) -> Flow {
        let why = self.why.clone().unwrap_or(Reason::Cancelled);
        self.let_go(ctx);
        ctx.erase();
        ctx.report(Role::Right, self.b, Progress::RolledBack(why.clone()));
        Flow::End(Err(why))
    }
}
