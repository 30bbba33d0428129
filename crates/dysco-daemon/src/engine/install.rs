//! Installation of state on this host, and checks until the state judges packets like any other.

use std::time::Duration;

use dysco_api::StateInstalled;
use dysco_firewall::conntrack::{Settled, Settling};
use dysco_firewall::{self as state, Document, FiveTuple, StateError};
use dysco_scheduling::spawn_long;

/// Interval at which new entries are checked until they have settled …
const LOOK: Duration = Duration::from_millis(250);
/// … up to this number of checks, and `LATE` afterwards: a silent session needs no judge yet.
const LOOKS: u32 = 2400;
const LATE: Duration = Duration::from_secs(30);

/// Installs documents, or checks whether they could be installed.
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

/// Checks a new entry until it judges windows again.
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
