//! Records of changes, per change and role, which must outlive a crash of this daemon.

use dysco_common::Translation;
use dysco_common::chain::Token;
use dysco_common::two_paths::Cutoff;
use dysco_explain::{Explain, Explanation, display_explained};
use serde::{Deserialize, Serialize};

use super::message::{Order, Plan};
use super::names::{ChangeId, HostId, Subsession};

/// First byte of each record.
const VERSION: u8 = 8;

/// A record that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// A daemon with another layout wrote the record.
    Version(Option<u8>),
    /// The record is truncated or garbage.
    Malformed(#[source] postcard::Error),
    /// The change is under way already.
    Duplicate(ChangeId),
}

display_explained!(RecordError);

impl Explain for RecordError {
    fn explain(&self) -> Explanation {
        let of = |why: String| Explanation::new("restore a change", why);
        match self {
            RecordError::Version(version) => {
                let version = version.map_or("no version".into(), |v| format!("version {v}"));
                of(format!(
                    "its record has {version}, and this daemon reads {VERSION}"
                ))
                .hint("start the former release, let the change end, then upgrade")
            }
            RecordError::Malformed(source) => of(format!("its record is unreadable: {source}"))
                .hint("start the release that wrote it, and let the change end"),
            RecordError::Duplicate(change) => Explanation::new(
                format!("restore change {change}"),
                "it is under way already",
            ),
        }
    }
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
    /// A left anchor without a plan, to be rolled back. Without this record a late copy of the
    /// request would begin the change again, while the other hosts still receive its cancel.
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
        /// True if the end of the session is elsewhere: this host is the end of a segment.
        inner: bool,
    },
    Lead {
        session: Subsession,
        /// True if this anchor was ordered to leave the new path. A late message must not make it
        /// take that path again.
        abandoned: bool,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum HeadStage {
    /// Both paths exist. To be rolled back.
    Preparing,
    /// To be completed.
    Completing,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum LeftStage {
    /// To be rolled back.
    Preparing,
    /// Possibly cut. To be continued.
    Cut {
        new: Subsession,
        /// Number of the last liveness check of the new path.
        round: u32,
    },
    /// Both ends have drained. To be completed.
    Completing { new: Subsession },
    /// The new path has died, and neither anchor receives on it any more. To be rolled back.
    TakenBack { new: Subsession, round: u32 },
}

impl LeftStage {
    pub(crate) fn is_rolled_back(self) -> bool {
        match self {
            LeftStage::Preparing | LeftStage::TakenBack { .. } => true,
            LeftStage::Cut { .. } | LeftStage::Completing { .. } => false,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum RightStage {
    /// Prepared. The left anchor knows the state of the change.
    Prepared,
    /// The left anchor's cut has been carried out here.
    Switched { cutoff: Cutoff },
    /// This host does not receive on the new path any more. The left anchor decides what follows.
    Muted {
        round: u32,
        /// Cutoff of the left anchor, if it had cut here.
        cutoff: Option<Cutoff>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum LocalStage {
    /// To be rolled back.
    Preparing,
    /// Possibly cut. To be continued.
    Cut,
    /// Both directions have drained. To be completed.
    Completing,
}

impl Record {
    pub(crate) fn encode(&self) -> Vec<u8> {
        // Plain data is written into memory, so that nothing can fail here. `decode` would refuse
        // an empty record.
        postcard::to_extend(self, vec![VERSION]).unwrap_or_default()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Record, RecordError> {
        match bytes.split_first() {
            Some((&VERSION, body)) => postcard::from_bytes(body).map_err(RecordError::Malformed),
            other => Err(RecordError::Version(other.map(|(v, _)| *v))),
        }
    }
}
