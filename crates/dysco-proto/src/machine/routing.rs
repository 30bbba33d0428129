//! Inner part of the machine: keeps and ends changes, and handles messages of unknown ones.

use super::*;

impl Machine {
    pub(super) fn context<'a>(
        &'a mut self,
        now: Time,
        change: ChangeId,
        timing: &'a mut Timing,
    ) -> Context<'a> {
        Context {
            now,
            change,
            first_message: self.core.transmits.next(),
            core: &mut self.core,
            timing,
        }
    }

    /// Runs one input of a change, then keeps or ends the change.
    pub(super) fn with(
        &mut self,
        now: Time,
        change: ChangeId,
        input: impl FnOnce(&mut Part, &mut Context) -> Flow,
    ) {
        let Some(mut entry) = self.changes.remove(&change) else {
            self.core.stats.stale += 1;
            return;
        };
        let flow = input(
            &mut entry.part,
            &mut self.context(now, change, &mut entry.timing),
        );
        match flow {
            Flow::On => self.put_back(change, entry),
            Flow::End(result) => {
                self.settle(Timer::Change(change), entry.timing.due, None);
                self.give_back_share(entry.beginner);
                let outcome = Outcome {
                    role: entry.part.role(),
                    peers: entry.part.peers(),
                    unspoken: entry.part.is_unspoken(),
                    result,
                };
                self.outcomes.insert(now, change, outcome);
            }
        }
    }

    pub(super) fn with_ask(
        &mut self,
        now: Time,
        change: ChangeId,
        input: impl FnOnce(&mut Asker, &mut Context) -> Flow,
    ) {
        let Some((mut asker, mut timing)) = self.asks.remove(&change) else {
            return;
        };
        match input(&mut asker, &mut self.context(now, change, &mut timing)) {
            Flow::On => self.keep_ask(change, asker, timing),
            Flow::End(_) => {
                self.settle(Timer::Ask(change), timing.due, None);
            }
        }
    }

    pub(super) fn keep(
        &mut self,
        change: ChangeId,
        part: Part,
        timing: Timing,
        beginner: Option<HostId>,
    ) {
        if let Some(host) = beginner {
            *self.shares.entry(host).or_default() += 1;
        }
        let entry = Entry {
            part,
            timing,
            beginner,
        };
        self.put_back(change, entry);
    }

    fn put_back(&mut self, change: ChangeId, mut entry: Entry) {
        let next = entry.timing.next();
        entry.timing.due = self.settle(Timer::Change(change), entry.timing.due, next);
        self.changes.insert(change, entry);
    }

    pub(super) fn keep_ask(&mut self, change: ChangeId, asker: Asker, mut timing: Timing) {
        timing.due = self.settle(Timer::Ask(change), timing.due, timing.next());
        self.asks.insert(change, (asker, timing));
    }

    fn settle(&mut self, timer: Timer, before: Option<Time>, next: Option<Time>) -> Option<Time> {
        if let Some(at) = before {
            self.timers.remove(&(at, timer));
        }
        self.timers.extend(next.map(|at| (at, timer)));
        next
    }

    fn give_back_share(&mut self, host: Option<HostId>) {
        let Some(host) = host else { return };
        if let Some(share) = self.shares.get_mut(&host) {
            *share -= 1;
            if *share == 0 {
                self.shares.remove(&host);
            }
        }
    }

    /// Checks that one more change fits the limits, of those that this peer began and of all.
    pub(super) fn room(&mut self, peer: Option<HostId>) -> Result<(), Reason> {
        let share = peer.and_then(|p| self.shares.get(&p)).copied();
        let full = self.changes.len() + self.asks.len() >= self.limits.changes;
        if full || share.unwrap_or(0) >= self.limits.per_peer {
            self.core.stats.busy += 1;
            let me = self.core.addresses.first().copied();
            let unnamed = HostId::from([0, 0, 0, 0]);
            return Err(Reason::Busy(me.unwrap_or(unnamed)));
        }
        Ok(())
    }

    /// Checks whether this peer may speak of a change that is not under way.
    pub(super) fn judge_stranger(
        &self,
        from: &[HostId],
        message: &Message,
    ) -> Result<(), Violation> {
        if let Some(outcome) = self.outcomes.get(&message.change())
            && !outcome.unspoken
            && !outcome.concerns(from)
        {
            return Err(Violation::NotItsPart);
        }
        authorise::stranger(&self.core, from, message)
    }

    /// Handles an allowed message: it begins a change, or gets the same answer as all later ones.
    pub(super) fn handle_stranger(&mut self, now: Time, from: &[HostId], message: Message) {
        let change = message.change();
        let Some(&first) = from.first() else { return };
        let outcome = self.outcomes.get(&change);
        if let Some(outcome) = outcome.filter(|o| o.concerns(from)) {
            // An asker has no outcome, and a right neighbour may ask.
            let answer = match (&message, outcome.role) {
                (Message::Ask { .. }, Role::Left | Role::Right | Role::Asker) => None,
                // Done again for each request.
                (Message::Prove { .. } | Message::Return { .. }, Role::Dsr) => {
                    return self.begin_dsr(now, &message);
                }
                _ => strangers::ended(change, outcome, &message),
            };
            self.core.stats.stale += 1;
            if let Some(answer) = answer {
                self.core.transmits.push(first, answer);
            }
            return;
        }
        match message {
            Message::Leave {
                subsession, beyond, ..
            } => self.begin_left(now, change, subsession, beyond),
            Message::Ask { subsession, .. } => self.begin_asked(now, from, change, subsession),
            Message::Extend { session, token, .. } => self.begin_tail(now, change, session, token),
            Message::Lead { session, .. } => self.begin_lead(now, change, session),
            Message::Enlist { .. } | Message::AskDelta { .. } | Message::Dismiss { .. } => {
                self.forward(first, message);
            }
            Message::Prove { .. } | Message::Return { .. } => self.begin_dsr(now, &message),
            Message::Introduce {
                subsession, left, ..
            } => self.begin_right(now, change, subsession, left),
            other => self.answer_unknown(from, &other),
        }
    }

    /// Answers as a host that has no record of the change.
    pub(super) fn answer_unknown(&mut self, from: &[HostId], message: &Message) {
        self.core.stats.stale += 1;
        let answer = strangers::unknown(message);
        if let (Some(first), Some(answer)) = (from.first(), answer) {
            self.core.transmits.push(*first, answer);
        }
    }

    pub(super) fn nack(&mut self, peer: HostId, change: ChangeId, reason: Reason) {
        let message = Message::NackLock { change, reason };
        self.core.transmits.push(peer, message);
    }

    /// Handles the answer of a host that this host has asked to remove a middlebox. Returns true if
    /// the message is such an answer.
    pub(super) fn handle_ask_answer(
        &mut self,
        now: Time,
        from: &[HostId],
        message: &Message,
    ) -> bool {
        let Some((ask, _)) = self.asks.get(&message.change()) else {
            return false;
        };
        let answers = matches!(message, Message::Asked { .. } | Message::Status { .. });
        if !answers || !from.contains(&ask.host()) {
            return false;
        }
        let message = message.clone();
        self.with_ask(now, message.change(), |ask, ctx| {
            ask.on_message(ctx, message)
        });
        true
    }

    pub(super) fn violated(&mut self, from: &[HostId], message: &Message, violation: Violation) {
        self.core.stats.violations += 1;
        if self.core.reports.len() >= MAX_WAITING_REPORTS {
            return;
        }
        self.core.reports.push_back(Report::Violation {
            change: message.change(),
            from: from.first().copied(),
            message: message.name(),
            violation,
        });
    }
}
