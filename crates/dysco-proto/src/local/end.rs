//! Ends of the change: success, a failure before the cut, and a session that is over.

use super::super::command::Pair;
use super::super::context::{Context, Flow};
use super::super::left::TWO_MSL;
use super::super::names::Subsession;
use super::super::reason::{Phase, Reason};
use super::super::record::{LocalStage, RoleRecord};
use super::super::report::{Progress, Role};
use super::{CUT_AFTER_END, Local};

impl Local {
    /// Takes everything back. Only before the cut.
    pub(super) fn fail(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let prepared = self.phase >= Phase::Preparing;
        if prepared {
            ctx.command(Pair::Unjoin);
        }
        self.let_go(ctx);
        // This command is the last: until everything is taken back, a crash must find the record.
        if prepared {
            ctx.erase();
        }
        let end = match prepared {
            true => Progress::RolledBack(reason.clone()),
            false => Progress::Refused(reason.clone()),
        };
        ctx.report(Role::Local, self.a, end);
        self.finish(ctx, Err(reason))
    }

    /// Returns true if the proxy may end the sessions, and no end has.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.phase, Phase::Cutting | Phase::Draining) && !self.gone
    }

    /// Ends the session for both ends, because the data that the proxy held is lost.
    pub(super) fn break_off(&mut self, ctx: &mut Context, bytes: u32) -> Flow {
        let reason = Reason::MiddleboxDied(bytes);
        ctx.command(Pair::Reset);
        self.let_go(ctx);
        ctx.erase();
        ctx.report(Role::Local, self.a, Progress::Lost(reason.clone()));
        self.finish(ctx, Err(reason))
    }

    pub(super) fn let_go(&mut self, ctx: &mut Context) {
        ctx.command(Pair::Unlock);
    }

    pub(super) fn finish(&mut self, ctx: &mut Context, result: Result<(), Reason>) -> Flow {
        ctx.finish([Some(self.a), self.b], self.asker, result)
    }

    pub(super) fn no_record(&mut self, ctx: &mut Context, error: String) -> Flow {
        match self.phase {
            Phase::Preparing => {}
            // The cut was ordered after the record, and has not been made.
            Phase::Cutting => self.phase = Phase::Preparing,
            // The record of the cut stays, and is sufficient.
            _ => {
                ctx.trouble(Reason::NoRecord(error));
                return Flow::On;
            }
        }
        ctx.purge();
        self.fail(ctx, Reason::NoRecord(error))
    }

    pub(super) fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        if self.phase < Phase::Cutting {
            return self.fail(ctx, Reason::Closing);
        }
        self.gone = true;
        // The data that the proxy still holds for the other end may drain. Otherwise everything is
        // removed two MSL after the end.
        match self.phase {
            Phase::Closing => {}
            Phase::Cutting => ctx.deadline(CUT_AFTER_END),
            _ => ctx.deadline(TWO_MSL),
        }
        Flow::On
    }

    pub(super) fn persist(&self, ctx: &mut Context, b: Subsession, stage: LocalStage) {
        ctx.persist(RoleRecord::Local {
            a: self.a,
            b,
            asker: self.asker,
            translation: self.translation,
            stage,
        });
    }
}
