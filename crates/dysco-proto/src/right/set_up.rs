//! The set-up of the new path on the right anchor.

use dysco_common::Translation;

use super::stage::{SetUp, Stage};
use super::{Right, SILENCE};
use crate::command::{Anchor, Side};
use crate::context::{Context, Flow};
use crate::message::{Facts, Message};
use crate::names::Subsession;
use crate::reason::Reason;
use crate::report::{Progress, Role};

impl Right {
    /// Answers the middle's introduction with the facts.
    pub(super) fn introduced(&self, ctx: &mut Context) -> Flow {
        let facts = match &self.stage {
            Stage::Locked { facts } => Some(*facts),
            Stage::Preparing { facts, .. } | Stage::SettingUp(SetUp { facts, .. }) => *facts,
            _ => return ctx.stale(),
        };
        let change = ctx.change;
        let message = match facts {
            Some(facts) => Message::Introduced { change, facts },
            // A former process had the facts.
            None => Message::NackLock {
                change,
                reason: Reason::Restarted,
            },
        };
        ctx.say(self.middle, message);
        Flow::On
    }

    pub(super) fn prepare(
        &mut self,
        ctx: &mut Context,
        new: Subsession,
        facts: Option<Facts>,
    ) -> Flow {
        self.stage = Stage::Preparing {
            new,
            facts,
            asked: false,
        };
        ctx.command(Anchor::Prepare {
            side: Side::Right,
            own: self.b,
            new,
            translation: Translation::default(),
        });
        ctx.deadline(SILENCE);
        Flow::On
    }

    /// Reports that this host receives on the new path.
    pub(super) fn prepared(&self, ctx: &mut Context, path: &SetUp) {
        ctx.report(Role::Right, self.b, Progress::SetUp);
        ctx.drop_pending();
        ctx.deadline(SILENCE);
        self.say_set_up(ctx, path);
    }

    pub(super) fn say_set_up(&self, ctx: &mut Context, path: &SetUp) {
        let (change, new) = (ctx.change, path.new);
        let message = match path.unprepared.clone() {
            None => Message::SetUpAck { change, new },
            // The left anchor cancels, unless it has cut.
            Some(reason) => Message::SetUpNack { change, reason },
        };
        ctx.say(self.left, message);
    }
}
