//! What is said on the local API about middleboxes that change the size of a stream.

use serde::{Deserialize, Serialize};

use super::name::{SessionId, SessionName};

/// A middlebox's word: from now on it changes the size of this session's stream no
/// more, and what it has put in or taken away so far has been acknowledged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TellDelta {
    /// The session, as the middlebox's host lists it on either of its sides.
    pub session: SessionName,
    /// Bytes that it has put into what goes to the server, in all; negative if it has
    /// taken some away.
    #[serde(default)]
    pub to_server: i32,
    /// The same of what goes to the client.
    #[serde(default)]
    pub to_client: i32,
}

/// What is known of it now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeltaReport {
    /// The session.
    pub session: SessionId,
    /// As told.
    pub to_server: i32,
    /// As told.
    pub to_client: i32,
}
