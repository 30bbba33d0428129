//! Two strict firewalls at a star, of which the second believes the first.

use anyhow::{Context, Result};
use serde_json::Value;

use crate::Star;

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

impl Star {
    /// Makes firewalls of its first two middleboxes' hosts.
    pub fn guard(&self) -> Result<()> {
        for (host, rule) in self.middleboxes().iter().zip([MARKS, BELIEVES]) {
            host.input("nft", &["-f", "-"], &RULES.replace("RULE", rule))?;
            host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
            host.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")?;
        }
        Ok(())
    }

    /// Packets that the firewalls of [`Star::guard`] have refused so far.
    pub fn refused(&self) -> Result<u64> {
        let mut all = 0;
        for host in self.middleboxes() {
            let text = host.output("nft", &["-j", "list", "counters"])?;
            let json: Value = serde_json::from_str(&text).context("nft printed no JSON")?;
            let items = json["nftables"].as_array().into_iter().flatten();
            let packets = items.filter_map(|item| item["counter"]["packets"].as_u64());
            all += packets.sum::<u64>();
        }
        Ok(all)
    }
}
