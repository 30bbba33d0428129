//! Bytes that middleboxes have added to the stream or removed from it. Once those that leave have
//! left, the numbers of the two ends differ by this delta. Those that stay must have changed nothing.

use super::*;

/// Longer than a host needs to find its numbers at rest. A host whose daemon does not run may still
/// leave. In that case only the numbers of the two ends count.
const TELL: Duration = Duration::from_secs(2);

impl Head {
    /// Asks the hosts that leave. A host that stays is asked once it has answered its first message,
    /// because the repetition of messages stops for a host and not for a message.
    pub(super) fn ask_deltas(&mut self, ctx: &mut Context) {
        let before = hosts_of(self.order.segment_before()).into_iter();
        let leaving: Vec<HostId> = before.filter(|host| !self.remains(*host)).collect();
        for host in leaving.into_iter().chain(self.order.left()) {
            self.ask_delta(ctx, host);
        }
    }

    /// Asks a host for the delta of its middlebox.
    pub(super) fn ask_delta(&mut self, ctx: &mut Context, host: HostId) {
        let (change, session) = (ctx.change, self.session());
        self.unreported.insert(host);
        ctx.send_reliably(host, Message::AskDelta { change, session });
    }

    /// Returns true if the session passes this host's middlebox before and after the change. Its
    /// stack continues with the numbers that it has, so that its middlebox must have changed none.
    pub(super) fn remains(&self, host: HostId) -> bool {
        let anchors = [self.order.left(), self.order.inner_right()];
        self.is_staying(host) || anchors.contains(&Some(host))
    }

    pub(super) fn delta_reported(
        &mut self,
        ctx: &mut Context,
        from: &[HostId],
        result: Result<Delta, Reason>,
    ) -> Flow {
        // A host may have been asked by two of its names.
        let asked = self.unreported.iter().filter(|h| from.contains(h));
        let asked: Vec<HostId> = asked.copied().collect();
        let Some(host) = asked.iter().find(|h| self.remains(**h)).or(asked.first()) else {
            return ctx.stale();
        };
        let host = *host;
        match result {
            // A delta that it did not report, or not correctly, is a delta.
            Err(Reason::DeltaNotDeclared(_) | Reason::DeltaContradicted(_))
                if self.remains(host) =>
            {
                self.cancel(ctx, Reason::DeltaBehind(host))
            }
            Err(reason) => self.cancel(ctx, reason),
            Ok(delta) => {
                for name in asked {
                    self.unreported.remove(&name);
                    ctx.drop_pending_to(name);
                }
                if !delta.is_none() {
                    self.deltas.insert(host, delta);
                }
                self.go_on(ctx)
            }
        }
    }

    /// Continues if no answer is missing any more.
    pub(super) fn go_on(&mut self, ctx: &mut Context) -> Flow {
        if !self.waiting.is_empty() || !self.moving.is_empty() {
            return Flow::On;
        }
        if !self.unreported.is_empty() {
            let needed = self.unreported.iter().any(|host| self.remains(*host));
            ctx.deadline(if needed { ENLIST } else { TELL });
            return Flow::On;
        }
        match self.sees_others() {
            Some(host) => self.cancel(ctx, Reason::DeltaBehind(host)),
            None => self.set_up(ctx),
        }
    }

    /// Continues without the leaving hosts that have not reported their delta in time.
    pub(super) fn not_reported(&mut self, ctx: &mut Context) -> Flow {
        if let Some(silent) = self.unreported.iter().find(|host| self.remains(**host)) {
            return self.cancel(ctx, Reason::NoAnswer(*silent));
        }
        for host in std::mem::take(&mut self.unreported) {
            ctx.drop_pending_to(host);
        }
        self.go_on(ctx)
    }

    /// Returns a host that stays and has seen other numbers than those of the new path, because its
    /// own middlebox has changed them, or one behind it that leaves.
    fn sees_others(&self) -> Option<HostId> {
        if let Some(host) = self.deltas.keys().find(|host| self.remains(**host)) {
            return Some(*host);
        }
        let before = hosts_of(self.order.segment_before());
        let last = before.iter().rposition(|h| self.deltas.contains_key(h))?;
        let staying = |host: &&HostId| self.is_staying(**host);
        // A left anchor between the two could not compensate for the delta either.
        let left = self.order.left();
        left.or_else(|| before[..last].iter().find(staying).copied())
    }

    /// Returns the sum of all deltas.
    pub(super) fn delta(&self) -> Delta {
        let all = self.deltas.values();
        all.fold(Delta::default(), |sum, delta| sum.and(delta))
    }
}
