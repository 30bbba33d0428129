//! The beginning of changes.

use dysco_common::chain::Token;

use super::super::tail::side_of;
use super::*;

impl Machine {
    pub(super) fn begin_middle(
        &mut self,
        now: Time,
        change: ChangeId,
        subsession: Subsession,
        asker: Option<HostId>,
    ) -> Result<(), Reason> {
        self.begin_at(now, change, subsession, asker, |ctx| {
            Part::Middle(Middle::start(ctx, subsession, asker))
        })
    }

    pub(super) fn begin_local(
        &mut self,
        now: Time,
        change: ChangeId,
        subsession: Subsession,
        asker: Option<HostId>,
    ) -> Result<(), Reason> {
        self.begin_at(now, change, subsession, asker, |ctx| {
            Part::Local(Local::start(ctx, subsession, asker))
        })
    }

    pub(super) fn begin_proof(
        &mut self,
        now: Time,
        change: ChangeId,
        subsession: Subsession,
    ) -> Result<(), Reason> {
        self.begin_at(now, change, subsession, None, |ctx| {
            Part::Proof(Proof::start(ctx, subsession))
        })
    }

    /// Locks a session, and begins a part in its change.
    fn begin_at(
        &mut self,
        now: Time,
        change: ChangeId,
        subsession: Subsession,
        asker: Option<HostId>,
        start: impl FnOnce(&mut Context) -> Part,
    ) -> Result<(), Reason> {
        let mut timing = Timing::default();
        let mut ctx = self.context(now, change, &mut timing);
        ctx.lock(subsession)?;
        let part = start(&mut ctx);
        self.keep(change, part, timing, asker);
        Ok(())
    }

    pub(super) fn begin_dsr(&mut self, now: Time, message: &Message) {
        let change = message.change();
        let (b, returns) = match message {
            Message::Prove { subsession, .. } => (*subsession, false),
            Message::Return { subsession, .. } => (*subsession, true),
            _ => return,
        };
        let peer = b.left.ip();
        let mut timing = Timing::default();
        let room = self.room(Some(peer));
        let mut ctx = self.context(now, change, &mut timing);
        let begun = room
            .and_then(|()| ctx.lock(b))
            .map(|()| Dsr::start(&mut ctx, message));
        match begun {
            Ok(Some(part)) => self.keep(change, Part::Dsr(part), timing, Some(peer)),
            Ok(None) => {}
            Err(reason) => {
                let result = Err(reason);
                let answer = match returns {
                    true => Message::ReturnAck { change, result },
                    false => Message::ProveAck { change, result },
                };
                self.core.transmits.push(peer, answer);
            }
        }
    }

    pub(super) fn begin_asked(
        &mut self,
        now: Time,
        from: &[HostId],
        change: ChangeId,
        which: Subsession,
    ) {
        let (l, r) = (which.left.ip(), which.right.ip());
        let asker = if from.contains(&l) { l } else { r };
        let begun = self
            .room(Some(asker))
            .and_then(|()| match self.asked_locally {
                true => self.begin_local(now, change, which, Some(asker)),
                false => self.begin_middle(now, change, which, Some(asker)),
            });
        if let Err(reason) = begun {
            let result = Err(reason);
            let answer = Message::Asked { change, result };
            self.core.transmits.push(asker, answer);
        }
    }

    pub(super) fn begin_left(&mut self, now: Time, change: ChangeId, a: Subsession, b: Subsession) {
        let peer = a.right.ip();
        let holder = self.core.locks.get(&a).and_then(|c| self.changes.get(c));
        if let Some(Entry {
            part: Part::Middle(m),
            ..
        }) = holder
            && m.parks_others()
        {
            // No answer: the peer asks again, and gets an answer when the present change has ended.
            self.core.stats.stale += 1;
            return;
        }
        let mut timing = Timing::default();
        let locked = self.room(Some(peer)).and_then(|()| {
            if self.core.is_me(b.right.ip()) {
                return Err(Reason::SameHost(b.right.ip()));
            }
            self.context(now, change, &mut timing).lock(a)
        });
        match locked {
            Ok(()) => {
                let attempt = (self.new_id)();
                let mut ctx = self.context(now, change, &mut timing);
                let left = Left::start(&mut ctx, (a, b), attempt);
                self.keep(change, Part::Left(left), timing, Some(peer));
            }
            Err(reason) => self.nack(peer, change, reason),
        }
    }

    pub(super) fn begin_right(&mut self, now: Time, change: ChangeId, b: Subsession, left: HostId) {
        let peer = b.left.ip();
        let mut timing = Timing::default();
        let me = b.right.ip();
        let locked = self.room(Some(peer)).and_then(|()| {
            if self.core.is_me(left) {
                return Err(Reason::SameHost(me));
            }
            self.context(now, change, &mut timing).lock(b)
        });
        match locked {
            Ok(()) => {
                let mut ctx = self.context(now, change, &mut timing);
                let right = Right::start(&mut ctx, b, left);
                self.keep(change, Part::Right(right), timing, Some(peer));
            }
            Err(reason) => self.nack(peer, change, reason),
        }
    }

    pub(super) fn begin_tail(
        &mut self,
        now: Time,
        change: ChangeId,
        session: Subsession,
        token: Token,
    ) {
        let inner = !self.core.is_me(session.right.ip());
        self.begin_anchor(now, change, session, side_of(&session, inner), |ctx| {
            Part::Tail(Tail::start(ctx, session, token, inner))
        });
    }

    pub(super) fn begin_lead(&mut self, now: Time, change: ChangeId, session: Subsession) {
        self.begin_anchor(now, change, session, session, |ctx| {
            Part::Lead(Lead::start(ctx, session))
        });
    }

    /// Begins a part as an anchor. `own` is the side of the session that this host is an anchor of.
    fn begin_anchor(
        &mut self,
        now: Time,
        change: ChangeId,
        session: Subsession,
        own: Subsession,
        start: impl FnOnce(&mut Context) -> Part,
    ) {
        let peer = session.left.ip();
        let mut timing = Timing::default();
        let locked = self
            .room(Some(peer))
            .and_then(|()| self.context(now, change, &mut timing).lock(own));
        match locked {
            Ok(()) => {
                let part = start(&mut self.context(now, change, &mut timing));
                self.keep(change, part, timing, Some(peer));
            }
            Err(reason) => {
                let result = Err(reason);
                let answer = Message::Extended { change, result };
                self.core.transmits.push(peer, answer);
            }
        }
    }
}
