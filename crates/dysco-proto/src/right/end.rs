//! The end of a change at the right anchor.

use super::*;

/// State of the session on this host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum SessionState {
    /// The session lives.
    Open,
    /// The session has ended.
    Ended,
    /// The middlebox has ended the session, and had not delivered this number of bytes here.
    Broken(u32),
}

impl Right {
    /// Handles a message by which another host gives the change up.
    pub(super) fn given_up(
        &mut self,
        ctx: &mut Context,
        from_left: bool,
        message: Message,
    ) -> Flow {
        let change = ctx.change;
        let sender = if from_left { self.left } else { self.middle };
        match message {
            Message::Lost { bytes, .. } if self.is_between() => {
                ctx.say(self.left, Message::CancelAck { change });
                self.break_off(ctx, bytes)
            }
            // The left anchor has forgotten the change: its session has ended as well.
            Message::Cancel { .. } if from_left && self.broken().is_some() => {
                ctx.say(self.left, Message::CancelAck { change });
                self.break_off(ctx, self.broken().unwrap_or(0))
            }
            // The middle's message does not count: it may have given up, or have no record of the
            // change.
            Message::Cancel { .. } if self.reception().is_muted() && !from_left => ctx.stale(),
            Message::Cancel { reason, .. } if self.reception().is_muted() => {
                ctx.say(self.left, Message::CancelAck { change });
                self.take_back(ctx, reason)
            }
            // This message is the left anchor's.
            Message::Back { round, reason, .. } if self.reception() == Reception::Muted(round) => {
                ctx.say(self.middle, Message::CancelAck { change });
                self.take_back(ctx, reason)
            }
            Message::Cancel { .. } | Message::Back { .. } if self.phase() == Phase::Cancelling => {
                ctx.say(sender, Message::CancelAck { change });
                Flow::On
            }
            // From set-up on the left anchor may have cut, if there is a plan. The middle sends
            // `Cancel` only if it has made no plan, or if the left anchor has cancelled.
            Message::Cancel { reason, .. } if self.phase() < Phase::Cutting => {
                ctx.say(sender, Message::CancelAck { change });
                self.roll_back(ctx, reason)
            }
            _ => ctx.stale(),
        }
    }

    pub(super) fn refuse(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let message = Message::NackLock {
            change: ctx.change,
            reason: reason.clone(),
        };
        ctx.say(self.middle, message);
        self.roll_back(ctx, reason)
    }

    pub(super) fn complete(&mut self, ctx: &mut Context) -> Flow {
        let change = ctx.change;
        ctx.command(Anchor::Complete);
        self.let_go(ctx);
        ctx.erase();
        ctx.say(self.left, Message::DoneAck { change });
        ctx.report(Role::Right, self.b, Progress::Removed);
        Flow::End(Ok(()))
    }

    pub(super) fn roll_back(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let begun = self.new_path().is_some();
        if begun {
            ctx.command(Anchor::Unprepare);
        }
        self.let_go(ctx);
        if begun {
            ctx.erase();
        }
        let end = match self.phase() {
            Phase::Locking => Progress::Refused(reason.clone()),
            _ => Progress::RolledBack(reason.clone()),
        };
        ctx.report(Role::Right, self.b, end);
        Flow::End(Err(reason))
    }

    /// Refuses to set up the path. It was not prepared, so that the left anchor cannot have cut.
    pub(super) fn fail(&mut self, ctx: &mut Context, reason: Reason) -> Flow {
        let message = Message::SetUpNack {
            change: ctx.change,
            reason: reason.clone(),
        };
        ctx.say(self.left, message);
        self.roll_back(ctx, reason)
    }

    pub(super) fn let_go(&mut self, ctx: &mut Context) {
        ctx.command(Anchor::Unlock);
        ctx.unlock(self.b);
    }

    pub(super) fn no_record(&mut self, ctx: &mut Context, error: String) -> Flow {
        if self.phase() == Phase::Preparing {
            ctx.purge();
            return self.fail(ctx, Reason::NoRecord(error));
        }
        if let Reception::Muted(round) = self.reception() {
            self.set_reception(Reception::Receives);
            // The left anchor was not notified, and cannot depend on it.
            ctx.purge();
            ctx.command(Anchor::Unmute);
            self.say_keep(ctx, round);
            self.say_drained(ctx);
        }
        ctx.trouble(Reason::NoRecord(error));
        Flow::On
    }

    pub(super) fn session_gone(&mut self, ctx: &mut Context) -> Flow {
        if self.session_state == SessionState::Open {
            self.session_state = SessionState::Ended;
        }
        match self.stage {
            Stage::Locking => self.refuse(ctx, Reason::Closing),
            Stage::Locked { .. } => self.roll_back(ctx, Reason::Closing),
            Stage::Cutting(_) => {
                ctx.deadline(CUT_AFTER_END);
                Flow::On
            }
            Stage::Draining(_) => {
                ctx.deadline(TWO_MSL);
                self.say_drained(ctx);
                Flow::On
            }
            Stage::Preparing { asked, .. }
            | Stage::SettingUp(SetUp { asked, .. })
            | Stage::Cancelling { asked, .. } => {
                if asked {
                    self.watch_gone(ctx);
                }
                // A hint: the left anchor cancels, unless it has cut.
                let message = Message::SetUpNack {
                    change: ctx.change,
                    reason: Reason::Closing,
                };
                ctx.say(self.left, message);
                Flow::On
            }
        }
    }

    /// Handles a session that the middlebox has ended. Only the left anchor can say whether it has
    /// cut.
    pub(super) fn was_broken(&mut self, ctx: &mut Context, bytes: u32) -> Flow {
        if !self.is_gone() && (self.is_between() || self.phase() == Phase::Preparing) {
            self.session_state = SessionState::Broken(bytes);
        }
        self.session_gone(ctx)
    }

    /// Returns the number of bytes that the middlebox had not delivered here, if it has ended the
    /// session after the left anchor's cut.
    pub(super) fn broken(&self) -> Option<u32> {
        match self.session_state {
            SessionState::Broken(bytes)
                if matches!(self.stage, Stage::Cutting(_) | Stage::Draining(_)) =>
            {
                Some(bytes)
            }
            _ => None,
        }
    }

    /// Ends the session for both ends. No path is taken.
    pub(super) fn break_off(&mut self, ctx: &mut Context, bytes: u32) -> Flow {
        let reason = Reason::MiddleboxDied(bytes);
        ctx.command(Anchor::Reset);
        self.let_go(ctx);
        ctx.erase();
        ctx.report(Role::Right, self.b, Progress::Lost(reason.clone()));
        Flow::End(Err(reason))
    }

    pub(super) fn watch_gone(&self, ctx: &mut Context) {
        if self.is_gone() {
            ctx.deadline(TWO_MSL);
        }
    }
}
