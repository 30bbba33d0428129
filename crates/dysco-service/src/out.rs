//! Actions of a service.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use dysco_explain::Cause;

use crate::{Flow, FlowId, TimerId};

/// Collects what a service does while it handles one event. The order is kept.
#[derive(Debug)]
pub struct Out {
    pub(crate) actions: Vec<Action>,
    /// Name of the next flow that the service opens.
    pub(crate) next_flow: u32,
    now: Duration,
}

/// One action of a service.
#[derive(Debug)]
pub(crate) enum Action {
    Send(Flow, Bytes),
    Fin(Flow),
    Hold(Flow, bool),
    Timer(TimerId, Duration),
    Open(FlowId, SocketAddr),
    Notify(String),
    Answer(Bytes),
    Refuse(Cause),
    Leave,
    Fail(String),
}

impl Out {
    pub(crate) fn new(next_flow: u32, now: Duration) -> Out {
        Out {
            actions: Vec::new(),
            next_flow,
            now,
        }
    }

    /// Time since a fixed moment, as the host of the stack knows it. It never goes back.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Sends bytes to the next element of the flow. It always completes.
    pub fn send(&mut self, flow: Flow, bytes: impl Into<Bytes>) {
        let bytes = bytes.into();
        if !bytes.is_empty() {
            self.actions.push(Action::Send(flow, bytes));
        }
    }

    /// Ends the flow in order. Nothing may be sent on it after that.
    pub fn fin(&mut self, flow: Flow) {
        self.actions.push(Action::Fin(flow));
    }

    /// Asks for no more data of the flow until [`Out::release`]. Data that is on its way waits in
    /// front of the service.
    pub fn hold(&mut self, flow: Flow) {
        self.actions.push(Action::Hold(flow, true));
    }

    /// Asks for data of the flow again.
    pub fn release(&mut self, flow: Flow) {
        self.actions.push(Action::Hold(flow, false));
    }

    /// Starts a timer. It replaces a running timer with the same name.
    pub fn timer(&mut self, timer: TimerId, after: Duration) {
        self.actions.push(Action::Timer(timer, after));
    }

    /// Opens a connection to another host. [`Event::Opened`] or [`Event::Failed`] follows.
    ///
    /// [`Event::Opened`]: crate::Event::Opened
    /// [`Event::Failed`]: crate::Event::Failed
    pub fn open(&mut self, to: SocketAddr) -> FlowId {
        let flow = FlowId(self.next_flow);
        self.next_flow += 1;
        self.actions.push(Action::Open(flow, to));
        flow
    }

    /// Reports a text to the operator: `dyscoctl monitor` shows it.
    pub fn notify(&mut self, text: impl Into<String>) {
        self.actions.push(Action::Notify(text.into()));
    }

    /// Answers a call.
    pub fn answer(&mut self, bytes: impl Into<Bytes>) {
        self.actions.push(Action::Answer(bytes.into()));
    }

    /// Refuses a call, for this reason.
    pub fn refuse(&mut self, cause: Cause) {
        self.actions.push(Action::Refuse(cause));
    }

    /// Leaves the session. The service sends nothing after this call. All bytes that it was not
    /// given pass by it unchanged.
    pub fn leave(&mut self) {
        self.actions.push(Action::Leave);
    }

    /// Ends the session with a reset to both ends. Only for a service without which the session
    /// cannot continue, such as a service that has received forged input.
    pub fn fail(&mut self, why: impl Into<String>) {
        self.actions.push(Action::Fail(why.into()));
    }
}
