//! Ends of removals, told to the client that asked, to operators and to the counts.

use dysco_api::{Outcome, RemovalReport, Reply, Summary};
use dysco_proto::Reason;

use super::Removals;
use super::automatic::AUTOMATIC;
use crate::engine::Plane;
use crate::engine::core::Core;
use crate::metrics::ChangeKind;

impl Removals {
    /// Ends one session's part of a request; `why` is the reason if it was not done.
    pub(super) fn finish(
        &mut self,
        core: &mut Core,
        batch: u64,
        mut report: RemovalReport,
        why: Option<&Reason>,
    ) {
        if report.reasons.is_empty() {
            report.reasons.extend(report.reason.clone());
        }
        if self.batches.get(&batch).is_none_or(|b| !b.dry) {
            tell_outcome(&mut core.host.plane, &report);
            let kind = ChangeKind::removal(report.mode);
            core.tally.reported(kind, report.outcome, why);
            let (switch, end) = (report.request_to_switch_us, report.request_to_close_us);
            core.tally.took(kind, switch, end);
        }
        if batch == AUTOMATIC {
            self.automatic.ended(&report);
        }
        let Some(b) = self.batches.get_mut(&batch) else {
            return;
        };
        // A client may read slowly. The results of a dry run, and refusals, come all at once.
        let reported = match &b.replies {
            Some(replies) if !b.dry && b.unreported.is_empty() => {
                replies.try_send(Reply::Removal(report.clone())).is_ok()
            }
            Some(_) => false,
            None => true,
        };
        if !reported {
            b.unreported.push(report.clone());
        }
        b.reports.push(report);
        b.left -= 1;
        if b.left == 0 {
            self.end_batch(batch);
        }
    }

    pub(super) fn end_batch(&mut self, id: u64) {
        let Some(batch) = self.batches.remove(&id) else {
            return;
        };
        self.under_way.end_limit(id);
        let summary = Summary::of(&batch.reports);
        let least = batch.rate.filter(|_| batch.dry);
        let least = least.map(|rate| rate.least(summary.removed).as_millis() as u64);
        let summary = Some(Summary {
            at_least_ms: least,
            ..summary
        });
        if let Some(replies) = batch.replies {
            tokio::spawn(async move {
                for report in batch.unreported {
                    if replies.send(Reply::Removal(report)).await.is_err() {
                        return;
                    }
                }
                let _ = replies.send(Reply::Done { summary }).await;
            });
        }
    }
}

fn tell_outcome(here: &mut Plane, report: &RemovalReport) {
    let kind = match report.outcome {
        Outcome::Removed => "removed",
        Outcome::Refused => "refused",
        Outcome::RolledBack => "rolled_back",
        Outcome::Lost => "lost",
        Outcome::Pending => "pending",
        Outcome::Unconfirmed => "unconfirmed",
    };
    let reason = report
        .reason
        .as_ref()
        .map_or(String::new(), |r| format!(": {r}"));
    let way = report.mode.map_or(String::new(), |m| format!(" ({m})"));
    let text = format!("{} > {} {kind}{way}{reason}", report.local, report.remote);
    here.report_part(report.change_id.clone(), kind, Some(report.session), text);
}
