//! Strict firewalls: one in a lab, and two in a star, of which the second trusts the first.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::{Host, Lab, Star};

/// Rules that drop every connection that connection tracking did not see opening, count the dropped
/// packets, and keep the addresses and ports of some. (`nft` of Debian 12 fails to list flags and
/// numbers in a set.) The rule that is added admits new connections.
const RULES: &str = "
table inet fw {
  counter dropped { }
  counter invalid { }
  set refused4 {
    type ipv4_addr . inet_service . ipv4_addr . inet_service
    flags dynamic; size 64;
  }
  set refused6 {
    type ipv6_addr . inet_service . ipv6_addr . inet_service
    flags dynamic; size 64;
  }
  chain refuse {
    add @refused4 { ip saddr . tcp sport . ip daddr . tcp dport }
    add @refused6 { ip6 saddr . tcp sport . ip6 daddr . tcp dport }
  }
  chain forward {
    type filter hook forward priority 0; policy drop;
    meta l4proto != tcp accept
    ct state invalid jump refuse
    ct state invalid counter name invalid drop
    RULE
    ct state established accept
    jump refuse
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

/// Checks that a firewall has dropped nothing.
///
/// # Errors
/// If it has. The error has the addresses and ports of some dropped packets.
pub fn nothing_refused(host: &Host) -> Result<()> {
    let count = refused(host)?;
    ensure!(
        count == 0,
        "the firewall has dropped {count} packets:\n{}",
        host.output("nft", &["list", "table", "inet", "fw"])?
    );
    Ok(())
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
