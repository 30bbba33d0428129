//! What is said about state between two hosts, and its form on the wire.

use std::net::IpAddr;

use dysco_proto::KindName;
use serde::{Deserialize, Serialize};

use crate::document::FiveTuple;

/// The first byte of these messages: no version of the session protocol has it.
const MARK: u8 = b'S';
/// The second.
const VERSION: u8 = 1;
/// Most bytes of a part.
pub const PART: usize = 3000;
/// Most bytes of a reason.
pub const MAX_REASON: usize = 1024;

/// Names a transfer on its three hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TransferId(pub [u8; 16]);

/// Result of an installation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Moved {
    /// So many documents.
    pub documents: u32,
    /// Of which were not there before.
    pub new: u32,
    /// Of which were, and were brought up to date.
    pub updated: u32,
}

/// A message. In brackets who says it to whom.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// [an end of the session to the new host] Take its state from that host.
    Expect {
        /// The transfer.
        transfer: TransferId,
        /// Whose state.
        session: FiveTuple,
        /// The old host.
        from: IpAddr,
        /// Only see whether it could be installed.
        dry_run: bool,
    },
    /// [the new host to that end] I will.
    Expecting {
        /// The transfer.
        transfer: TransferId,
    },
    /// [an end of the session to the old host] Give its state to that host.
    Give {
        /// The transfer.
        transfer: TransferId,
        /// Whose state.
        session: FiveTuple,
        /// The new host.
        to: IpAddr,
        /// Only these kinds; all without any.
        kinds: Vec<KindName>,
        /// Number of times that this was asked before.
        attempt: u16,
    },
    /// [the old host to the new one] Some of the documents' JSON.
    Part {
        /// The transfer.
        transfer: TransferId,
        /// The attempt that it answers.
        attempt: u16,
        /// Index of the part, from 0.
        part: u16,
        /// Of how many.
        parts: u16,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// [either host to that end] How it ended.
    Ended {
        /// The transfer.
        transfer: TransferId,
        /// Installed, or why nothing was.
        result: Result<Moved, String>,
    },
}

impl Message {
    /// Its name, for tests.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Expect { .. } => "Expect",
            Message::Expecting { .. } => "Expecting",
            Message::Give { .. } => "Give",
            Message::Part { .. } => "Part",
            Message::Ended { .. } => "Ended",
        }
    }

    /// True if the bytes are one of these messages, and not of the session protocol.
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.first() == Some(&MARK)
    }

    /// Its bytes.
    pub fn encode(&self) -> Result<Vec<u8>, postcard::Error> {
        postcard::to_extend(self, vec![MARK, VERSION])
    }

    /// The message that these bytes are, all of them.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let body = bytes.strip_prefix(&[MARK, VERSION])?;
        let (message, rest) = postcard::take_from_bytes(body).ok()?;
        rest.is_empty().then_some(message)
    }
}
