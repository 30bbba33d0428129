//! Reports about sessions' sockets, in an operator's words.

use dysco_api::{Reply, SocketOwner, Tune, TuneAction, TuneOutcome, TuneReport, TunedOption};
use dysco_explain::Cause;
use dysco_proxy::tuning::{Change, Plan};

use super::{Batch, Target};

/// Result for one session, without its names.
pub(super) struct Told {
    outcome: TuneOutcome,
    process: Option<SocketOwner>,
    options: Vec<TunedOption>,
    reasons: Vec<Cause>,
}

impl Told {
    /// Returns the result that nothing was changed, for this reason.
    pub(super) fn refused(reason: Cause) -> Told {
        Told {
            outcome: TuneOutcome::Refused,
            process: None,
            options: Vec::new(),
            reasons: vec![reason],
        }
    }

    /// Returns the result that a plan would have.
    pub(super) fn could(request: &Tune, plan: &Plan) -> Told {
        Told::done(request, plan, &plan.changes)
    }

    /// Returns the result of a plan with these changes.
    pub(super) fn done(request: &Tune, plan: &Plan, changes: &[Change]) -> Told {
        let outcome = match (&request.action, changes.is_empty()) {
            (_, true) => TuneOutcome::Unchanged,
            (TuneAction::Set(_), false) => TuneOutcome::Tuned,
            (TuneAction::Restore, false) => TuneOutcome::Restored,
        };
        let stays = plan.own.iter().map(|(option, value)| {
            let value = value.text(*option);
            Cause::new(format!(
                "the program has set {option} to {value} itself since, and it stays so"
            ))
        });
        Told {
            outcome,
            process: Some(plan.socket.owner.clone()),
            options: changes.iter().map(Change::report).collect(),
            reasons: stays.collect(),
        }
    }

    /// Returns the kind of the event, for programs.
    pub(super) fn kind(&self) -> &'static str {
        match self.outcome {
            TuneOutcome::Restored => "untuned",
            _ => "tuned",
        }
    }

    /// Returns the text of the event, if anything was changed.
    pub(super) fn event(&self) -> Option<String> {
        let options: Vec<String> = self.options.iter().map(TunedOption::to_string).collect();
        (!options.is_empty()).then(|| options.join(", "))
    }

    fn report(self, target: &Target) -> TuneReport {
        let several = self.reasons.len() > 1 || self.outcome == TuneOutcome::Refused;
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
