//! Messages of the local API about middleboxes that change the size of a stream.

use serde::{Deserialize, Serialize};

use super::name::{SessionId, SessionName};

/// A middlebox's declaration that it no longer changes the size of this session's stream, and
/// that all bytes it has added or removed so far are acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellDelta {
    /// The session, as the middlebox's host lists it on either side.
    pub session: SessionName,
    /// Total number of bytes that the middlebox added to the direction to the server; negative if
    /// it removed bytes.
    #[serde(default)]
    pub to_server: i32,
    /// Total number of bytes that the middlebox added to the direction to the client; negative if
    /// it removed bytes.
    #[serde(default)]
    pub to_client: i32,
}

/// The delta that the daemon has stored for a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaReport {
    /// The session.
    pub session: SessionId,
    /// Delta to the server, as declared.
    pub to_server: i32,
    /// Delta to the client, as declared.
    pub to_client: i32,
}
