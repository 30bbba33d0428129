//! Phases of the right anchor.

use super::*;

/// Phase of the change, with the data that only this phase has.
#[derive(Clone, Hash, Debug)]
pub(super) enum Stage {
    Locking,
    Locked {
        facts: Facts,
    },
    Preparing {
        new: Subsession,
        /// `None` after a restart: only the former process had them.
        facts: Option<Facts>,
        /// True if the left anchor was asked and has not answered.
        asked: bool,
    },
    SettingUp(SetUp),
    Cutting(CutOver),
    Draining(CutOver),
    /// The session returns to the old path.
    Cancelling {
        why: Reason,
        asked: bool,
        drained: bool,
    },
}

/// State of a new path that is prepared.
#[derive(Clone, Hash, Debug)]
pub(super) struct SetUp {
    pub(super) new: Subsession,
    pub(super) facts: Option<Facts>,
    /// Reason why this process could not prepare the path that a former process recorded.
    pub(super) unprepared: Option<Reason>,
    pub(super) asked: bool,
    pub(super) reception: Reception,
    /// Cutoff of the left anchor, if it arrived while this host does not receive on the path.
    pub(super) cut_in: Option<Cutoff>,
}

/// State of a new path once the left anchor has cut.
#[derive(Clone, Hash, Debug)]
pub(super) struct CutOver {
    pub(super) new: Subsession,
    /// Cutoff of the left anchor.
    pub(super) cut_in: Cutoff,
    /// Cutoff of this host, once it is known.
    pub(super) cutoff: Option<Cutoff>,
    /// True if the left anchor was asked before it reported its cut, and had not answered.
    pub(super) asked: bool,
    pub(super) drained: bool,
    pub(super) reception: Reception,
}

impl CutOver {
    /// Reports this host's cutoff to the left anchor.
    pub(super) fn say_switched(&self, ctx: &mut Context, left: HostId) {
        let change = ctx.change;
        if let Some(cutoff) = self.cutoff {
            ctx.say(left, Message::Switched { change, cutoff });
        }
    }
}

impl Right {
    pub(crate) fn phase(&self) -> Phase {
        match self.stage {
            Stage::Locking => Phase::Locking,
            Stage::Locked { .. } => Phase::Locked,
            Stage::Preparing { .. } => Phase::Preparing,
            Stage::SettingUp(_) => Phase::SettingUp,
            Stage::Cutting(_) => Phase::Cutting,
            Stage::Draining(_) => Phase::Draining,
            Stage::Cancelling { .. } => Phase::Cancelling,
        }
    }

    pub(super) fn reception(&self) -> Reception {
        match &self.stage {
            Stage::SettingUp(path) => path.reception,
            Stage::Cutting(path) | Stage::Draining(path) => path.reception,
            _ => Reception::Receives,
        }
    }

    pub(super) fn set_reception(&mut self, to: Reception) {
        match &mut self.stage {
            Stage::SettingUp(path) => path.reception = to,
            Stage::Cutting(path) | Stage::Draining(path) => path.reception = to,
            _ => {}
        }
    }

    /// Returns the new path, if it may have been prepared.
    pub(super) fn new_path(&self) -> Option<Subsession> {
        match &self.stage {
            Stage::Preparing { new, .. } => Some(*new),
            Stage::SettingUp(path) => Some(path.new),
            Stage::Cutting(path) | Stage::Draining(path) => Some(path.new),
            Stage::Locking | Stage::Locked { .. } | Stage::Cancelling { .. } => None,
        }
    }

    /// Returns the cutoff of the left anchor, if it has arrived.
    pub(super) fn cut_in(&self) -> Option<Cutoff> {
        match &self.stage {
            Stage::SettingUp(path) => path.cut_in,
            Stage::Cutting(path) | Stage::Draining(path) => Some(path.cut_in),
            _ => None,
        }
    }

    /// Returns true if the left anchor may have cut, so that the session may be moving to the new
    /// path.
    pub(super) fn is_between(&self) -> bool {
        matches!(
            self.stage,
            Stage::SettingUp(_) | Stage::Cutting(_) | Stage::Draining(_)
        )
    }
}
