//! State is installed on this host, and looked at until it judges as any other.

use std::time::Duration;

use dysco_api::StateInstalled;
use dysco_firewall::conntrack::{Settled, Settling};
use dysco_firewall::{self as state, Document, FiveTuple, StateError};
use dysco_scheduling::spawn_long;

/// New entries are looked at this often until they have settled …
const LOOK: Duration = Duration::from_millis(250);
/// … so many times, and then this often: a session that stays silent needs no judge yet.
const LOOKS: u32 = 2400;
const LATE: Duration = Duration::from_secs(30);

/// Installs documents, or sees whether they could be.
pub(super) fn install(
    runtime: &tokio::runtime::Handle,
    session: &FiveTuple,
    documents: &[Document],
    dry_run: bool,
) -> Result<StateInstalled, StateError> {
    let mut report = StateInstalled {
        dry_run,
        documents: documents.len(),
        ..StateInstalled::default()
    };
    if dry_run {
        state::check(session, documents)?;
        return Ok(report);
    }
    let installed = state::install(session, documents)?;
    (report.new, report.updated) = (installed.new, installed.updated);
    for settling in installed.settling {
        runtime.spawn(settle(settling));
    }
    Ok(report)
}

/// Looks at a new entry until it judges windows again.
async fn settle(mut settling: Settling) {
    for look in 0_u32.. {
        if look == LOOKS {
            let session = settling.session();
            tracing::warn!(%session, "installed state has not settled yet: its windows are not judged");
        }
        let pause = if look < LOOKS { LOOK } else { LATE };
        tokio::time::sleep(pause).await;
        let looked = spawn_long(move || {
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
}
