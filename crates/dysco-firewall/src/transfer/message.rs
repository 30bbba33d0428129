//! Messages about state between two hosts, and their form on the wire.

use std::net::IpAddr;

use dysco_explain::Explanation;
use dysco_proto::KindName;
use dysco_proto::marked::Marked;
use serde::{Deserialize, Serialize};

use crate::five_tuple::FiveTuple;

/// Greatest number of bytes of a part.
pub(super) const PART: usize = 3000;
/// Greatest number of bytes of each part of a reason.
pub(super) const MAX_REASON: usize = 1024;

/// Name of a transfer on its three hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TransferId(pub [u8; 16]);

/// Result of an installation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Moved {
    /// Number of documents.
    pub documents: u32,
    /// Number of documents that were not there before.
    pub new: u32,
    /// Number of documents that were there, and were updated.
    pub updated: u32,
}

/// A message. The brackets name the sender and the receiver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// [an end of the session to the new host] Take the session's state from that host.
    Expect {
        /// The transfer.
        transfer: TransferId,
        /// The session.
        session: FiveTuple,
        /// The old host.
        from: IpAddr,
        /// True to check only that the state could be installed.
        dry_run: bool,
    },
    /// [the new host to that end] The new host expects the state.
    Expecting {
        /// The transfer.
        transfer: TransferId,
    },
    /// [an end of the session to the old host] Give the session's state to that host.
    Give {
        /// The transfer.
        transfer: TransferId,
        /// The session.
        session: FiveTuple,
        /// The new host.
        to: IpAddr,
        /// Only these kinds; all if empty.
        kinds: Vec<KindName>,
        /// Number of times that this was asked before.
        attempt: u16,
    },
    /// [the old host to the new one] A part of the documents' JSON.
    Part {
        /// The transfer.
        transfer: TransferId,
        /// The attempt that it answers.
        attempt: u16,
        /// Index of the part, from 0.
        part: u16,
        /// The number of parts.
        parts: u16,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// [either host to that end] The result.
    Ended {
        /// The transfer.
        transfer: TransferId,
        /// The documents installed, or the reason why none was.
        result: Result<Moved, Explanation>,
    },
}

impl Message {
    /// Returns its name, for tests.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Expect { .. } => "Expect",
            Message::Expecting { .. } => "Expecting",
            Message::Give { .. } => "Give",
            Message::Part { .. } => "Part",
            Message::Ended { .. } => "Ended",
        }
    }
}

impl Marked for Message {
    const MARK: u8 = b'S';
    const VERSION: u8 = 2;
}
