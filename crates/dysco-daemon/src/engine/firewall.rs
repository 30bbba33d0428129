//! State of sessions, exported from this host's firewall and installed there.
//! The kernel is asked on threads of their own: it answers at once, but a
//! table of many entries takes its time to search.

use std::time::Duration;

use tokio::sync::mpsc;

use super::Engine;
use crate::api::{
    AboutState, Failure, FailureCode, InstallState, Reply, SessionName, StateInstalled, StateReport,
};
use crate::state::conntrack::{Settled, Settling};
use crate::state::{self, FiveTuple, StateError};

/// New entries are looked at this often until they have settled …
const LOOK: Duration = Duration::from_millis(250);
/// … and this often at most: a session that stays silent needs no judge.
const LOOKS: u32 = 2400;

type Replies = mpsc::Sender<Reply>;

impl Engine {
    pub(super) fn export_state(&self, about: &AboutState, replies: Replies) {
        let kinds = about.kinds.clone();
        self.with_session(&about.session, replies, move |session| {
            let documents = state::export(&session, &kinds)?;
            // Documents have string keys: they always encode.
            let documents = serde_json::to_value(documents).unwrap_or_default();
            Ok(Reply::State(StateReport { session, documents }))
        });
    }

    pub(super) fn install_state(&self, install: InstallState, replies: Replies) {
        let InstallState {
            session,
            documents,
            dry_run,
        } = install;
        let runtime = tokio::runtime::Handle::current();
        self.with_session(&session, replies, move |session| {
            let documents = state::read(&documents)?;
            let mut report = StateInstalled {
                dry_run,
                documents: documents.len(),
                ..StateInstalled::default()
            };
            if dry_run {
                state::check(&session, &documents)?;
            } else {
                let installed = state::install(&session, &documents)?;
                (report.new, report.updated) = (installed.new, installed.updated);
                for settling in installed.settling {
                    runtime.spawn(settle(settling));
                }
            }
            Ok(Reply::StateInstalled(report))
        });
    }

    pub(super) fn remove_state(&self, about: &AboutState, replies: Replies) {
        let kinds = about.kinds.clone();
        self.with_session(&about.session, replies, move |session| {
            let removed = state::remove(&session, &kinds)?;
            Ok(Reply::StateRemoved { removed })
        });
    }

    fn with_session(
        &self,
        name: &SessionName,
        replies: Replies,
        work: impl FnOnce(FiveTuple) -> Result<Reply, StateError> + Send + 'static,
    ) {
        let Some(session) = self.five_tuple(name) else {
            let _ = replies.try_send(Reply::Error(super::listing::no_such_session(name)));
            return;
        };
        tokio::task::spawn_blocking(move || {
            let reply = work(session).unwrap_or_else(|error| Reply::Error(failure(&error)));
            // The client's channel is fresh and has room, or the client has left.
            let _ = replies.try_send(reply);
        });
    }

    /// A firewall has state of sessions that are none of its own: a five-tuple
    /// needs no session here.
    fn five_tuple(&self, name: &SessionName) -> Option<FiveTuple> {
        let (source, destination) = match name {
            SessionName::Tuple { local, remote } => (*local, *remote),
            SessionName::Id(_) => {
                let key = self.agent.session(self.slot_named(name)?).key;
                (key.local(), key.remote())
            }
        };
        Some(FiveTuple {
            source,
            destination,
        })
    }
}

/// Looks at a new entry until it judges windows again.
async fn settle(mut settling: Settling) {
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        let looked = tokio::task::spawn_blocking(move || {
            let settled = settling.settle();
            (settling, settled)
        });
        let Ok((next, settled)) = looked.await else {
            return;
        };
        settling = next;
        let session = settling.session();
        match settled {
            Ok(Settled::NotYet) => {}
            Ok(Settled::Yes) => {
                tracing::info!(%session, "installed state has settled: windows are judged");
                return;
            }
            Ok(Settled::Gone) => return,
            Err(error) => {
                tracing::warn!(%session, %error, "installed state cannot be looked at");
                return;
            }
        }
    }
    let session = settling.session();
    tracing::warn!(%session, "installed state has not settled: its windows are not judged");
}

fn failure(error: &StateError) -> Failure {
    let code = match error {
        _ if error.is_bad_request() => FailureCode::BadRequest,
        StateError::Kernel { .. } => FailureCode::Internal,
        _ => FailureCode::Refused,
    };
    let text = error.to_string();
    // The text is "failed to WHAT: WHY; MEND".
    let rest = text.strip_prefix("failed to ").unwrap_or(&text);
    let (what, rest) = rest.split_once(": ").unwrap_or(("move state", rest));
    let (why, mend) = rest.rsplit_once("; ").unwrap_or((rest, "see dyscod's log"));
    Failure {
        code,
        what: what.to_owned(),
        why: why.to_owned(),
        mend: mend.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Fault, KindName};

    #[test]
    fn a_failure_says_what_why_and_the_mend() {
        let end = |port| std::net::SocketAddr::from(([10, 0, 0, 1], port));
        let session = FiveTuple {
            source: end(1),
            destination: end(2),
        };
        let told = failure(&StateError::Refused {
            kind: KindName::Conntrack,
            session,
            fault: Box::new(Fault::Version(7)),
        });
        assert_eq!(told.code, FailureCode::BadRequest);
        let what = "install the conntrack state of 10.0.0.1:1>10.0.0.1:2";
        assert_eq!(told.what, what);
        assert_eq!(told.why, "it is of version 7, and this is 1");
        assert_eq!(told.mend, "run the same release on both hosts");
    }
}
