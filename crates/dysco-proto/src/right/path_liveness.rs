//! The right anchor's part in the liveness check of a new path. The left anchor receives nothing on
//! that path any more. This anchor stops receiving on it as well, until the left anchor decides
//! (see `left::path_liveness`).

use super::*;

/// Reception on the new path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Reception {
    /// The host receives.
    Receives,
    /// The left anchor's check of this number is being examined.
    Suspected(u32),
    /// The host has stopped receiving, for the check of this number.
    Muted(u32),
}

impl Reception {
    pub(super) fn is_muted(self) -> bool {
        matches!(self, Reception::Muted(_))
    }
}

impl Right {
    pub(super) fn suspected(&mut self, ctx: &mut Context, round: u32) -> Flow {
        match self.reception() {
            Reception::Muted(muted) if muted >= round => return ctx.stale(),
            // The earlier check is of a former process of the left anchor, which has not received
            // the answer.
            Reception::Muted(_) => return self.confirm_muted(ctx, round),
            _ if self.is_gone() => {
                self.say_keep(ctx, round);
                return Flow::On;
            }
            Reception::Suspected(_) => {}
            Reception::Receives => ctx.command(Anchor::Mute),
        }
        self.set_reception(Reception::Suspected(round));
        Flow::On
    }

    pub(super) fn muted(&mut self, ctx: &mut Context, muted: bool) -> Flow {
        let Reception::Suspected(round) = self.reception() else {
            return ctx.stale();
        };
        self.set_reception(Reception::Receives);
        if muted {
            return self.confirm_muted(ctx, round);
        }
        self.say_keep(ctx, round);
        Flow::On
    }

    pub(super) fn say_keep(&self, ctx: &mut Context, round: u32) {
        let change = ctx.change;
        ctx.say(self.left, Message::Keep { change, round });
        ctx.say(self.middle, Message::Keep { change, round });
    }

    /// Answers `Muted`. The answer must outlive this process, because the left anchor depends on
    /// it.
    fn confirm_muted(&mut self, ctx: &mut Context, round: u32) -> Flow {
        self.set_reception(Reception::Muted(round));
        if let Some(new) = self.new_path() {
            let cutoff = self.cut_in();
            self.persist(ctx, new, RightStage::Muted { round, cutoff });
        }
        ctx.drop_pending();
        self.say_muted(ctx);
        Flow::On
    }

    fn say_muted(&self, ctx: &mut Context) {
        if let Reception::Muted(round) = self.reception() {
            let change = ctx.change;
            ctx.send_reliably(self.left, Message::Muted { change, round });
            ctx.send_reliably(self.middle, Message::Muted { change, round });
        }
    }

    /// Continues after a restart, if a former process had stopped receiving on the new path.
    pub(super) fn restore_muted(
        &mut self,
        ctx: &mut Context,
        new: Subsession,
        round: u32,
        cutoff: Option<Cutoff>,
    ) {
        let reception = Reception::Muted(round);
        self.stage = match cutoff {
            Some(cut_in) => Stage::Draining(CutOver {
                new,
                cut_in,
                cutoff: None,
                asked: false,
                drained: false,
                reception,
            }),
            None => Stage::SettingUp(SetUp {
                new,
                facts: None,
                unprepared: None,
                asked: false,
                reception,
                cut_in: None,
            }),
        };
        ctx.command(Anchor::Mute);
        self.say_muted(ctx);
    }

    /// Keeps the new path, and resumes receiving on it.
    pub(super) fn keep(&mut self, ctx: &mut Context, round: u32) -> Flow {
        if self.reception() != Reception::Muted(round) {
            return ctx.stale();
        }
        self.set_reception(Reception::Receives);
        ctx.command(Anchor::Unmute);
        ctx.drop_pending();
        let Some(new) = self.new_path() else {
            return Flow::On;
        };
        if let Some(cutoff) = self.cut_in() {
            self.persist(ctx, new, RightStage::Switched { cutoff });
            return self.cut(ctx, new, cutoff);
        }
        self.persist(ctx, new, RightStage::Prepared);
        if let Stage::SettingUp(path) = &mut self.stage {
            path.asked = false;
        }
        ctx.deadline(SILENCE);
        Flow::On
    }

    /// Returns to the old path: neither anchor receives on the new path.
    pub(super) fn take_back(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let Some(new) = self.new_path() else {
            return ctx.stale();
        };
        ctx.drop_pending();
        ctx.no_deadline();
        let (asked, drained) = match &self.stage {
            Stage::SettingUp(path) => (path.asked, false),
            Stage::Cutting(path) | Stage::Draining(path) => (path.asked, path.drained),
            _ => (false, false),
        };
        self.stage = Stage::Cancelling {
            why: reason,
            asked,
            drained,
        };
        // A process that finds the record asks, and gets the same answer.
        ctx.command(Anchor::TakeBack { new });
        Flow::On
    }

    /// Ends the return: the old path has carried all data, and the session is as before.
    pub(super) fn taken_back(&mut self, ctx: &mut Context, why: Reason) -> Flow {
        self.let_go(ctx);
        ctx.erase();
        ctx.report(Role::Right, self.b, Progress::RolledBack(why.clone()));
        Flow::End(Err(why))
    }
}
