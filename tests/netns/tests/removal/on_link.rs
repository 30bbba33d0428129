//! The proxy's host is on the client's own link, and is switched off once the proxy has left.

use crate::world::World;
use anyhow::{Context, Result};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role};

/// The client's stack still resolves the proxy's address before a packet reaches the programs. The
/// router answers for the proxy, as long as the proxy exists.
#[test]
fn sessions_outlive_the_neighbour_that_they_were_opened_to() -> Result<()> {
    let w = World::new(Lab::builder("onlink"), Family::V4)?;
    let answers = |on| w.lab.router.sysctl("net.ipv4.conf.client.proxy_arp", on);
    answers("1")?;
    // The return path is the same, so that the filter drops nothing.
    let all = "net.ipv4.conf.all.rp_filter";
    w.lab.client.sysctl(all, "1")?;
    let proxy = Role::Proxy.address(Family::V4).to_string();
    let route = ["route", "add", &proxy, "dev", "eth0"];
    w.lab.client.output("ip", &route)?;
    let plan = Plan {
        rate: Some(1_000_000),
        ..Plan::default()
    };
    let group = w.open(2, &plan)?;
    group.run();
    group.wait_progress(1 << 18)?;
    w.remove_all_of(2)?;
    // The client's stack has looked at its neighbour table several times.
    group.wait_progress(4 << 20)?;
    // The proxy's host is off.
    answers("0")?;
    let off = ["link", "set", "proxy", "down"];
    w.lab.router.output("ip", &off)?;
    for _ in 0..2 {
        let forget = ["neigh", "del", &proxy, "dev", "eth0"];
        w.lab.client.output("ip", &forget)?;
        group.wait_progress(1 << 20).with_context(|| w.state())?;
    }
    all_intact(&group.finish()?)?;
    w.finish()
}
