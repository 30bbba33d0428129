//! Hosts that sessions no longer pass.

use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::wait;

use super::{At, Steered};

/// Time limit: a daemon that died while it forgot a session has tombstones for two MSL from its
/// next start on.
const FORGETS: Duration = Duration::from_secs(100);

impl Steered {
    /// Waits until a firewall's host has nothing left of any session.
    pub(crate) fn wait_forgotten(&self, fw: At) -> Result<()> {
        self.wait_until_none(fw, "dport=9000")
    }

    /// Waits for a host that may have been an anchor. Entries of packets by which the host itself
    /// opened a path vanish by themselves.
    pub(crate) fn wait_forgotten_but_own(&self, fw: At) -> Result<()> {
        self.wait_until_none(fw, &format!("src={} ", self.ip(At::Client)))
    }

    fn wait_until_none(&self, fw: At, of: &str) -> Result<()> {
        wait::until("the host to forget", FORGETS, || {
            self.has_none(fw, of).ok()?.then_some(())
        })
        .with_context(|| self.logs())
    }

    fn has_none(&self, fw: At, of: &str) -> Result<bool> {
        Ok(!self.is_tracked(fw, of)? && self.sessions(fw)?.is_empty())
    }

    fn is_tracked(&self, fw: At, of: &str) -> Result<bool> {
        let words = ["-L", "-p", "tcp"];
        let entries = self.host(fw).output("conntrack", &words)?;
        let ours = |line: &str| line.contains("dport=9000") && line.contains(of);
        Ok(entries.lines().any(ours))
    }

    /// Waits until the firewalls outside of the session's current chain have forgotten it. Entries
    /// that receive late messages may remain.
    pub(crate) fn wait_forgotten_elsewhere(&self, session: &str) -> Result<()> {
        let has_ended = |fw| -> Result<bool> {
            let all = self.sessions(fw)?;
            let left = all.iter().any(|s| s["state"] != "tombstone");
            Ok(!left && !self.is_tracked(fw, "dport=9000")?)
        };
        wait::until("who is left out to forget", FORGETS, || {
            let chain = self.chain_of(session).ok()?.to_string();
            let mut out = self.firewalls().filter(|fw| !chain.contains(&self.ip(*fw)));
            out.all(|fw| has_ended(fw).is_ok_and(|ended| ended))
                .then_some(())
        })
        .with_context(|| self.logs())
    }
}
