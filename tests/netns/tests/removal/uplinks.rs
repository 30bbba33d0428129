//! Hosts with two uplinks: the server is reached by another interface than the client, by routes
//! that depend on the source, or by several routes.

use std::net::Ipv4Addr;

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, PROXY_PORT, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Role, wait};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Modes, and the hosts that run `dyscod` for them.
const MODES: [(&str, &[Role]); 2] = [("bypass", &Role::ALL), ("local", &[Role::Proxy])];
/// Address of a host at its second uplink.
const SECOND: Ipv4Addr = Ipv4Addr::new(10, 0, 5, 1);

fn ip(host: &Host, words: &str) -> Result<String> {
    let words: Vec<_> = words.split_whitespace().collect();
    host.output("ip", &words)
}

/// Joins a host to the router by a second link, `eth1`.
fn second_uplink(w: &World, role: Role) -> Result<()> {
    let (host, router) = (w.lab.host(role), &w.lab.router);
    let netns = host.netns().display();
    let pair = format!("link add second type veth peer name eth1 netns {netns}");
    ip(router, &pair)?;
    ip(router, "addr add 10.0.5.254/24 dev second")?;
    ip(router, "link set second up")?;
    ip(host, &format!("addr add {SECOND}/24 dev eth1"))?;
    ip(host, "link set eth1 up")?;
    for (host, device) in [(host, "eth0"), (host, "eth1"), (router, "second")] {
        for key in ["all", device] {
            host.sysctl(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
        }
    }
    Ok(())
}

/// Builds a world whose proxy has a second uplink; `routes` makes its routes.
fn world(
    name: &str,
    (mode, roles): (&'static str, &[Role]),
    haproxy: impl FnOnce(Config) -> Config,
    routes: fn(&Host) -> Result<()>,
) -> Result<World> {
    let others = roles.iter().copied().filter(|r| *r != Role::Proxy);
    let others: Vec<_> = others.collect();
    let mut w = World::with(Lab::builder(name), Family::V4, &others, "", haproxy)?;
    w.mode = mode;
    second_uplink(&w, Role::Proxy)?;
    routes(&w.lab.proxy)?;
    start(&mut w, Role::Proxy)?;
    Ok(w)
}

/// Starts the daemon of the host with two uplinks.
fn start(w: &mut World, role: Role) -> Result<()> {
    let addresses = [role.address(Family::V4), SECOND.into()];
    let (host, links) = (w.lab.host(role), ["eth0", "eth1"]);
    let file = w.fleet.prepare_host(host, &addresses, &links, DECLARED)?;
    let daemon = w.fleet.restart(&w.lab, role, &file)?;
    w.daemons.push((role, daemon));
    Ok(())
}

/// Number of bytes that a device has sent.
fn sent_by(host: &Host, device: &str) -> Result<u64> {
    let text = ip(host, &format!("-s -j link show {device}"))?;
    let json: Value = serde_json::from_str(&text)?;
    let bytes = json[0]["stats64"]["tx"]["bytes"].as_u64();
    bytes.with_context(|| format!("no bytes: {text}"))
}

fn busy(w: &World, count: usize) -> Result<Group> {
    let group = w.open_at(PROXY_PORT, count, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    Ok(group)
}

fn remove_when_possible(w: &World, count: usize) -> Result<()> {
    let mut said = Value::Null;
    wait::until("the proxy to be removable", SETTLED, || {
        said = w.remove(&["--all", "--dry-run"]).ok()?;
        (said["summary"]["removable"] == count).then_some(())
    })
    .with_context(|| format!("{said:#}\n{}", w.state()))?;
    // Busy processors may delay the last of what the proxy holds.
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    ensure!(
        done["summary"]["removed"] == count,
        "{done:#}\n{}",
        w.state()
    );
    Ok(())
}

fn go_on(mut w: World, group: Group) -> Result<()> {
    group.wait_progress(MIB)?;
    drop(w.haproxy.take());
    group.wait_progress(MIB).with_context(|| w.state())?;
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn the_server_by_another_uplink() -> Result<()> {
    for mode in MODES {
        let w = world(
            "uplink",
            mode,
            |c| c,
            |proxy| ip(proxy, "route add 10.0.3.0/24 via 10.0.5.254 dev eth1").map(drop),
        )?;
        let group = busy(&w, 3)?;
        ensure!(sent_by(&w.lab.proxy, "eth1")? > 3 * MIB);
        remove_when_possible(&w, 3).context(mode.0)?;
        go_on(w, group).context(mode.0)?;
    }
    Ok(())
}

/// The proxy connects from an address for which another table has the route. Its host relays by
/// that route as well.
#[test]
fn a_route_that_depends_on_the_source() -> Result<()> {
    for mode in MODES {
        let from_second = |c: Config| c.line(&format!("source {SECOND}"));
        let w = world("source", mode, from_second, |proxy| {
            ip(proxy, "rule add from 10.0.5.1 lookup 100")?;
            let route = "route add default via 10.0.5.254 dev eth1 table 100";
            ip(proxy, route).map(drop)
        })?;
        let group = busy(&w, 3)?;
        ensure!(sent_by(&w.lab.proxy, "eth1")? > 3 * MIB);
        remove_when_possible(&w, 3).context(mode.0)?;
        let before = sent_by(&w.lab.proxy, "eth1")?;
        group.wait_progress(MIB)?;
        let more = sent_by(&w.lab.proxy, "eth1")? - before;
        ensure!(mode.0 == "bypass" || more > 2 * MIB, "eth1 sent {more}");
        go_on(w, group).context(mode.0)?;
    }
    Ok(())
}

#[test]
fn two_routes_of_equal_cost() -> Result<()> {
    for mode in MODES {
        let w = world(
            "ecmp",
            mode,
            |c| c,
            |proxy| {
                proxy.sysctl("net.ipv4.fib_multipath_hash_policy", "1")?;
                let routes = "route add 10.0.3.0/24 nexthop via 10.0.2.254 dev eth0 \
                              nexthop via 10.0.5.254 dev eth1";
                ip(proxy, routes).map(drop)
            },
        )?;
        let group = busy(&w, 16)?;
        for device in ["eth0", "eth1"] {
            ensure!(sent_by(&w.lab.proxy, device)? > MIB, "{device} is not used");
        }
        remove_when_possible(&w, 16).context(mode.0)?;
        go_on(w, group).context(mode.0)?;
    }
    Ok(())
}

/// The client reaches the proxy by its second uplink, and the server by the first. Its kernel would
/// drop what comes from the server under the proxy's address, until the setting is a loose one.
#[test]
fn strict_reverse_paths_of_an_end_with_two_uplinks() -> Result<()> {
    let roles = [Role::Proxy, Role::Server];
    let mut w = World::with(Lab::builder("strict"), Family::V4, &roles, DECLARED, |c| c)?;
    second_uplink(&w, Role::Client)?;
    let (client, router) = (&w.lab.client, &w.lab.router);
    let route = "route add 10.0.2.0/24 via 10.0.5.254 dev eth1 src 10.0.1.1";
    ip(client, route)?;
    ip(router, "route add 10.0.1.1 via 10.0.5.1 table 100")?;
    ip(router, "rule add iif proxy to 10.0.1.1 lookup 100")?;
    client.sysctl("net.ipv4.conf.all.rp_filter", "1")?;
    start(&mut w, Role::Client)?;
    let group = busy(&w, 2)?;
    w.wait_removable(&w.ends(&group)?)?;
    let done = w.remove_all()?;
    let removals = done["removals"].as_array().context("no removals")?;
    let told = |removal: &&Value| {
        let why = removal["reason"]["why"].as_str().unwrap_or_default();
        why.contains("arrive by another interface") && why.contains("rp_filter is 1")
    };
    ensure!(removals.iter().filter(told).count() == 2, "{done:#}");
    ensure!(done["summary"]["removed"] == 0, "{done:#}");
    group.wait_progress(MIB)?;
    w.lab.client.sysctl("net.ipv4.conf.all.rp_filter", "2")?;
    // The daemon there reads the settings from time to time.
    wait::until("a removal", SETTLED, || {
        let done = w.remove(&["--all", "--timeout", "120s"]).ok()?;
        (done["summary"]["removed"] == 2).then_some(())
    })
    .with_context(|| w.state())?;
    go_on(w, group)
}
