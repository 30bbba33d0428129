//! Events of a service, and the flows that they concern.

use bytes::Bytes;

use crate::Out;

/// Name of a flow that a service opened.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct FlowId(pub u32);

/// Name of a timer. A service chooses its own numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TimerId(pub u32);

/// A stream of bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Flow {
    /// The session, from the end that opened it to the other.
    Forward,
    /// The session, to the end that opened it.
    Back,
    /// A connection that the service opened. It carries both directions.
    Own(FlowId),
}

/// An event of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The service is in the session. The next byte of each direction is its first; at both ends, the
    /// direction from the other host may begin later.
    Open,
    /// Bytes arrived. There is at least one.
    Data {
        /// The flow that carried them.
        flow: Flow,
        /// The bytes.
        bytes: Bytes,
    },
    /// The flow ended in order: no byte follows.
    Fin(Flow),
    /// The next element of the flow wants no bytes for now. It still gets bytes that are sent.
    Full(Flow),
    /// The next element of the flow wants bytes again.
    Writable(Flow),
    /// A connection that the service asked for is open.
    Opened(FlowId),
    /// A connection that the service asked for failed, or broke.
    Failed(FlowId),
    /// A timer ran out.
    Timer(TimerId),
    /// An application or the operator calls this service. The service answers by [`Out::answer`].
    Call(Bytes),
    /// The operator requests that the service leave as soon as it can. A service at both ends,
    /// beside others that stay, gets this event once per direction: first for the direction to the
    /// other host, in which it sends nothing more once it has left, and again after the last byte
    /// of the other direction.
    Leave,
}

impl Flow {
    /// Both directions of the session.
    pub const SESSION: [Flow; 2] = [Flow::Forward, Flow::Back];

    /// Returns the other direction of the session. A flow of a service is its own reverse.
    pub fn reverse(self) -> Flow {
        match self {
            Flow::Forward => Flow::Back,
            Flow::Back => Flow::Forward,
            own @ Flow::Own(_) => own,
        }
    }
}

impl Event {
    /// Applies the default: passes on bytes and ends, holds a full flow, and leaves on request. A
    /// call gets no answer. Events of the service's own flows have no effect.
    pub fn pass_on(self, out: &mut Out) {
        match self {
            Event::Data { flow, bytes } if flow.is_session() => out.send(flow, bytes),
            Event::Fin(flow) if flow.is_session() => out.fin(flow),
            Event::Full(flow) if flow.is_session() => out.hold(flow),
            Event::Writable(flow) if flow.is_session() => out.release(flow),
            Event::Leave => out.leave(),
            _ => {}
        }
    }
}

impl Flow {
    /// True if the flow is a direction of the session.
    pub(crate) fn is_session(self) -> bool {
        !matches!(self, Flow::Own(_))
    }
}
