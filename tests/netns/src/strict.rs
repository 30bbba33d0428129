//! Strict firewalls: one at a lab, and two at a star, of which the second believes
//! the first.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{Host, Lab, Star};

/// Lets nothing pass that connection tracking did not see opening, and counts
/// what it refuses. New connections come in by the rule that is added.
const RULES: &str = "
table inet fw {
  counter dropped { }
  counter invalid { }
  chain forward {
    type filter hook forward priority 0; policy drop;
    meta l4proto != tcp accept
    ct state invalid counter name invalid drop
    RULE
    ct state established accept
    counter name dropped
  }
}
";
/// The first firewall marks whom it lets in.
const MARKS: &str = "ct state new tcp flags & (fin|syn|rst|ack) == syn ct mark set 0x17 accept";
/// The second lets in nobody but those: without the first one's state it would
/// refuse all.
const BELIEVES: &str = "ct mark != 0x17 counter name dropped drop
    ct state new tcp flags & (fin|syn|rst|ack) == syn accept";

/// Makes a firewall of a host that forwards: it lets in who opens with a SYN.
///
/// # Errors
/// If `nft` or the kernel refuses.
pub fn guard(host: &Host) -> Result<()> {
    make(host, MARKS)
}

fn make(host: &Host, rule: &str) -> Result<()> {
    host.input("nft", &["-f", "-"], &RULES.replace("RULE", rule))?;
    host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
    host.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")
}

/// Packets that a firewall has refused so far.
///
/// # Errors
/// If it is none.
pub fn refused(host: &Host) -> Result<u64> {
    let text = host.output("nft", &["-j", "list", "counters", "table", "inet", "fw"])?;
    let json: Value = serde_json::from_str(&text).context("nft printed no JSON")?;
    let items = json["nftables"].as_array().into_iter().flatten();
    let packets = items.filter_map(|item| item["counter"]["packets"].as_u64());
    Ok(packets.sum())
}

impl Lab {
    /// Makes a firewall of the router, which all paths pass.
    pub fn guard(&self) -> Result<()> {
        make(&self.router, MARKS)
    }

    /// Packets that the firewall of [`Lab::guard`] has refused so far.
    pub fn refused(&self) -> Result<u64> {
        refused(&self.router)
    }
}

impl Star {
    /// Makes firewalls of its first two middleboxes' hosts.
    pub fn guard(&self) -> Result<()> {
        let mut pairs = self.middleboxes().iter().zip([MARKS, BELIEVES]);
        pairs.try_for_each(|(host, rule)| make(host, rule))
    }

    /// Packets that the firewalls of [`Star::guard`] have refused so far.
    pub fn refused(&self) -> Result<u64> {
        // A host without that table is no firewall.
        self.middleboxes().iter().take(2).map(refused).sum()
    }
}
