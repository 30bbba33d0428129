//! Facts that each message has: its change, and its name.

use super::Message;
use crate::names::ChangeId;

impl Message {
    /// Returns the change of the message.
    pub fn change(&self) -> ChangeId {
        match self {
            Message::Ask { change, .. }
            | Message::Asked { change, .. }
            | Message::Leave { change, .. }
            | Message::Introduce { change, .. }
            | Message::Introduced { change, .. }
            | Message::RequestLock { change, .. }
            | Message::AckLock { change, .. }
            | Message::NackLock { change, .. }
            | Message::SetUp { change, .. }
            | Message::SetUpAck { change, .. }
            | Message::SetUpNack { change, .. }
            | Message::Switched { change, .. }
            | Message::Broken { change, .. }
            | Message::Lost { change, .. }
            | Message::Drained { change }
            | Message::Done { change }
            | Message::DoneAck { change }
            | Message::Cancel { change, .. }
            | Message::CancelAck { change }
            | Message::Query { change }
            | Message::Status { change, .. }
            | Message::Suspect { change, .. }
            | Message::Muted { change, .. }
            | Message::Keep { change, .. }
            | Message::Back { change, .. }
            | Message::Prove { change, .. }
            | Message::ProveAck { change, .. }
            | Message::Return { change, .. }
            | Message::ReturnAck { change, .. }
            | Message::Enlist { change, .. }
            | Message::Enlisted { change, .. }
            | Message::AskDelta { change, .. }
            | Message::TellDelta { change, .. }
            | Message::Extend { change, .. }
            | Message::Extended { change, .. }
            | Message::Settled { change }
            | Message::Dismiss { change, .. }
            | Message::Dismissed { change }
            | Message::Lead { change, .. }
            | Message::Open { change, .. }
            | Message::Opened { change, .. }
            | Message::Cut { change }
            | Message::Abandoned { change }
            | Message::Release { change }
            | Message::Released { change } => *change,
        }
    }

    /// Returns the names of all messages.
    pub fn names() -> &'static [&'static str] {
        <Message as strum::VariantNames>::VARIANTS
    }

    /// Returns the name of the message, for logs and reports.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}
