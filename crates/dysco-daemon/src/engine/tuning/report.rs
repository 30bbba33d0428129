//! Reports about sessions' sockets, in an operator's words.

use dysco_api::{Reply, SocketOwner, Tune, TuneAction, TuneOutcome, TuneReport, TunedOption};
use dysco_explain::Cause;
use dysco_proxy::tuning::{Carried, Change, Plan};

use super::{Batch, Target};

/// Result for one session, without its names.
pub(super) struct Told {
    outcome: TuneOutcome,
    /// Kind of the event, for programs.
    kind: &'static str,
    process: Option<SocketOwner>,
    options: Vec<TunedOption>,
    reasons: Vec<Cause>,
}

impl Told {
    /// Returns the result that nothing was changed, for this reason.
    pub(super) fn refused(reason: Cause) -> Told {
        Told {
            outcome: TuneOutcome::Refused,
            kind: "tuned",
            process: None,
            options: Vec::new(),
            reasons: vec![reason],
        }
    }

    /// Returns the result that a plan would have.
    pub(super) fn could(request: &Tune, plan: &Plan) -> Told {
        let carried = Carried {
            changes: plan.changes.clone(),
            failed: Vec::new(),
        };
        Told::done(request, plan, &carried)
    }

    /// Returns the result of a plan.
    pub(super) fn done(request: &Tune, plan: &Plan, carried: &Carried) -> Told {
        let Carried { changes, failed } = carried;
        let failed = failed.iter().map(|(_, error)| error.cause());
        let nearest = plan.nearest.iter().map(as_far_as_possible);
        let stays = plan.own.iter().map(|(option, value)| {
            let value = value.text(*option);
            Cause::new(format!(
                "the program has set {option} to {value} itself since, and it stays so"
            ))
        });
        Told {
            outcome: outcome(&request.action, carried),
            kind: match request.action {
                TuneAction::Set(_) => "tuned",
                TuneAction::Restore => "untuned",
            },
            process: Some(plan.socket.owner.clone()),
            options: changes.iter().map(Change::report).collect(),
            reasons: failed.chain(nearest).chain(stays).collect(),
        }
    }

    /// Returns the kind of the event, for programs.
    pub(super) fn kind(&self) -> &'static str {
        self.kind
    }

    /// Returns the text of the event, if anything was changed.
    pub(super) fn event(&self) -> Option<String> {
        let options: Vec<String> = self.options.iter().map(TunedOption::to_string).collect();
        (!options.is_empty()).then(|| options.join(", "))
    }

    fn report(self, target: &Target) -> TuneReport {
        let short = matches!(self.outcome, TuneOutcome::Refused | TuneOutcome::Incomplete);
        let several = self.reasons.len() > 1 || short;
        TuneReport {
            session: target.session,
            local: target.key.local(),
            remote: target.key.remote(),
            outcome: self.outcome,
            process: self.process,
            options: self.options,
            reason: self.reasons.first().cloned(),
            reasons: if several { self.reasons } else { Vec::new() },
        }
    }
}

fn outcome(action: &TuneAction, carried: &Carried) -> TuneOutcome {
    let (unchanged, well) = (carried.changes.is_empty(), carried.failed.is_empty());
    match (action, unchanged, well) {
        (_, true, false) => TuneOutcome::Refused,
        (_, false, false) => TuneOutcome::Incomplete,
        (_, true, true) => TuneOutcome::Unchanged,
        (TuneAction::Set(_), false, true) => TuneOutcome::Tuned,
        (TuneAction::Restore, false, true) => TuneOutcome::Restored,
    }
}

/// Returns the reason for which an option does not get its value before.
fn as_far_as_possible(nearest: &Change) -> Cause {
    let Change { option, from, to } = nearest;
    let (from, to) = (from.text(*option), to.text(*option));
    Cause::new(format!(
        "the socket had the kernel's default of {from} for {option}, and the kernel sets {to} at most"
    ))
}

/// Sends the results of a request at the client's pace, and then the end.
pub(super) fn send(batch: Batch, reported: Vec<Told>) {
    tokio::spawn(async move {
        let Batch { job, targets } = batch;
        let replies = job.replies;
        let accepted = Reply::Accepted {
            sessions: targets.len(),
            left: Vec::new(),
        };
        let reports = targets.iter().zip(reported);
        let reports = reports.map(|(target, reported)| Reply::Tuned(reported.report(target)));
        let done = Reply::Done { summary: None };
        for reply in [accepted].into_iter().chain(reports).chain([done]) {
            if replies.send(reply).await.is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use dysco_api::SocketOption;
    use dysco_proxy::tuning::{TuneError, Value};

    use super::*;

    fn change(from: u64, to: u64) -> Change {
        Change {
            option: SocketOption::KeepaliveIdle,
            from: Value::Number(from),
            to: Value::Number(to),
        }
    }

    #[test]
    fn nothing_was_changed_only_if_nothing_is_left_changed() {
        let failed = || vec![(SocketOption::Rate, TuneError::Over)];
        let all = |changes, failed| Carried { changes, failed };
        let of = |carried| outcome(&TuneAction::Restore, &carried);
        assert_eq!(of(all(vec![], failed())), TuneOutcome::Refused);
        let left = all(vec![change(7, 30)], failed());
        assert_eq!(of(left), TuneOutcome::Incomplete);
        assert_eq!(of(all(vec![change(30, 7)], vec![])), TuneOutcome::Restored);
    }

    #[test]
    fn a_default_beyond_the_kernels_limit_is_named() {
        let why = as_far_as_possible(&change(40_000, 32_767)).to_string();
        assert!(why.contains("40000s for keepalive idle"), "{why}");
        assert!(why.ends_with("32767s at most"), "{why}");
    }
}
