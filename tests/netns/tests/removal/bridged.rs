//! A host whose interface is a bridge, and whose netfilter sees bridged packets before the data
//! plane.

use crate::world::{DECLARED, World};
use anyhow::{Result, ensure};
use dysco_netns::device::Kind;
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role};

const MIB: u64 = 1 << 20;
const RULES: [&str; 2] = [
    "net.bridge.bridge-nf-call-iptables",
    "net.bridge.bridge-nf-call-ip6tables",
];

/// Nothing is changed where the host's firewall could drop the packets of a new path. Once netfilter
/// no longer sees them, the proxy leaves.
#[test]
fn a_bridge_whose_packets_netfilter_sees() -> Result<()> {
    for (role, mode) in [
        (Role::Client, "bypass"),
        (Role::Server, "bypass"),
        (Role::Proxy, "local"),
    ] {
        let lab = Lab::builder("bridged").host(role, |host| host.kind(Kind::Bridge));
        let mut w = World::with(lab, Family::V4, &Role::ALL, DECLARED, |c| c)?;
        w.mode = mode;
        let host = w.lab.host(role);
        RULES.iter().try_for_each(|key| host.sysctl(key, "1"))?;
        let firewall = "table inet own {\n chain input {\n \
                        type filter hook input priority 0\n ct state invalid drop\n }\n}\n";
        host.input("nft", &["-f", "-"], firewall)?;
        let group = w.open(1, &Plan::gentle())?;
        group.run();
        group.wait_progress(MIB)?;
        w.wait_removable(&w.ends(&group)?)?;
        let refused = w.remove_all()?;
        let reason = refused["removals"][0]["reason"].to_string();
        ensure!(
            reason.contains("bridge-nf-call-iptables=0"),
            "{role:?}: {refused:#}"
        );
        let status = w.fleet.dyscoctl(host, &["status"])?;
        ensure!(
            status.contains("sees the packets of the bridge eth0"),
            "{status}"
        );
        group.wait_progress(MIB)?;

        RULES.iter().try_for_each(|key| host.sysctl(key, "0"))?;
        w.remove_all_of(1)?;
        group.wait_progress(2 * MIB)?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}
