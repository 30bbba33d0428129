//! The relaying host in mode `return`. It asks the server's host to prove that its packets reach
//! the client under this host's address. If this host relays already, it then asks the server's
//! host to answer the client itself.
//!
//! No part of this change has to be taken back or continued. A relay holds no byte, and the
//! server's host sends the packets that this host would have sent. Only the order of packets at the
//! client depends on the way that they take.

use std::time::Duration;

use dysco_common::Translation;

use super::command::Direct;
use super::context::{Context, Flow};
use super::event::{HostEvent, Watched};
use super::message::Message;
use super::names::{HostId, Subsession};
use super::reason::{Phase, Reason};
use super::report::{Progress, Role};

const WATCH: Duration = Duration::from_secs(5);
/// The segment is sent about five times within this time.
const PROVE: Duration = Duration::from_secs(3);
const RETURN: Duration = Duration::from_secs(10);

#[derive(Clone, Hash, Debug)]
pub(super) struct Proof {
    /// Session A. Until it is watched, the session that the request named.
    a: Subsession,
    b: Option<Subsession>,
    phase: Phase,
    relay: Option<Translation>,
    /// True if the server's host has sent the segment that the client shall answer.
    sent: bool,
}

impl Proof {
    pub(crate) fn start(ctx: &mut Context, subsession: Subsession) -> Self {
        ctx.report(Role::Proof, subsession, Progress::Requested);
        ctx.command(Direct::Watch { subsession });
        ctx.deadline(WATCH);
        Proof {
            a: subsession,
            b: None,
            phase: Phase::Measuring,
            relay: None,
            sent: false,
        }
    }

    pub(crate) fn subsession(&self) -> Subsession {
        self.a
    }

    /// Returns session B, once it is known.
    pub(crate) fn other(&self) -> Option<Subsession> {
        self.b
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns the server's host, once it is known.
    pub(crate) fn right(&self) -> Option<HostId> {
        self.b.map(|b| b.right.ip())
    }

    pub(crate) fn on_message(&mut self, ctx: &mut Context, message: Message) -> Flow {
        match message {
            Message::ProveAck { result, .. } if self.phase == Phase::SettingUp => match result {
                // `Prove` is repeated until the client has answered. The segment is sent once more
                // each time.
                Ok(()) => {
                    self.sent = true;
                    Flow::On
                }
                Err(reason) => self.fail(ctx, reason),
            },
            Message::ReturnAck { result, .. } if self.phase == Phase::Switching => match result {
                Ok(()) => self.returned(ctx),
                Err(reason) => self.fail(ctx, reason),
            },
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_event(&mut self, ctx: &mut Context, event: HostEvent) -> Flow {
        match event {
            HostEvent::Watching { result, .. } if self.phase == Phase::Measuring => {
                match result.and_then(|w| self.take(ctx, w)) {
                    Ok(()) => Flow::On,
                    Err(reason) => self.fail(ctx, reason),
                }
            }
            HostEvent::Proved { .. } if self.phase == Phase::SettingUp => self.proved(ctx),
            HostEvent::SessionGone { .. } => self.fail(ctx, Reason::Closing),
            _ => ctx.stale(),
        }
    }

    pub(crate) fn on_deadline(&mut self, ctx: &mut Context) -> Flow {
        let reason = match (self.phase, self.right()) {
            (Phase::SettingUp, Some(right)) if !self.sent => Reason::NoAgent(right),
            (Phase::SettingUp, Some(right)) => {
                let client = self.a.left.ip();
                let why = format!(
                    "{client} did not answer the segment that {right} sent it under the proxy's address: a reverse-path filter or an anti-spoofing rule drops it, or its TCP has no D-SACK"
                );
                Reason::NotProven(why.into())
            }
            // The server's host may have begun to answer the client. Both ways are correct.
            _ => Reason::TimedOut(self.phase),
        };
        self.fail(ctx, reason)
    }

    /// Locks both sessions and asks for the proof. The client's answers are watched.
    fn take(&mut self, ctx: &mut Context, watched: Watched) -> Result<(), Reason> {
        let (a, b) = (watched.subsession_a, watched.subsession_b);
        ctx.lock(a)?;
        self.a = a;
        ctx.lock(b)?;
        self.b = Some(b);
        self.relay = watched.relay;
        for end in [a.left.ip(), b.right.ip()] {
            if ctx.core.is_me(end) {
                return Err(Reason::EndAtMiddlebox(end));
            }
        }
        if a.left.ip() == b.right.ip() {
            return Err(Reason::SameHost(b.right.ip()));
        }
        if a.left.is_ipv4() != b.right.is_ipv4() {
            let why =
                "one end uses IPv4 and the other IPv6, and Dysco does not translate between them";
            return Err(Reason::NewPathUnusable(why.into()));
        }
        self.phase = Phase::SettingUp;
        ctx.report(Role::Proof, self.a, Progress::Locked);
        let message = Message::Prove {
            change: ctx.change,
            subsession: b,
            path: a,
            probe: watched.probe,
            translation: self.relay,
        };
        ctx.send_reliably(b.right.ip(), message);
        ctx.deadline(PROVE);
        Ok(())
    }

    fn proved(&mut self, ctx: &mut Context) -> Flow {
        ctx.drop_pending();
        ctx.report(Role::Proof, self.a, Progress::SetUp);
        let (Some(translation), Some(b)) = (self.relay, self.b) else {
            return self.end(ctx, Ok(()), Progress::Removed);
        };
        self.phase = Phase::Switching;
        let message = Message::Return {
            change: ctx.change,
            subsession: b,
            path: self.a,
            translation,
        };
        ctx.send_reliably(b.right.ip(), message);
        ctx.deadline(RETURN);
        Flow::On
    }

    fn returned(&mut self, ctx: &mut Context) -> Flow {
        let subsession = self.a;
        ctx.command(Direct::Returned { subsession });
        ctx.report(Role::Proof, self.a, Progress::Switched);
        self.end(ctx, Ok(()), Progress::Removed)
    }

    /// Cancels at the operator's request, if that is still possible.
    pub(crate) fn cancel(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        match self.phase {
            Phase::Switching => ctx.stale(),
            _ => self.fail(ctx, reason),
        }
    }

    fn fail(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let progress = Progress::Refused(reason.clone());
        self.end(ctx, Err(reason), progress)
    }

    fn end(&mut self, ctx: &mut Context, result: Result<(), Reason>, progress: Progress) -> Flow {
        ctx.unlock(self.a);
        if let Some(b) = self.b {
            ctx.unlock(b);
        }
        ctx.report(Role::Proof, self.a, progress);
        Flow::End(result)
    }
}
