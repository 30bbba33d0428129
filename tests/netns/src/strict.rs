//! Strict firewalls: one in a lab, and two in a star, of which the second trusts the first.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::{Host, Lab, Star};

/// Rules that drop every connection that connection tracking did not see opening, and count the
/// dropped packets. The rule that is added admits new connections.
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
/// Rule of the first firewall, which marks the connections that it admits.
const MARKS: &str = "ct state new tcp flags & (fin|syn|rst|ack) == syn ct mark set 0x17 accept";
/// Rule of the second firewall, which admits only marked connections: without the first firewall's
/// state it would drop all.
const BELIEVES: &str = "ct mark != 0x17 counter name dropped drop
    ct state new tcp flags & (fin|syn|rst|ack) == syn accept";

/// Makes a forwarding host a firewall that admits connections that open with a SYN.
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

/// Number of packets that a firewall has dropped so far.
///
/// # Errors
/// If the host is not a firewall.
pub fn refused(host: &Host) -> Result<u64> {
    let text = host.output("nft", &["-j", "list", "counters", "table", "inet", "fw"])?;
    let json: Value = serde_json::from_str(&text).context("nft printed no JSON")?;
    let items = json["nftables"].as_array().into_iter().flatten();
    let packets = items.filter_map(|item| item["counter"]["packets"].as_u64());
    Ok(packets.sum())
}

impl Lab {
    /// Makes the router, which all paths pass, a firewall.
    pub fn guard(&self) -> Result<()> {
        make(&self.router, MARKS)
    }

    /// Number of packets that the firewall of [`Lab::guard`] has dropped so far.
    pub fn refused(&self) -> Result<u64> {
        refused(&self.router)
    }
}

impl Star {
    /// Makes firewalls of the first two middleboxes' hosts.
    pub fn guard(&self) -> Result<()> {
        let mut pairs = self.middleboxes().iter().zip([MARKS, BELIEVES]);
        pairs.try_for_each(|(host, rule)| make(host, rule))
    }

    /// Number of packets that the firewalls of [`Star::guard`] have dropped so far.
    pub fn refused(&self) -> Result<u64> {
        // A host without that table is not a firewall.
        self.middleboxes().iter().take(2).map(refused).sum()
    }
}
