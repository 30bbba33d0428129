//! What an asker and the host that opened a session say to each other, and its form on
//! the wire.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::change::Asked;

/// The first byte of these messages: no version of the session protocol has it.
const MARK: u8 = b'A';
/// The second.
const VERSION: u8 = 3;
/// Most bytes of a reason.
const MAX_REASON: usize = 1024;

/// Names a question on both hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AskId(pub [u8; 16]);

/// How a change of a chain ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Outcome {
    /// The session has the chain; in a dry run, it could.
    Changed,
    /// Nothing was changed.
    Refused,
    /// The change was begun, and taken back.
    RolledBack,
}

/// The answer to a question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// How it ended.
    pub outcome: Outcome,
    /// Why, unless it was changed.
    pub reason: Option<String>,
    /// The hosts that it passed; none if that is nobody's business.
    pub before: Vec<IpAddr>,
    /// The hosts that it was to pass.
    pub after: Vec<IpAddr>,
    /// A host had not answered in time.
    pub timed_out: bool,
}

impl Answer {
    /// Nothing was done.
    pub fn refused(why: &str) -> Answer {
        Answer {
            outcome: Outcome::Refused,
            reason: Some(why.to_owned()),
            before: Vec::new(),
            after: Vec::new(),
            timed_out: false,
        }
    }

    /// With a reason that fits a message.
    pub fn cut(mut self) -> Answer {
        if let Some(why) = &mut self.reason {
            let end = why.floor_char_boundary(MAX_REASON);
            why.truncate(end);
        }
        self
    }
}

/// A message. In brackets who says it to whom.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Message {
    /// [the asker to the host that opened the session] Give it another chain.
    Ask {
        /// The question.
        ask: AskId,
        /// It was told before that it has been heard.
        heard: bool,
        /// What for.
        asked: Asked,
    },
    /// [back] It is under way.
    Heard {
        /// The question.
        ask: AskId,
    },
    /// [back] It has ended.
    Answer {
        /// The question.
        ask: AskId,
        /// How.
        answer: Answer,
    },
}

impl Message {
    /// Its name, for tests.
    pub fn name(&self) -> &'static str {
        match self {
            Message::Ask { .. } => "Ask",
            Message::Heard { .. } => "Heard",
            Message::Answer { .. } => "Answer",
        }
    }

    /// Are these bytes one of these messages, and not of the session protocol?
    pub fn is_one(bytes: &[u8]) -> bool {
        bytes.first() == Some(&MARK)
    }

    /// Its bytes.
    ///
    /// # Errors
    /// Never for what this host has made: lists are short.
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
