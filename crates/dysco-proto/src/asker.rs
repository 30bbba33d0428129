//! The host that asked a middlebox's host to leave a session.

use std::time::Duration;

use super::context::{Context, Flow};
use super::message::Message;
use super::names::{HostId, Subsession};
use super::reason::Reason;
use super::report::{Progress, Role};

/// Time without a message after which a host counts as absent.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Hash, Debug)]
pub(super) struct Asker {
    host: HostId,
    subsession: Subsession,
    /// True if the host has answered.
    heard: bool,
}

impl Asker {
    pub(crate) fn start(ctx: &mut Context, host: HostId, subsession: Subsession) -> Self {
        let change = ctx.change;
        ctx.report(Role::Asker, subsession, Progress::Requested);
        ctx.send_reliably(host, Message::Ask { change, subsession });
        ctx.deadline(SILENCE);
        Asker {
            host,
            subsession,
            heard: false,
        }
    }

    pub(crate) fn host(&self) -> HostId {
        self.host
    }

    pub(crate) fn on_message(&mut self, ctx: &mut Context, message: Message) -> Flow {
        match message {
            Message::Asked { result, .. } => self.end(ctx, result),
            // The host is alive: the question is repeated until the end.
            _ => {
                self.heard = true;
                ctx.deadline(SILENCE);
                Flow::On
            }
        }
    }

    /// Ends the request, because the operator does not wait any longer or the host cannot be
    /// reached. Once the host has answered, the change is the host's own.
    pub(crate) fn cancel(&mut self, ctx: &mut Context) -> Flow {
        if self.heard {
            return ctx.stale();
        }
        self.on_deadline(ctx)
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        let host = self.host;
        self.end(ctx, Err(Reason::NoAnswer(host)))
    }

    fn end(&mut self, ctx: &mut Context, result: Result<(), Reason>) -> Flow {
        let progress = match result.clone() {
            Ok(()) => Progress::Removed,
            Err(reason) => Progress::Refused(reason),
        };
        ctx.report(Role::Asker, self.subsession, progress);
        Flow::End(result)
    }
}
