//! A SYNPROXY on the proxy's own host: between its socket and the wire, sequence numbers and
//! timestamps are translated.

mod world;

use anyhow::{Context, Result};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Role};
use world::{DECLARED, World};

/// It answers for HAProxy's port.
const RULES: &str = "
table ip guard {
  chain early {
    type filter hook prerouting priority raw
    tcp dport 8080 tcp flags & (syn | ack) == syn notrack
  }
  chain late {
    type filter hook input priority 0
    tcp dport 8080 ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm
    tcp dport 8080 ct state invalid drop
  }
}
";

fn guard(host: &Host) -> Result<()> {
    host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
    host.input("nft", &["-f", "-"], RULES)
        .context("this test needs nft_synproxy in the kernel")
        .map(drop)
}

/// Each has clocks of its own, of which some are behind the socket's.
fn goes_on(mode: &'static str, daemons: &[Role]) -> Result<()> {
    const COUNT: usize = 8;
    let mut w = World::with(
        Lab::builder("synproxy"),
        Family::V4,
        daemons,
        DECLARED,
        |c| c,
    )?;
    w.mode = mode;
    guard(&w.lab.proxy)?;
    let group = w.open(COUNT, &Plan::gentle())?;
    group.run();
    group.wait_progress(1 << 18)?;
    w.wait_removable(&w.ends(&group)?)?;
    w.remove_all_of(COUNT)?;
    group.wait_progress(1 << 19).with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn its_host_and_both_neighbours() -> Result<()> {
    goes_on("bypass", &Role::ALL)
}

#[test]
fn its_host_alone() -> Result<()> {
    goes_on("local", &[Role::Proxy])
}
