//! What must outlive a crash of this daemon, per change and role.

use dysco_common::Translation;
use dysco_common::chain::Token;
use dysco_common::two_paths::Cutoff;
use serde::{Deserialize, Serialize};

use super::message::{ChangeId, HostId, Order, Plan, Subsession};

/// First byte of each record.
const VERSION: u8 = 7;

/// A record that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Of a daemon with another layout.
    #[error(
        "restoring a change: its record has version {0:?}, this daemon reads {VERSION}; start the former release, let the change end, then upgrade"
    )]
    Version(Option<u8>),
    /// Truncated or garbage.
    #[error("restoring a change: its record is unreadable: {0}")]
    Malformed(#[source] postcard::Error),
    /// Twice the same.
    #[error("restoring change {0}: it is under way already")]
    Duplicate(ChangeId),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub change: ChangeId,
    pub role: RoleRecord,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum RoleRecord {
    Left {
        a: Subsession,
        plan: Plan,
        stage: LeftStage,
    },
    Middle {
        a: Subsession,
        b: Subsession,
        left: HostId,
        asker: Option<HostId>,
    },
    Right {
        b: Subsession,
        left: HostId,
        new: Subsession,
        stage: RightStage,
    },
    /// A left anchor without a plan yet: to be taken back. Without it a request
    /// of long ago would begin the change anew, while others still hear that
    /// it is off.
    Asked { a: Subsession, b: Subsession },
    Local {
        a: Subsession,
        b: Subsession,
        asker: Option<HostId>,
        translation: Translation,
        stage: LocalStage,
    },
    Head {
        order: Order,
        token: Token,
        asker: Option<HostId>,
        stage: HeadStage,
    },
    Tail {
        session: Subsession,
        token: Token,
        /// Its end is elsewhere: a segment's.
        inner: bool,
    },
    Lead {
        session: Subsession,
        /// It has been told to leave the new path: what is late must not have it
        /// taken again.
        abandoned: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum HeadStage {
    /// Both paths are there: to be rolled back.
    Preparing,
    /// To be completed.
    Completing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum LeftStage {
    /// To be rolled back.
    Preparing,
    /// Perhaps cut: to be carried on.
    Cut {
        new: Subsession,
        /// Of the last doubt about the new path.
        round: u32,
    },
    /// Drained at both ends: to be completed.
    Completing { new: Subsession },
    /// The new path has died, and both anchors hear it no more: to be rolled back.
    TakenBack { new: Subsession, round: u32 },
}

impl LeftStage {
    pub fn is_rolled_back(self) -> bool {
        match self {
            LeftStage::Preparing | LeftStage::TakenBack { .. } => true,
            LeftStage::Cut { .. } | LeftStage::Completing { .. } => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum RightStage {
    /// Prepared: the left anchor knows what became of it.
    Prepared,
    /// The left anchor has cut here.
    Switched { cutoff: Cutoff },
    /// The new path is not heard any more: the left anchor knows what becomes of it.
    Deaf {
        round: u32,
        /// Where it had cut here.
        cutoff: Option<Cutoff>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum LocalStage {
    /// To be rolled back.
    Preparing,
    /// Perhaps cut: to be carried on.
    Cut,
    /// Drained both ways: to be completed.
    Completing,
}

impl Record {
    pub fn encode(&self) -> Vec<u8> {
        // Plain data into memory: nothing here can fail, and an empty record
        // would be refused by `decode`.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    pub fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        match bytes.split_first() {
            Some((&VERSION, body)) => postcard::from_bytes(body).map_err(RecordError::Malformed),
            other => Err(RecordError::Version(other.map(|(v, _)| *v))),
        }
    }
}
