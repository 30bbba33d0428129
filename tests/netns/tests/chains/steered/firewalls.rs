//! Rules and counters of the firewalls of the lab.

use anyhow::{Context, Result};
use dysco_netns::wait;
use serde_json::Value;

use super::{At, PATIENCE, Steered};

impl Steered {
    /// Sets whether a host's netfilter sees the packets of its bridges.
    pub(crate) fn filter_bridged(&self, at: At, on: bool) -> Result<()> {
        let value = if on { "1" } else { "0" };
        let keys = ["iptables", "ip6tables"].into_iter();
        let mut keys = keys.map(|key| format!("net.bridge.bridge-nf-call-{key}"));
        keys.try_for_each(|key| self.host(at).sysctl(&key, value))
    }

    /// Firewalls of this lab.
    pub(crate) fn firewalls(&self) -> impl Iterator<Item = At> + '_ {
        self.all.iter().copied().filter(|at| at.is_firewall())
    }

    pub(crate) fn counted(&self, fw: At, counter: &str) -> Result<u64> {
        let words = ["-j", "list", "counter", "inet", "fw", counter];
        let json: Value = serde_json::from_str(&self.host(fw).output("nft", &words)?)?;
        let mut items = json["nftables"].as_array().into_iter().flatten();
        let packets = items.find_map(|item| item["counter"]["packets"].as_u64());
        packets.context("nft did not say the packets")
    }

    /// Makes a firewall refuse new sessions: it admits only sessions that it knows.
    pub(crate) fn lets_in_the_known(&self, fw: At) -> Result<()> {
        let rule =
            "insert rule inet fw forward ct mark != 0x17 tcp dport 9000 counter name dropped drop";
        let words: Vec<_> = rule.split(' ').collect();
        self.host(fw).output("nft", &words).map(drop)
    }

    /// Number of packets that a firewall has refused so far.
    pub(crate) fn refused(&self, fw: At) -> Result<u64> {
        Ok(self.counted(fw, "dropped")? + self.counted(fw, "invalid")?)
    }

    /// Waits until data takes this chain and no other.
    pub(crate) fn wait_only_through(&self, chain: &[At]) -> Result<()> {
        wait::until("the chain to carry it all", PATIENCE, || {
            let before: Vec<_> = self.passed().ok()?;
            let carried = self.traffic_moves().ok()?;
            let after: Vec<_> = self.passed().ok()?;
            let mut each = self.firewalls().zip(before.iter().zip(&after));
            let right = each.all(|(fw, (before, after))| chain.contains(&fw) == (before != after));
            (carried && right).then_some(())
        })
    }

    /// Number of packets that each firewall has passed so far.
    pub(crate) fn passed(&self) -> Result<Vec<u64>> {
        self.firewalls()
            .map(|fw| self.counted(fw, "passed"))
            .collect()
    }

    /// True if the client has sent anything between two looks.
    fn traffic_moves(&self) -> Result<bool> {
        let sum = |sessions: Vec<Value>| -> u64 {
            let sent = sessions.iter().map(|s| s["bytes_out"].as_u64());
            sent.map(Option::unwrap_or_default).sum()
        };
        let before = sum(self.sessions(At::Client)?);
        wait::until("data to move", PATIENCE, || {
            (sum(self.sessions(At::Client).ok()?) > before).then_some(())
        })?;
        Ok(true)
    }
}
