//! HAProxy leaves, and XDP relays on its host, on links whose hosts complete the checksums
//! themselves, as on a wire. Every byte of both directions is checked, and both streams' SHA-256.

use std::fs;
use std::time::Duration;

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Builder, Family, Lab, Role, counters, wait};

const LIMIT: Duration = Duration::from_secs(60);
const BY_XDP: &str = "packets_relayed_by_xdp";

fn lab(name: &str) -> Builder {
    Lab::builder(name)
        .hosts(|h| h.offload(false))
        .host(Role::Proxy, |h| h.polled(true))
}

/// Builds a world with a daemon only on the proxy's host, and this setting.
fn alone(builder: Builder, family: Family, xdp: &str) -> Result<World> {
    let config = format!("{DECLARED}[data_plane]\nxdp = \"{xdp}\"\n");
    let mut w = World::with(builder, family, &[Role::Proxy], &config, |c| c)?;
    w.mode = "local";
    Ok(w)
}

fn count(w: &World, name: &str) -> Result<u64> {
    let counters = w.counters(Role::Proxy)?;
    counters[name]
        .as_u64()
        .with_context(|| format!("{name} is not counted: {counters:#}"))
}

/// Waits until XDP has relayed this number of further packets.
fn wait_relayed(w: &World, packets: u64) -> Result<()> {
    let before = count(w, BY_XDP)?;
    wait::until("XDP to relay", LIMIT, || {
        let now = count(w, BY_XDP).ok()?;
        (now >= before + packets).then_some(())
    })
    .with_context(|| w.state())
}

/// True if the kernel lists the program on the host's interface.
fn attached(w: &World) -> Result<bool> {
    let link = w.lab.proxy.output("ip", &["link", "show", "eth0"])?;
    Ok(link.contains(" xdp "))
}

fn relays(family: Family) -> Result<()> {
    let mut w = alone(lab("xdp"), family, "on")?;
    let status = w.fleet.json(&w.lab.proxy, &["status"])?;
    ensure!(status["interfaces"][0]["xdp"] == true, "{status:#}");
    let group = w.open(3, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    ensure!(count(&w, BY_XDP)? == 0, "XDP relays what has its proxy");
    w.remove_all_of(3)?;
    drop(w.haproxy.take());
    wait_relayed(&w, 5000)?;
    group.wait_progress(4 << 20)?;

    // XDP continues without its daemon, and with the next daemon.
    for kill in [true, false] {
        let daemon = w.daemon(Role::Proxy)?;
        match kill {
            true => drop(daemon.kill()?),
            false => daemon.stop()?,
        }
        ensure!(attached(&w)?, "the program went with its daemon");
        group.wait_progress(2 << 20)?;
        w.restart(Role::Proxy)?;
        wait_relayed(&w, 5000)?;
    }
    let (by_xdp, all) = (count(&w, BY_XDP)?, count(&w, "packets_relayed")?);
    println!("{by_xdp} of {all} packets by XDP");
    ensure!(by_xdp <= all, "{by_xdp} of {all}");
    for host in [&w.lab.client, &w.lab.server] {
        let resets = counters::resets(host)?;
        ensure!(resets == 0, "{resets} resets\n{}", w.state());
    }
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn both_directions_stay_intact_ipv4() -> Result<()> {
    relays(Family::V4)
}

#[test]
fn both_directions_stay_intact_ipv6() -> Result<()> {
    relays(Family::V6)
}

/// With another setting the next daemon detaches the program, under traffic.
#[test]
fn it_comes_and_goes_with_the_setting() -> Result<()> {
    let mut w = alone(lab("xdpset"), Family::V4, "on")?;
    let group = w.open(2, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    w.remove_all_of(2)?;
    wait_relayed(&w, 1000)?;
    let file = w.lab.proxy.dir().join("dyscod.toml");
    let text = fs::read_to_string(&file)?;
    // In mode `auto` a daemon never treats a link between two hosts of one machine as a wire.
    for (setting, is_on) in [("off", false), ("on", true), ("auto", false)] {
        fs::write(&file, text.replace("\"on\"", &format!("{setting:?}")))?;
        w.daemon(Role::Proxy)?.stop()?;
        w.restart(Role::Proxy)?;
        let status = w.fleet.json(&w.lab.proxy, &["status"])?;
        ensure!(status["interfaces"][0]["xdp"] == is_on, "{status:#}");
        ensure!(attached(&w)? == is_on, "{setting}");
        if is_on {
            wait_relayed(&w, 1000)?;
            continue;
        }
        let before = count(&w, BY_XDP)?;
        group.wait_progress(1 << 20)?;
        ensure!(count(&w, BY_XDP)? == before, "{setting}");
    }
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A neighbour that gets another Ethernet address is found again without a daemon.
#[test]
fn a_neighbour_may_change() -> Result<()> {
    let mut w = alone(lab("xdphop"), Family::V4, "on")?;
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    w.remove_all_of(1)?;
    wait_relayed(&w, 1000)?;
    w.daemon(Role::Proxy)?.kill()?;
    let ip = |host: &dysco_netns::Host, words: &str| {
        let words: Vec<_> = words.split(' ').collect();
        host.output("ip", &words)
    };
    let address = "02:77:77:77:77:77";
    ip(&w.lab.router, &format!("link set proxy address {address}"))?;
    let gateway = "neigh replace 10.0.2.254 dev eth0";
    ip(&w.lab.proxy, &format!("{gateway} lladdr {address}"))?;
    group.wait_progress(4 << 20)?;
    w.restart(Role::Proxy)?;
    wait_relayed(&w, 1000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// An interface without support is reported at the start, with a remedy.
#[test]
fn an_interface_that_cannot_is_named() -> Result<()> {
    let mut w = alone(lab("xdpcannot"), Family::V4, "off")?;
    w.daemon(Role::Proxy)?.stop()?;
    let proxy = &w.lab.proxy;
    let file = proxy.dir().join("dyscod.toml");
    let add = ["link", "add", "bridge0", "type", "bridge"];
    proxy.output("ip", &add)?;
    let text = fs::read_to_string(&file)?
        .replace("\"off\"", "\"on\"")
        .replace("[\"eth0\"]", "[\"eth0\", \"bridge0\"]");
    fs::write(&file, text)?;
    let Err(error) = w.restart(Role::Proxy) else {
        anyhow::bail!("it starts");
    };
    let log = fs::read_to_string(w.lab.proxy.dir().join("dyscod.log"))?;
    let told = "failed to relay by XDP on interface bridge0";
    ensure!(log.contains(told), "{error:#}\n{log}");
    ensure!(log.contains("set xdp = \"auto\""), "{log}");
    w.finish()
}
