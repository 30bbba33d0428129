//! A SYNPROXY on the proxy's own host: between its socket and the wire, sequence numbers and
//! timestamps are translated.

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Role};
use serde_json::Value;

/// Rules that answer for HAProxy's port.
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

const COUNT: usize = 8;

/// Opens sessions through the SYNPROXY. Each has its own clock; some of the clocks are behind the
/// socket's.
fn busy(mode: &'static str, daemons: &[Role]) -> Result<(World, Group)> {
    let lab = Lab::builder("synproxy");
    let mut w = World::with(lab, Family::V4, daemons, DECLARED, |c| c)?;
    w.mode = mode;
    guard(&w.lab.proxy)?;
    let group = w.open(COUNT, &Plan::gentle())?;
    group.run();
    group.wait_progress(1 << 18)?;
    w.wait_removable(&w.ends(&group)?)?;
    Ok((w, group))
}

fn go_on(w: World, group: Group) -> Result<()> {
    group.wait_progress(1 << 19).with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn sessions_leave_its_host() -> Result<()> {
    let (w, group) = busy("bypass", &Role::ALL)?;
    w.remove_all_of(COUNT)?;
    go_on(w, group)
}

#[test]
fn its_host_does_not_relay_them() -> Result<()> {
    let (w, group) = busy("local", &[Role::Proxy])?;
    let done = w.remove_all()?;
    let removals = done["removals"].as_array().context("no removals")?;
    let refused = |r: &&Value| {
        let why = r["reason"].to_string();
        why.contains("shifts timestamps")
    };
    ensure!(
        removals.iter().filter(refused).count() == COUNT,
        "{done:#}\n{}",
        w.state()
    );
    go_on(w, group)
}
