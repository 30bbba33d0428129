//! Kills that are due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use dysco_netns::{Host, Process};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::daemons::Daemons;
use crate::plan::{Kill, Plan, Victim};
use crate::world::World;

/// Running proxies, by their hosts.
pub(crate) type Proxies = Mutex<BTreeMap<u8, Process>>;

/// A kill that was carried out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KillRun {
    /// Victim of the kill.
    pub victim: Victim,
    /// Time of the kill, in milliseconds since the start of the sessions.
    pub at_ms: u64,
    /// True if there was something to kill, or if the step came at which a daemon fails.
    pub hit: bool,
}

/// Kills a victim. A link that was cut is restored before this function returns.
pub(crate) fn strike(
    world: &World,
    plan: &Plan,
    daemons: Option<&Daemons>,
    proxies: &Proxies,
    due: &Kill,
) -> Result<bool> {
    match &due.victim {
        Victim::Daemon { host, back_ms } => {
            let back = Duration::from_millis(*back_ms);
            Ok(daemons.is_some_and(|d| d.kill(*host, Some(back))))
        }
        Victim::DaemonAt {
            host,
            step,
            back_ms,
        } => {
            let back = Duration::from_millis(*back_ms);
            let daemons = daemons.map(|d| d.set_fault(world, *host, step, back));
            // Whether the daemon comes to this step is known at the end of the run.
            daemons.unwrap_or(Ok(())).map(|()| false)
        }
        Victim::Proxy { host } => kill_proxy(proxies, *host),
        Victim::Handlers { host } => match daemons {
            Some(daemons) => kill_handlers(daemons, world.host(*host)?),
            None => Ok(false),
        },
        Victim::Host { host } => {
            // The link goes down first, as if the machine lost power: no host is notified.
            if let Some(host) = plan.host(*host) {
                world.set_link(host, false)?;
            }
            let _ = daemons.is_some_and(|d| d.kill(*host, None));
            kill_proxy(proxies, *host)
        }
        Victim::Link { host, back_ms } => {
            let Some(host) = plan.host(*host) else {
                return Ok(false);
            };
            world.set_link(host, false)?;
            std::thread::sleep(Duration::from_millis(*back_ms));
            world.set_link(host, true)?;
            Ok(true)
        }
    }
}

/// Kills the processes that the host's listing names. A daemon that is down lists nothing.
fn kill_handlers(daemons: &Daemons, host: &Host) -> Result<bool> {
    let listed = daemons.fleet.json(host, &["service", "list"]);
    let listed = listed.unwrap_or_default();
    let sessions = listed.as_array().into_iter().flatten();
    let pids: BTreeSet<i64> = sessions.filter_map(|s| s["handler"].as_i64()).collect();
    for pid in &pids {
        let pid = Pid::from_raw(i32::try_from(*pid)?);
        // The process may have ended meanwhile.
        let _ = kill(pid, Signal::SIGKILL);
    }
    Ok(!pids.is_empty())
}

fn kill_proxy(proxies: &Proxies, host: u8) -> Result<bool> {
    let mut proxies = proxies.lock().unwrap_or_else(PoisonError::into_inner);
    match proxies.remove(&host) {
        Some(mut process) => process.kill().map(|_| true),
        None => Ok(false),
    }
}
