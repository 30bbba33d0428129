//! Sessions older than the daemon: entered at the start or on request, and changed only after a
//! packet of theirs has passed in each direction.

use std::time::{Duration, Instant};

use dysco_agent::{Adoption, AgentError};
use dysco_api::{AdoptReport, Failure, FailureCode, Reply};
use dysco_common::Session;
use dysco_explain::{Cause, Explain};
use dysco_proto::{ChangeId, Subsession};
use dysco_scheduling::spawn_long;
use tokio::sync::mpsc;

use super::history::Origin;
use super::{Answer, Plane, ProxyChanges};

/// Time for which requested packets of a silent session are awaited: a round trip, on any path on
/// which a removal is worthwhile.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between looks whether they have arrived.
const PAUSE: Duration = Duration::from_millis(10);

/// Adoption in progress.
#[derive(Default)]
pub(super) struct Adopting {
    begun: Option<Instant>,
    /// Clients that wait for the result.
    replies: Vec<mpsc::Sender<Reply>>,
}

impl Adopting {
    /// Begins to enter unknown sessions of this host's sockets: at the start if `adopt` is set, or
    /// for a client.
    pub(super) fn begin(&mut self, plane: &Plane, asker: Option<mpsc::Sender<Reply>>) {
        if asker.is_none() && !plane.config.data_plane.adopt {
            return;
        }
        self.replies.extend(asker);
        if self.begun.is_some() {
            return;
        }
        self.begun = Some(Instant::now());
        let (agent, answers) = (plane.agent.clone(), plane.answers.clone());
        // The kernel's types are read, and possibly thousands of sockets.
        spawn_long(move || {
            let _ = answers.send(Answer::Adopted(agent.adopt()));
        });
    }

    /// Handles the end of an adoption.
    pub(super) fn end(&mut self, plane: &mut Plane, done: Result<Adoption, AgentError>) {
        let took = self.begun.take().map(|at| at.elapsed());
        let replies = std::mem::take(&mut self.replies);
        let reply = match done {
            Ok(done) => {
                let report = report(&done);
                let text = format!(
                    "{} sessions that were there first are adopted, {} were known",
                    report.adopted, report.known
                );
                tracing::info!(took_ms = took.map(|t| t.as_millis() as u64), "{text}");
                for left in &report.left {
                    tracing::info!(sessions = left.sessions, "not adopted: {}", left.reason);
                }
                for slot in &done.adopted {
                    let s = plane.agent.session(*slot);
                    let id = plane.session_id(*slot, &s);
                    plane
                        .history
                        .add(id, "adopted: it was there before dyscod", Origin::default());
                }
                Reply::Adopted(report)
            }
            Err(error) => {
                tracing::warn!("no session that was there first is adopted: {error}");
                let cause = Cause::from(error.explain()).or_hint("see the log of dyscod there");
                let reported = cause.of("adopt the sessions that were there first");
                Reply::Error(Failure::new(FailureCode::Internal, reported))
            }
        };
        for asker in replies {
            let _ = asker.try_send(reply.clone());
        }
    }
}

impl Plane {
    /// Returns the entry of a slot: tracked, if it was adopted and has been heard.
    pub(super) fn confirmed(&self, slot: u32) -> Session {
        self.agent.confirm(slot);
        self.agent.session(slot)
    }

    /// Makes the kernel send a packet on both sessions of a proxy, which their ends answer.
    pub(super) fn ask_for_packets(&self, sub: &Subsession) {
        let Some(pair) = self.pair_of_session(sub) else {
            return;
        };
        let proxy = self.proxy.clone();
        tokio::spawn(async move {
            if let Err(error) = proxy.ask_for_packets(&pair).await {
                tracing::debug!(pair = %pair.id, %error, "cannot ask for packets");
            }
        });
    }
}

impl ProxyChanges {
    /// Asks for packets of both sessions of the proxy, and measures again. Returns false if that
    /// was of no use.
    pub(super) fn listen(&mut self, plane: &Plane, change: ChangeId, sub: Subsession) -> bool {
        let held = self.held.entry(change).or_default();
        let first = held.asked.is_none();
        let asked = *held.asked.get_or_insert_with(Instant::now);
        if asked.elapsed() > PATIENCE {
            return false;
        }
        if first {
            plane.ask_for_packets(&sub);
        }
        let answers = plane.answers.clone();
        tokio::spawn(async move {
            tokio::time::sleep(PAUSE).await;
            let _ = answers.send(Answer::Asked(change, sub));
        });
        true
    }
}

fn report(done: &Adoption) -> AdoptReport {
    let mut left: Vec<_> = (done.left.iter())
        .map(|(why, n)| dysco_api::LeftReport {
            sessions: *n as u64,
            reason: Cause::new(why),
        })
        .collect();
    if done.no_room > 0 {
        left.push(dysco_api::LeftReport {
            sessions: done.no_room as u64,
            reason: Cause::new("the session table is full").hint("raise max_sessions"),
        });
    }
    AdoptReport {
        adopted: done.adopted.len() as u64,
        known: done.known as u64,
        left,
    }
}
