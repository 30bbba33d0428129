//! Interfaces whose packets begin with the IP header, as those of WireGuard: on all hosts, or on some
//! of them beside others with an Ethernet header.

use crate::world::{DECLARED, World};
use anyhow::{Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Builder, Family, HostOptions, Lab, Role, wire};

const MIB: u64 = 1 << 20;

/// Returns a lab in which the links of these hosts have no Ethernet header.
fn lab(name: &str, roles: &[Role]) -> Builder {
    let change = |lab: Builder, role: &Role| lab.host(*role, HostOptions::headerless);
    roles.iter().fold(Lab::builder(name), change)
}

/// Checks that the link of a host has no Ethernet header, and that its daemon reads its packets.
fn is_headerless(w: &World, role: Role) -> Result<()> {
    let host = w.lab.host(role);
    let link = host.output("ip", &["link", "show", "eth0"])?;
    ensure!(link.contains("link/none"), "{link}");
    let status = w.fleet.dyscoctl(host, &["status"])?;
    ensure!(status.starts_with("ok"), "{status}");
    Ok(())
}

/// Busy sessions lose the proxy in this mode, and continue without it.
fn busy(builder: Builder, family: Family, mode: &'static str, daemons: &[Role]) -> Result<World> {
    let mut w = World::with(builder, family, daemons, DECLARED, |c| c)?;
    w.mode = mode;
    let group = w.open(4, &Plan::default())?;
    group.run();
    group.wait_progress(MIB)?;
    w.wait_removable(&w.ends(&group)?)?;
    w.remove_all_of(4)?;
    let before = w.lab.proxy_packets()?;
    group.wait_progress(2 * MIB)?;
    let passed = w.lab.proxy_packets()? - before;
    ensure!(mode != "bypass" || passed < 50, "the proxy sees {passed}");
    all_intact(&group.finish()?)?;
    Ok(w)
}

#[test]
fn a_bypass_between_such_hosts() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let w = busy(lab("bare", &Role::ALL), family, "bypass", &Role::ALL)?;
        Role::ALL
            .iter()
            .try_for_each(|role| is_headerless(&w, *role))?;
        w.finish()?;
    }
    Ok(())
}

#[test]
fn a_bypass_where_one_host_is_such_a_host() -> Result<()> {
    for role in Role::ALL {
        let w = busy(lab("onebare", &[role]), Family::V4, "bypass", &Role::ALL)?;
        is_headerless(&w, role)?;
        w.finish()?;
    }
    Ok(())
}

#[test]
fn a_relay_of_such_a_host() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let daemons = [Role::Proxy];
        let w = busy(lab("relaybare", &daemons), family, "local", &daemons)?;
        is_headerless(&w, Role::Proxy)?;
        w.finish()?;
    }
    Ok(())
}

/// The proxy reaches its client by an Ethernet interface, and its server by a tunnel. A session comes
/// by one and leaves by the other.
#[test]
fn a_relay_between_both_kinds() -> Result<()> {
    let mut w = World::with(Lab::builder("both"), Family::V4, &[], "", |c| c)?;
    w.mode = "local";
    let (proxy, server) = (&w.lab.proxy, &w.lab.server);
    let tunnel = wire::join((proxy, "tun0"), (server, "tun0"))?;
    for (host, [from, to]) in [
        (proxy, [Role::Proxy, Role::Server]),
        (server, [Role::Server, Role::Proxy]),
    ] {
        host.sysctl("net.ipv4.conf.all.rp_filter", "0")?;
        host.sysctl("net.ipv4.conf.tun0.rp_filter", "0")?;
        let [from, to] = [from, to].map(|role| role.address(Family::V4).to_string());
        let route = ["route", "add", &to, "dev", "tun0", "src", &from];
        host.output("ip", &route)?;
    }
    let file = w.fleet.prepare(&w.lab, Role::Proxy, DECLARED)?;
    let text = std::fs::read_to_string(&file)?;
    std::fs::write(&file, text.replace("[\"eth0\"]", "[\"eth0\", \"tun0\"]"))?;
    let daemon = w.fleet.restart(&w.lab, Role::Proxy, &file)?;
    w.daemons.push((Role::Proxy, daemon));
    let group = w.open(4, &Plan::default())?;
    group.run();
    group.wait_progress(MIB)?;
    w.wait_removable(&w.ends(&group)?)?;
    w.remove_all_of(4)?;
    group.wait_progress(2 * MIB)?;
    let carried = w.lab.proxy.output("ip", &["-s", "link", "show", "tun0"])?;
    ensure!(carried.contains("link/none"), "{carried}");
    all_intact(&group.finish()?)?;
    drop(tunnel);
    w.finish()
}

#[test]
fn replies_past_such_a_host() -> Result<()> {
    let daemons = [Role::Proxy, Role::Server];
    let w = busy(lab("dsrbare", &Role::ALL), Family::V4, "return", &daemons)?;
    is_headerless(&w, Role::Server)?;
    w.finish()
}

/// The daemon starts under the traffic.
#[test]
fn older_sessions_of_such_a_host() -> Result<()> {
    let mut w = World::with(lab("oldbare", &Role::ALL), Family::V4, &[], "", |c| c)?;
    w.mode = "local";
    let group = w.open(2, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    let daemon = w.fleet.start(&w.lab, Role::Proxy, DECLARED)?;
    w.daemons.push((Role::Proxy, daemon));
    w.wait_removable(&w.ends(&group)?)?;
    w.remove_all_of(2)?;
    group.wait_progress(2 * MIB)?;
    all_intact(&group.finish()?)?;
    w.finish()
}
