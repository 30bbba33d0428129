//! Messages between an asker and the host that opened a session, and their form on the wire.

use dysco_common::Element;
use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::change::Asked;
use crate::marked::Marked;

/// Maximum number of bytes of a cause, and of its hint.
const MAX_REASON: usize = 1024;

/// Identifier of a question, the same on both hosts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct AskId(pub [u8; 16]);

/// Outcome of a change of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The session has the chain. In a dry run: it could have it.
    Changed,
    /// Nothing was changed.
    Refused,
    /// The change was begun, and rolled back.
    RolledBack,
}

/// The answer to a question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Outcome of the change.
    pub outcome: Outcome,
    /// Reason, unless the chain was changed.
    pub reason: Option<Cause>,
    /// Elements that the session passed. Empty if the asker is not entitled to know them.
    pub before: Vec<Element>,
    /// Elements that the session was to pass.
    pub after: Vec<Element>,
    /// True if a host had not answered in time.
    pub timed_out: bool,
}

impl Answer {
    /// Returns an answer for a request that was refused.
    pub fn refused(why: Cause) -> Answer {
        Answer {
            outcome: Outcome::Refused,
            reason: Some(why),
            before: Vec::new(),
            after: Vec::new(),
            timed_out: false,
        }
    }

    /// Shortens the reason so that it fits into a message.
    pub fn cut(mut self) -> Answer {
        if let Some(Cause { why, hint }) = &mut self.reason {
            for text in [Some(why), hint.as_mut()].into_iter().flatten() {
                text.truncate(text.floor_char_boundary(MAX_REASON));
            }
        }
        self
    }
}

/// A message. The brackets contain sender and receiver.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// [the asker to the host that opened the session] Asks for another chain.
    Ask {
        /// The question.
        ask: AskId,
        /// True if the asker has received `Heard` for this question before.
        heard: bool,
        /// The request.
        asked: Asked,
    },
    /// [in reply] Reports that the request is being handled.
    Heard {
        /// The question.
        ask: AskId,
    },
    /// [in reply] Reports that the request has ended.
    Answer {
        /// The question.
        ask: AskId,
        /// The answer.
        answer: Answer,
    },
}

impl Message {
    /// Returns the name of the message, for tests.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Ask { .. } => "Ask",
            Message::Heard { .. } => "Heard",
            Message::Answer { .. } => "Answer",
        }
    }
}

impl Marked for Message {
    const MARK: u8 = b'A';
    const VERSION: u8 = 4;
}
