//! A daemon's knowledge of a session's services, and the messages between daemons.

use std::fmt;

/// Progress of a session's services, as `engine/services` names it. Sockets that are being made, or
/// that the handler has been offered, are part of the step to `Accepted`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Stage {
    /// There are none.
    #[default]
    None,
    /// The other host is asked to take part, or is awaited.
    Invited,
    /// This host's handler has accepted them.
    Accepted,
    /// The session is led through them.
    Entering,
    /// All bytes pass them.
    In,
    /// The session is led past them.
    Leaving,
}

/// A change of a session's routes, as in `dysco_proto::pairs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Change {
    /// Its data enters the services.
    Enter,
    /// Its data leaves them.
    Leave,
}

/// The other half of a session's services.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Pair {
    /// Name of the pair.
    pub id: u8,
    /// True if this host has asked the other one.
    pub asks: bool,
    /// True if this host connects to the other one.
    pub connects: bool,
    /// True if the asker's handler has the session.
    pub proceeds: bool,
    /// Change whose cutoff this host has sent to the other one.
    pub told: Option<Change>,
    /// Change that this host has reported as over for the data of the other host's end.
    pub told_done: Option<Change>,
    /// Change that is over for the data of this host's end.
    pub done: Option<Change>,
    /// True if this host has reported that no data passes its handler.
    pub told_out: bool,
    /// True if no data passes the other handler.
    pub out: bool,
}

impl Pair {
    /// Returns the half of a session that has not changed yet.
    pub fn new(id: u8, asks: bool) -> Pair {
        Pair {
            id,
            asks,
            connects: false,
            proceeds: false,
            told: None,
            told_done: None,
            done: None,
            told_out: false,
            out: false,
        }
    }
}

/// The daemon of a host.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Daemon {
    /// True if its process has died.
    pub dead: bool,
    /// Progress of the session's services.
    pub stage: Stage,
    /// The other half, if the services are at both ends.
    pub pair: Option<Pair>,
}

impl fmt::Display for Daemon {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dead = if self.dead { "†" } else { "" };
        let pair = self
            .pair
            .map_or(String::new(), |pair| format!("#{}", pair.id));
        write!(f, "{:?}{pair}{dead}", self.stage)
    }
}

/// Content of a message, as in `dysco_proto::pairs`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub enum Content {
    /// Asks the other host to take part.
    Invite,
    /// Answers: the other host takes part, or does not.
    Invited(bool),
    /// The asker's handler has the session and the connection.
    Proceed,
    /// The other host's data enters.
    Ready,
    /// Cutoff of the sender's data.
    Cut(Change, u32),
    /// The sender's end has all data before the receiver's cutoff.
    Done(Change),
    /// Asks to take the services out.
    Leave,
    /// The sender's data leaves.
    Leaving,
    /// No data passes the sender's handler.
    Out,
    /// Ends the pair.
    Abort,
}

/// A message on its way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Letter {
    /// Receiver.
    pub to: usize,
    /// Name of the pair.
    pub pair: u8,
    /// Content.
    pub content: Content,
}

impl fmt::Display for Letter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{:?}#{}", self.to, self.content, self.pair)
    }
}
