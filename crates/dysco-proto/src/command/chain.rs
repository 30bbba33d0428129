//! Commands to the anchors of a change of a chain, and to the host that decides about it.

use dysco_common::chain::Token;
use dysco_common::delta::Reach;
use dysco_common::two_paths::Cutoff;
use dysco_common::{Delta, Element};

#[cfg(doc)]
use super::super::event::HostEvent;
use super::super::names::{HostId, Subsession};

/// A command to an anchor of a session that gets another chain. The host that opened the session
/// decides about the change, and alone gets `MoveState` and `Splice`.
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantNames)]
pub enum Chain {
    /// Requests the facts about a session that is to get another chain. The later commands concern
    /// this session. The answer is [`HostEvent::Locked`].
    Hold {
        /// The session.
        session: Subsession,
    },
    /// Awaits another path of the session. The answer is [`HostEvent::Prepared`]. Has no effect if
    /// the path is awaited or present already.
    Extend {
        /// Token that the path's SYN will contain.
        token: Token,
    },
    /// Copies the state of a session from one host's firewall to another's. The answer is
    /// [`HostEvent::StateMoved`].
    MoveState {
        /// The session.
        session: Subsession,
        /// Host whose firewall has the state.
        from: HostId,
        /// Host whose firewall gets the state.
        to: HostId,
    },
    /// Opens the path through a chain. The answer is [`HostEvent::Prepared`], once firewalls on the
    /// path will accept the packets that follow, or if the delta is impossible.
    Open {
        /// Elements of the new path.
        chain: Vec<Element>,
        /// True if the last of them is at the right anchor, at which the segment ends.
        inner: bool,
        /// Token that the SYN has to contain.
        token: Token,
        /// Bytes that the leaving middleboxes have added. The path uses the numbers behind these
        /// middleboxes.
        delta: Delta,
        /// Numbers that the other end has sent and received, as of a moment ago.
        right: Reach,
    },
    /// Takes the new path, and still receives on the earlier one. The answer is
    /// [`HostEvent::CutDone`].
    Cut,
    /// Notes the number at which the other anchor has taken the new path. [`HostEvent::Drained`]
    /// follows once the new path has carried all that it has to.
    SetCutIn {
        /// The cutoff, in the wire's numbers.
        cutoff: Cutoff,
    },
    /// Forgets the earlier path, once its late packets have arrived.
    Complete,
    /// Records the new elements of a session's path between two hosts of its chain, or its ends.
    /// May be given twice.
    Splice {
        /// The session.
        session: Subsession,
        /// Host at which this part begins; `None` for the end that opened the session.
        left: Option<HostId>,
        /// Host at which this part ends; `None` for the other end.
        right: Option<HostId>,
        /// Elements between the two.
        hosts: Vec<Element>,
        /// Number of the path through them.
        number: u32,
    },
    /// Returns to the earlier path, if another was taken. The host still receives on the other path
    /// until [`Chain::Release`] forgets it.
    Abandon,
    /// Forgets the path that was abandoned.
    Release,
}
