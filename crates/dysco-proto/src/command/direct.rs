//! Commands of direct server return, in which replies bypass a relaying host.

use dysco_common::Translation;

#[cfg(doc)]
use super::super::event::HostEvent;
use super::super::message::Probe;
use super::super::names::Subsession;

/// A command to the relaying host (`Watch`, `Returned`) or to the server's host (`Prove`,
/// `Return`).
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantNames)]
pub enum Direct {
    /// Watches for the answer of this session's client to a segment that the client has received
    /// before. The answer is [`HostEvent::Watching`]. [`HostEvent::Proved`] follows when the client
    /// has answered.
    Watch {
        /// Session A or session B.
        subsession: Subsession,
    },
    /// Sends the client that segment under the relaying host's address. The answer is
    /// [`HostEvent::Prepared`].
    Prove {
        /// Session of this host.
        subsession: Subsession,
        /// The session as the client knows it.
        path: Subsession,
        /// The segment.
        probe: Probe,
        /// Differences of the headers, if the relaying host relays already.
        translation: Option<Translation>,
    },
    /// Sends replies directly to the client. The answer is [`HostEvent::Prepared`].
    Return {
        /// Session of this host.
        subsession: Subsession,
        /// The session as the client knows it.
        path: Subsession,
        /// Differences of the headers, as this end needs them.
        translation: Translation,
    },
    /// Records that the replies of this session, which this host relays, bypass this host.
    Returned {
        /// Session A.
        subsession: Subsession,
    },
}
