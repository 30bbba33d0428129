//! Kills, when their time has come.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use dysco_netns::Process;
use serde::{Deserialize, Serialize};

use crate::daemons::Daemons;
use crate::plan::{Kill, Plan, Victim};
use crate::world::World;

/// The proxies that run, by their hosts.
pub type Proxies = Mutex<BTreeMap<u8, Process>>;

/// A kill that was done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KillRun {
    /// What was killed.
    pub victim: Victim,
    /// When, in milliseconds since sessions began.
    pub at_ms: u64,
    /// Whether there was something to kill.
    pub hit: bool,
}

/// Kills something; what was cut comes back before this returns.
pub fn strike(
    world: &World,
    plan: &Plan,
    daemons: Option<&Daemons>,
    proxies: &Proxies,
    kill: &Kill,
) -> Result<bool> {
    match &kill.victim {
        Victim::Daemon { host, back_ms } => {
            let back = Duration::from_millis(*back_ms);
            Ok(daemons.is_some_and(|d| d.kill(*host, Some(back))))
        }
        Victim::DaemonAt {
            host,
            step,
            back_ms,
        } => match daemons {
            Some(daemons) => daemons.set_fault(world, *host, step, Duration::from_millis(*back_ms)),
            None => Ok(false),
        },
        Victim::Proxy { host } => kill_proxy(proxies, *host),
        Victim::Host { host } => {
            // First its link, as of a machine that loses its power: nobody is told.
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

fn kill_proxy(proxies: &Proxies, host: u8) -> Result<bool> {
    let mut proxies = proxies.lock().unwrap_or_else(PoisonError::into_inner);
    match proxies.remove(&host) {
        Some(mut process) => process.kill().map(|_| true),
        None => Ok(false),
    }
}
