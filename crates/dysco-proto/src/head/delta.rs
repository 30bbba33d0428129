//! What the middleboxes that leave have added to the stream, or taken away: both
//! ends differ by it afterwards.

use super::*;

/// Longer than a host that leaves takes to find its numbers at rest. One whose daemon
/// is down may be left out all the same: only the two ends' numbers speak then.
const TELL: Duration = Duration::from_secs(2);

impl Head {
    /// Asks those that leave. Who stays is asked with what it is enlisted for.
    pub(super) fn ask_deltas(&mut self, ctx: &mut Context) {
        let (change, session) = (ctx.change, self.session());
        let leave = self
            .order
            .segment_before()
            .iter()
            .filter(|host| !self.is_kept(**host));
        self.untold = leave.copied().collect();
        for host in &self.untold {
            ctx.insist(*host, Message::AskDelta { change, session });
        }
    }

    pub(super) fn delta_told(
        &mut self,
        ctx: &mut Context,
        from: &[HostId],
        result: Result<Delta, Reason>,
    ) -> Flow {
        let Some(host) = self.untold.iter().find(|h| from.contains(h)).copied() else {
            return ctx.stale();
        };
        match result {
            Err(reason) => self.cancel(ctx, reason),
            Ok(delta) => {
                self.untold.remove(&host);
                ctx.hush_to(host);
                if !delta.is_none() {
                    self.deltas.insert(host, delta);
                }
                self.go_on(ctx)
            }
        }
    }

    /// Somebody has answered: are those all?
    pub(super) fn go_on(&mut self, ctx: &mut Context) -> Flow {
        if !self.waiting.is_empty() || !self.moving.is_empty() {
            return Flow::On;
        }
        if !self.untold.is_empty() {
            ctx.deadline(TELL);
            return Flow::On;
        }
        match self.sees_others() {
            Some(host) => self.cancel(ctx, Reason::DeltaBehind(host)),
            None => self.set_up(ctx),
        }
    }

    /// Who has not said it in time does not.
    pub(super) fn not_told(&mut self, ctx: &mut Context) -> Flow {
        for host in std::mem::take(&mut self.untold) {
            ctx.hush_to(host);
        }
        self.go_on(ctx)
    }

    /// A host that stays, and has seen numbers that are not those of the new path:
    /// one before a middlebox that has changed them.
    fn sees_others(&self) -> Option<HostId> {
        let before = self.order.segment_before();
        let last = before.iter().rposition(|h| self.deltas.contains_key(h))?;
        let kept = |host: &&HostId| self.is_kept(**host);
        // Nor could a left anchor between the two make up for it.
        let left = self.order.left();
        left.or_else(|| before[..last].iter().find(kept).copied())
    }

    /// All of them together.
    pub(super) fn delta(&self) -> Delta {
        let all = self.deltas.values();
        all.fold(Delta::default(), |sum, delta| sum.and(delta))
    }
}
