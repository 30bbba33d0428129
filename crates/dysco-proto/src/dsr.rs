//! The server's host in mode `return`. It carries out each request of the relaying host once.

use std::time::Duration;

use super::command::Direct;
use super::context::{Context, Flow};
use super::event::HostEvent;
use super::message::Message;
use super::names::{HostId, Subsession};
use super::reason::{Phase, Reason};
use super::report::{Progress, Role};

const PREPARE: Duration = Duration::from_secs(5);

#[derive(Clone, Hash, Debug)]
pub(super) struct Dsr {
    b: Subsession,
    /// The relaying host.
    middle: HostId,
    /// True if replies are to bypass the relaying host. False if this is only tested.
    returns: bool,
}

impl Dsr {
    /// Begins. Returns `None` if the message is no such request.
    pub(crate) fn start(ctx: &mut Context, message: &Message) -> Option<Self> {
        let (b, command) = match *message {
            Message::Prove {
                subsession,
                path,
                probe,
                translation,
                ..
            } => {
                let command = Direct::Prove {
                    subsession,
                    path,
                    probe,
                    translation,
                };
                (subsession, command)
            }
            Message::Return {
                subsession,
                path,
                translation,
                ..
            } => {
                let command = Direct::Return {
                    subsession,
                    path,
                    translation,
                };
                (subsession, command)
            }
            _ => return None,
        };
        let returns = matches!(command, Direct::Return { .. });
        ctx.command(command);
        ctx.deadline(PREPARE);
        Some(Dsr {
            b,
            middle: b.left.ip(),
            returns,
        })
    }

    pub(crate) fn subsession(&self) -> Subsession {
        self.b
    }

    pub(crate) fn middle(&self) -> HostId {
        self.middle
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::Preparing
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Prepared { result, .. } => self.end(ctx, result),
            HostEvent::SessionGone { .. } => self.end(ctx, Err(Reason::Closing)),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        self.end(ctx, Err(Reason::TimedOut(Phase::Preparing)))
    }

    fn end(&mut self, ctx: &mut Context, result: Result<(), Reason>) -> Flow {
        ctx.unlock(self.b);
        if self.returns && result.is_ok() {
            ctx.report(Role::Dsr, self.b, Progress::Removed);
        }
        let answer = answer(ctx, self.returns, result.clone());
        ctx.say(self.middle, answer);
        Flow::End(result)
    }
}

/// Returns the answer for the relaying host.
fn answer(ctx: &Context, returns: bool, result: Result<(), Reason>) -> Message {
    let change = ctx.change;
    match returns {
        true => Message::ReturnAck { change, result },
        false => Message::ProveAck { change, result },
    }
}
