//! Bytes that the leaving middleboxes have added to the stream or removed from it. Afterwards the
//! numbers of the two ends differ by this delta.

use super::*;

/// Longer than a leaving host needs to find its numbers at rest. A host whose daemon does not run
/// may still be left out. In that case only the numbers of the two ends count.
const TELL: Duration = Duration::from_secs(2);

impl Head {
    /// Asks the hosts that leave. A host that stays gets its question with `Enlist`.
    pub(super) fn ask_deltas(&mut self, ctx: &mut Context) {
        let (change, session) = (ctx.change, self.session());
        let before = hosts_of(self.order.segment_before()).into_iter();
        self.unreported = before.filter(|host| !self.is_staying(*host)).collect();
        for host in &self.unreported {
            ctx.send_reliably(*host, Message::AskDelta { change, session });
        }
    }

    pub(super) fn delta_reported(
        &mut self,
        ctx: &mut Context,
        from: &[HostId],
        result: Result<Delta, Reason>,
    ) -> Flow {
        let Some(host) = self.unreported.iter().find(|h| from.contains(h)).copied() else {
            return ctx.stale();
        };
        match result {
            Err(reason) => self.cancel(ctx, reason),
            Ok(delta) => {
                self.unreported.remove(&host);
                ctx.drop_pending_to(host);
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
            ctx.deadline(TELL);
            return Flow::On;
        }
        match self.sees_others() {
            Some(host) => self.cancel(ctx, Reason::DeltaBehind(host)),
            None => self.set_up(ctx),
        }
    }

    /// Continues without the hosts that have not reported their delta in time.
    pub(super) fn not_reported(&mut self, ctx: &mut Context) -> Flow {
        for host in std::mem::take(&mut self.unreported) {
            ctx.drop_pending_to(host);
        }
        self.go_on(ctx)
    }

    /// Returns a host that stays and has seen other numbers than those of the new path, because it
    /// precedes a middlebox that has changed them.
    fn sees_others(&self) -> Option<HostId> {
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
