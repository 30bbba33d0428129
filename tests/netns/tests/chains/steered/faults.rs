//! Lost messages, and paths that are dead or die.

use anyhow::{Context, Result};
use dysco_netns::fleet;
use serde_json::Value;

use super::{At, Steered};

const SYNS: &str = "table inet dead {
  chain forward {
    type filter hook forward priority -1
    tcp flags syn drop
  }
}\n";

impl Steered {
    /// Number of times that a host's daemon has lost this message on purpose.
    pub(crate) fn lost(&self, at: At, message: &str) -> Result<usize> {
        let name = message.split(':').next().unwrap_or_default();
        fleet::lost(self.host(at), name)
    }

    /// Makes a firewall drop SYNs, so that no path through its host opens.
    pub(crate) fn lets_no_syn_through(&self, fw: At) -> Result<()> {
        self.host(fw).input("nft", &["-f", "-"], SYNS).map(drop)
    }

    pub(crate) fn lets_syns_through(&self, fw: At) -> Result<()> {
        let words = ["delete", "table", "inet", "dead"];
        self.host(fw).output("nft", &words).map(drop)
    }

    /// Drops all packets to and from a host, except the messages between daemons.
    pub(crate) fn lose_all_of(&self, at: At) -> Result<()> {
        let port = at.name();
        let rules = format!(
            "table inet dead {{
               counter lost {{ }}
               chain forward {{
                 type filter hook forward priority -1
                 meta l4proto != tcp accept
                 iifname {port} counter name lost drop
                 oifname {port} counter name lost drop
               }}
             }}\n"
        );
        self.router.input("nft", &["-f", "-"], &rules).map(drop)
    }

    pub(crate) fn lose_no_more(&self) -> Result<()> {
        let words = ["delete", "table", "inet", "dead"];
        self.router.output("nft", &words).map(drop)
    }

    /// Number of packets that were dropped.
    pub(crate) fn lost_of_all(&self) -> Result<u64> {
        let words = ["-j", "list", "counter", "inet", "dead", "lost"];
        let json: Value = serde_json::from_str(&self.router.output("nft", &words)?)?;
        let mut items = json["nftables"].as_array().into_iter().flatten();
        let packets = items.find_map(|item| item["counter"]["packets"].as_u64());
        packets.context("nft did not say the packets")
    }
}
