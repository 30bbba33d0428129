//! Messages between `dyscod` and a runner.
//!
//! A message is JSON, in one datagram of a SOCK_SEQPACKET socket. Descriptors come with it
//! (SCM_RIGHTS). A runner may be older than the `dyscod` at the other end, since sessions outlive
//! a `dyscod`: the first report of a connection names the runner's [`VERSION`], and a receiver
//! ignores fields that it does not know.

mod client;
#[cfg(test)]
mod tests;
mod wire;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use crate::Spec;

pub use client::{Client, listen};
pub(crate) use wire::{receive, send};

/// Version of the messages.
pub const VERSION: u32 = 4;

/// Greatest number of bytes in a message.
pub const LONGEST: usize = 64 * 1024;

/// A request of `dyscod`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    /// Pass a session through services. Two descriptors come with it: the socket towards the end
    /// that opened the session, and the socket towards the other end. [`Report::Put`] answers. If
    /// the request is refused, no byte was read and none written.
    ///
    /// With a `pair`, one of the two is a connection to the runner of the other end's host. It
    /// carries frames: a length (32 bits, network order), and that number of bytes. A length of 0
    /// ends the direction. A length with the highest bit set begins a mark, at which a half of a
    /// service comes in or leaves; its other bits are the mark's length. Nothing is read from the
    /// connection before [`Request::Open`].
    Put {
        /// Names the session in all messages. `dyscod` chooses it.
        session: u64,
        /// The end that opened the session.
        opener: SocketAddr,
        /// The other end.
        other: SocketAddr,
        /// The other half, if the services are at both ends.
        #[serde(default)]
        pair: Option<Pair>,
        /// The services, in order from the end that opened the session.
        services: Vec<Spec>,
    },
    /// Read from the connection to the runner of the other end's host from now on.
    Open {
        /// The session.
        session: u64,
    },
    /// Put more services into a session that has some. [`Report::Added`] answers: all of them are
    /// in, or none. Since version 3.
    Add {
        /// The session.
        session: u64,
        /// The end of the session next to which they are put.
        next_to: End,
        /// Name of the service behind which they are put instead, as the opener sees it.
        #[serde(default)]
        behind: Option<String>,
        /// The services, in order from the end that opened the session. All are for one end.
        services: Vec<Spec>,
    },
    /// Put halves of services into a session whose services are at both ends, between these and the
    /// program. Since version 4.
    ///
    /// The runner of the requesting host begins, once the runner of the other host has answered.
    /// Its [`Report::Added`] follows when the services get all bytes, or at once if they are
    /// refused. The other runner answers at once, and keeps the halves ready: [`Report::Joined`]
    /// follows for each half that has come in. The other runner also lets the requesting host take
    /// out the services in `leaves`.
    Join {
        /// The session.
        session: u64,
        /// Secret of the two hosts, made for these services.
        #[serde(with = "hex::serde")]
        secret: [u8; 32],
        /// True if this runner begins.
        begins: bool,
        /// The services, in order from the end that opened the session.
        services: Vec<Spec>,
        /// Names of services that may leave; none if this runner begins.
        leaves: Vec<String>,
    },
    /// Ask the services with these names to leave a session. [`Report::Parted`] follows for each,
    /// and [`Report::Left`] instead if none is left. [`Report::Added`] follows with the reason if
    /// they cannot leave. Since version 3.
    Part {
        /// The session.
        session: u64,
        /// Names of services.
        services: Vec<String>,
    },
    /// Ask all services of a session to leave. [`Report::Left`] follows once they have, and the
    /// runner passes bytes on unchanged from then on.
    Take {
        /// The session.
        session: u64,
    },
    /// Forget a session and close its descriptors, without an effect on its two connections while
    /// `dyscod` has duplicates. [`Report::Released`] answers.
    Release {
        /// The session.
        session: u64,
        /// True to reset both connections first. This is for a session whose services an earlier
        /// `dyscod` put in: this one has no duplicates, and packets of the sockets arrive nowhere.
        #[serde(default)]
        reset: bool,
    },
    /// Call a service. [`Report::Answer`] follows, unless the service does not answer calls.
    Call {
        /// The session.
        session: u64,
        /// Name of the service. If several have it, the one next to the opener is called.
        service: String,
        /// Names the call in its answer.
        id: u64,
        /// The question, as the service understands it.
        #[serde(with = "hex::serde")]
        bytes: Vec<u8>,
    },
    /// List all sessions. One or more [`Report::Sessions`] follow.
    List,
}

/// A report of a runner.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub enum Report {
    /// The runner is ready. It is the first report of each connection.
    Ready {
        /// [`VERSION`] of the runner.
        version: u32,
    },
    /// Answers [`Request::Put`].
    Put {
        /// The session.
        session: u64,
        /// The reason, if the request was refused.
        result: Result<(), Cause>,
    },
    /// Answers [`Request::Add`] and [`Request::Join`], and refuses [`Request::Part`].
    Added {
        /// The session.
        session: u64,
        /// The reason, if the request was refused.
        result: Result<(), Cause>,
    },
    /// A service has come in, at the byte that the other host's runner named. Since version 4.
    Joined {
        /// The session.
        session: u64,
        /// Name of the service.
        service: String,
    },
    /// A service has left, as it was asked to or by itself, and others are in the session.
    Parted {
        /// The session.
        session: u64,
        /// Name of the service.
        service: String,
    },
    /// No service is in the session any more: all were asked to leave, or left by themselves.
    Left {
        /// The session.
        session: u64,
        /// Number of bytes that all services together added to each direction (forward, back),
        /// less those that they took out.
        delta: [i64; 2],
    },
    /// Answers [`Request::Release`].
    Released {
        /// The session.
        session: u64,
        /// The last numbers of its bytes, or none if the runner did not have the session.
        moved: Option<Moved>,
    },
    /// The session has ended. The runner has closed its descriptors.
    Ended {
        /// The session.
        session: u64,
        /// The way in which it ended.
        reason: Reason,
    },
    /// All services of the session have become idle, or no longer are. Since version 3.
    Idle {
        /// The session.
        session: u64,
        /// True if they are idle.
        idle: bool,
    },
    /// A service has a text for the operator.
    Notify {
        /// The session.
        session: u64,
        /// Name of the service.
        service: String,
        /// The text.
        text: String,
    },
    /// Answers [`Request::Call`].
    Answer {
        /// Number of the call.
        id: u64,
        /// The service's answer, or the reason for which there is none.
        result: Result<Bytes, Cause>,
    },
    /// Answers [`Request::List`].
    Sessions {
        /// Sessions, in order of their numbers.
        sessions: Vec<State>,
        /// True if another report with more sessions follows.
        more: bool,
    },
    /// A message was no request, or named an unknown session.
    Invalid {
        /// The reason.
        cause: Cause,
    },
}

/// The other half of services that are at both ends of a session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pair {
    /// Name of the pair, the same on both hosts.
    #[serde(with = "hex::serde")]
    pub id: [u8; 16],
    /// Address of the other host.
    pub peer: IpAddr,
    /// The end that is on the other host.
    pub beyond: End,
    /// Secret of the two hosts, made for this session.
    #[serde(with = "hex::serde")]
    pub secret: [u8; 32],
}

/// Shows no secret.
impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pair({}, {})", hex::encode(self.id), self.peer)
    }
}

/// Name of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PairName {
    /// The same on both hosts.
    #[serde(with = "hex::serde")]
    pub id: [u8; 16],
    /// Address of the other host.
    pub peer: IpAddr,
}

/// Bytes of an answer. They are hexadecimal in JSON.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(#[serde(with = "hex::serde")] pub Vec<u8>);

/// The way in which a session ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum Reason {
    /// Both directions ended, and everything was written.
    Fin,
    /// A connection broke. The runner has reset the other one.
    Reset {
        /// The end whose connection broke.
        end: End,
        /// The error, such as `Connection reset by peer`.
        error: String,
    },
    /// A service failed. The runner has reset both connections.
    Failed {
        /// Name of the service.
        service: String,
        /// Its reason.
        why: String,
    },
}

/// An end of a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The end that opened it.
    Opener,
    /// The other end.
    Other,
}

/// Numbers of bytes of a session, forward and back. At a moment at which nothing waits, `written`
/// less `read` is the number of bytes that services have added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Moved {
    /// Bytes that were read.
    pub read: [u64; 2],
    /// Bytes that the kernel took for the next end.
    pub written: [u64; 2],
    /// Bytes that wait in the runner for a socket.
    pub waiting: [u64; 2],
}

/// State of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct State {
    /// The session.
    pub session: u64,
    /// Names of its services, in order from the end that opened the session.
    pub services: Vec<String>,
    /// The pair, if they are at both ends.
    #[serde(default)]
    pub pair: Option<PairName>,
    /// Number of bytes that services which have left added to each direction.
    pub delta: [i64; 2],
    /// True if services were asked to leave.
    pub taken: bool,
    /// Directions (forward, back) that have ended and were written to their end.
    pub ended: [bool; 2],
    /// Numbers of bytes.
    pub moved: Moved,
}
