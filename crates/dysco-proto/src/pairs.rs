//! Messages between the hosts of a session's two ends, about services that are at both ends.
//!
//! ```text
//! asker                                       other host
//!    ----- Invite ------------------------------>         a place to connect to
//!    <---- Invited ------------------------------
//!    ===== a connection between the handlers ===>
//!    ----- Proceed ----------------------------->         the asker's handler has the session
//!    <---- Ready --------------------------------         its end's data enters from now on
//!    ----- Cut, Done ---------> <--- Cut, Done ---        cutoff of each direction
//!
//! either host                                 the other one
//!    ----- Leave ------------------------------->         it takes what comes directly
//!    <---- Leaving ------------------------------         its end's data leaves from now on
//!    ----- Cut, Done, Out ----> <--- Cut, Done, Out       both forget the session
//!
//! asker                                       other host
//!    ----- Alter ------------------------------->         some come in beside others, or leave
//!    <---- Altered ------------------------------         its handler is ready for those
//! ```
//!
//! After `Altered` the two handlers alone change the services: they tell each other the bytes by their
//! connection.
//!
//! A message that is not answered is repeated. Each has the same effect once and several times.

use std::fmt;
use std::net::SocketAddr;

use dysco_explain::Cause;
use serde::{Deserialize, Serialize};

use super::marked::Marked;

/// Name of a pair of services, the same on both hosts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct PairId(pub [u8; 16]);

/// A secret of the two hosts. The channel that it is sent by is encrypted, and has forward secrecy.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// A change of a session's routes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// Its data enters the services.
    Enter,
    /// Its data leaves them.
    Leave,
}

/// Content of a message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Content {
    /// Asks the host of the other end to put the same services into the session.
    Invite {
        /// The end that opened the session.
        opener: SocketAddr,
        /// The other end.
        other: SocketAddr,
        /// The services, as on the command line, in order from the opener.
        services: Vec<String>,
        /// Secret from which services derive keys.
        secret: Secret,
        /// Proves to the other host whose connection arrives.
        token: Secret,
        /// The ends have sent nothing yet: no host has offered them a window.
        silent: bool,
    },
    /// Answers `Invite`: the TCP port to connect to, or the reason against it.
    Invited(Result<u16, Cause>),
    /// Reports that the asker's handler has the session and the connection.
    Proceed,
    /// Reports that the other host's data enters the services from now on.
    Ready,
    /// Tells the cutoff of the sender's data, in the numbers of its end.
    Cut(Change, u32),
    /// Reports that the sender's end has all data before the receiver's cutoff.
    Done(Change),
    /// Asks to take the services out. The sender takes data that comes directly.
    Leave,
    /// Reports the same of the sender, and that its data leaves from now on.
    Leaving,
    /// Reports that no data of the session passes the sender's handler any more.
    Out,
    /// Ends the pair. If data is in the services, the session ends with it.
    Abort(Cause),
    /// Asks the other host to be ready for a change of some services, while the others stay.
    Alter(Alteration),
    /// Answers the `Alter` with this secret.
    Altered(Secret, Result<(), Cause>),
}

/// A change of some of a session's services at both ends.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Alteration {
    /// Secret from which services that come in derive keys. It names the change as well.
    pub secret: Secret,
    /// The services that come in, as on the command line, in order from the program.
    pub enter: Vec<String>,
    /// Names of the services that leave.
    pub leave: Vec<String>,
}

/// A message about a pair.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Message {
    /// The pair.
    pub pair: PairId,
    /// Content.
    pub content: Content,
}

impl Content {
    /// All names of messages.
    pub const NAMES: [&str; 15] = [
        "ServiceInvite",
        "ServiceInvited",
        "ServiceProceed",
        "ServiceReady",
        "ServiceCutIn",
        "ServiceCutOut",
        "ServiceDoneIn",
        "ServiceDoneOut",
        "ServiceLeave",
        "ServiceLeaving",
        "ServiceOut",
        "ServiceAbort",
        "ServiceAlter",
        "ServiceAltered",
        "ServiceRefused",
    ];

    /// Returns the name of the message, for tests. Messages about other changes have other names.
    pub fn name(&self) -> &'static str {
        match self {
            Content::Invite { .. } => "ServiceInvite",
            Content::Invited(Ok(_)) => "ServiceInvited",
            Content::Invited(Err(_)) => "ServiceRefused",
            Content::Proceed => "ServiceProceed",
            Content::Ready => "ServiceReady",
            Content::Cut(Change::Enter, _) => "ServiceCutIn",
            Content::Cut(Change::Leave, _) => "ServiceCutOut",
            Content::Done(Change::Enter) => "ServiceDoneIn",
            Content::Done(Change::Leave) => "ServiceDoneOut",
            Content::Leave => "ServiceLeave",
            Content::Leaving => "ServiceLeaving",
            Content::Out => "ServiceOut",
            Content::Abort(_) => "ServiceAbort",
            Content::Alter(_) => "ServiceAlter",
            Content::Altered(..) => "ServiceAltered",
        }
    }
}

impl Marked for Message {
    const MARK: u8 = b'P';
    const VERSION: u8 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were() {
        let contents = [
            Content::Invite {
                opener: "[2001:db8::1]:1".parse().unwrap(),
                other: "192.0.2.1:2".parse().unwrap(),
                services: vec!["compress=level=9".into(), "crypt".into()],
                secret: Secret([1; 32]),
                token: Secret([2; 32]),
                silent: true,
            },
            Content::Invited(Ok(7)),
            Content::Invited(Err(Cause::new("why").hint("do"))),
            Content::Cut(Change::Enter, u32::MAX),
            Content::Done(Change::Leave),
            Content::Abort("gone".into()),
            Content::Alter(Alteration {
                secret: Secret([4; 32]),
                enter: vec!["compress".into()],
                leave: vec!["crypt".into()],
            }),
            Content::Altered(Secret([4; 32]), Err(Cause::new("busy"))),
        ];
        for content in contents {
            assert!(Content::NAMES.contains(&content.name()));
            let pair = PairId([3; 16]);
            let message = Message { pair, content };
            let bytes = message.encode().unwrap();
            assert!(Message::is_one(&bytes));
            assert_eq!(Message::decode(&bytes), Some(message));
            assert_eq!(Message::decode(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn a_secret_is_not_in_debug_output() {
        assert_eq!(format!("{:?}", Secret([7; 32])), "Secret");
    }
}
