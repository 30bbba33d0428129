//! Commands to the host of a middlebox.

#[cfg(doc)]
use super::super::event::HostEvent;
use super::super::names::Subsession;

/// A command to the host of the middlebox that is to leave.
#[derive(Clone, PartialEq, Eq, Debug, strum::IntoStaticStr, strum::VariantNames)]
pub enum Proxy {
    /// Measures the middlebox on this session. The answer is [`HostEvent::Measured`].
    Measure {
        /// Session A, or session B if the right neighbour asked.
        subsession: Subsession,
    },
    /// Puts tombstones, then closes the middlebox's two sockets without a packet. The answer is
    /// [`HostEvent::Closed`].
    Close {
        /// Session A.
        subsession_a: Subsession,
        /// Session B.
        subsession_b: Subsession,
    },
}
