//! The host that asked a middlebox's host to leave a session.

use std::time::Duration;

use super::context::{Context, Flow};
use super::message::{HostId, Message, Subsession};
use super::reason::Reason;
use super::report::{Progress, Role};

/// A host that says nothing for so long is not there.
const SILENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Hash, Debug)]
pub(super) struct Asker {
    host: HostId,
    subsession: Subsession,
    /// It has answered.
    heard: bool,
}

impl Asker {
    pub fn start(ctx: &mut Context, host: HostId, subsession: Subsession) -> Self {
        let change = ctx.change;
        ctx.report(Role::Asker, subsession, Progress::Requested);
        ctx.insist(host, Message::Ask { change, subsession });
        ctx.deadline(SILENCE);
        Asker {
            host,
            subsession,
            heard: false,
        }
    }

    pub fn host(&self) -> HostId {
        self.host
    }

    pub fn on_message(&mut self, ctx: &mut Context, message: Message) -> Flow {
        match message {
            Message::Asked { result, .. } => self.end(ctx, result),
            // It lives: the question is repeated until the end.
            _ => {
                self.heard = true;
                ctx.deadline(SILENCE);
                Flow::On
            }
        }
    }

    /// The operator waits no longer, or the host cannot be reached. Once it has
    /// answered, the change is its own.
    pub fn cancel(&mut self, ctx: &mut Context) -> Flow {
        if self.heard {
            return ctx.stale();
        }
        self.on_deadline(ctx)
    }

    pub fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
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
