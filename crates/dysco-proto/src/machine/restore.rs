//! The restoration of records of a former process.

use super::*;

impl Machine {
    /// Restores a change that a former process recorded.
    pub fn restore(&mut self, now: Time, record: &[u8]) -> Result<ChangeId, RecordError> {
        let Record { change, role } = Record::decode(record)?;
        if self.changes.contains_key(&change) {
            return Err(RecordError::Duplicate(change));
        }
        let mut timing = Timing::default();
        let mut ctx = self.context(now, change, &mut timing);
        let part = restored(&mut ctx, change, role);
        self.keep(change, part, timing, None);
        Ok(change)
    }
}

/// Restores the part of this host in a change, and the locks that it holds.
fn restored(ctx: &mut Context<'_>, change: ChangeId, role: RoleRecord) -> Part {
    // A change that is rolled back has released its session, which another change may have
    // locked.
    match role {
        RoleRecord::Asked { a, b } => {
            ctx.core.locks.entry(a).or_insert(change);
            Part::Left(Left::restore(ctx, (a, b), None))
        }
        RoleRecord::Left { a, plan, stage } => {
            if stage.is_rolled_back() {
                ctx.core.locks.entry(a).or_insert(change);
            } else {
                ctx.core.locks.insert(a, change);
            }
            let pair = (a, plan.subsession);
            Part::Left(Left::restore(ctx, pair, Some((plan, stage))))
        }
        RoleRecord::Middle { a, b, asker, .. } => {
            ctx.core.locks.extend([(a, change), (b, change)]);
            Part::Middle(Middle::restore(ctx, (a, b), asker))
        }
        RoleRecord::Right {
            b,
            left,
            new,
            stage,
        } => {
            ctx.core.locks.insert(b, change);
            Part::Right(Right::restore(ctx, b, left, new, stage))
        }
        RoleRecord::Local {
            a,
            b,
            asker,
            translation,
            stage,
        } => {
            ctx.core.locks.extend([(a, change), (b, change)]);
            Part::Local(Local::restore(ctx, (a, b), asker, translation, stage))
        }
        RoleRecord::Head {
            order,
            token,
            asker,
            stage,
        } => {
            ctx.core.segments.restore(change, &order);
            Part::Head(Head::restore(ctx, order, asker, token, stage))
        }
        RoleRecord::Tail {
            session,
            token,
            inner,
        } => {
            let tail = Tail::restore(ctx, session, token, inner);
            ctx.core.locks.insert(tail.own(), change);
            Part::Tail(tail)
        }
        RoleRecord::Lead { session, abandoned } => {
            ctx.core.locks.insert(session, change);
            Part::Lead(Lead::restore(ctx, session, abandoned))
        }
    }
}
