//! Addresses of all kinds: IPv4 on sockets of IPv6, more than one on an interface, and addresses
//! that come, go and move to another host.

use std::net::SocketAddr;

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Close, Group, Plan, Server, Side, all_intact};
use dysco_netns::{Family, Host, Lab, Role, counters, wait};
use serde_json::Value;

const MIB: u64 = 1 << 20;
/// Modes, and the hosts that run `dyscod` for them.
const MODES: [(&str, &[Role]); 2] = [("bypass", &Role::ALL), ("local", &[Role::Proxy])];
/// Address that has the proxy's interface as its second one.
const SECOND: &str = "10.0.2.9";
/// Address of a service that moves between hosts, which no subnet has.
const VIP: &str = "10.0.9.9";

fn at(text: &str) -> Result<SocketAddr> {
    text.parse().with_context(|| format!("no address: {text}"))
}

fn ip(host: &Host, words: &str) -> Result<String> {
    let words: Vec<_> = words.split_whitespace().collect();
    host.output("ip", &words)
}

/// Starts HAProxy in the place of the one that runs.
fn replace_proxy(w: &mut World, listen: SocketAddr, server: SocketAddr) -> Result<()> {
    drop(w.haproxy.take());
    let config = Config::tcp(listen, server).named("other");
    let started = config.start(&w.lab.proxy, |p| w.fleet.under_shim(p))?;
    w.haproxy = Some(started);
    Ok(())
}

/// Waits until the proxy can leave this number of sessions, and removes it from all.
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

/// Checks that sessions go on without the proxy's process, and end successfully.
fn go_on(w: &mut World, group: Group) -> Result<()> {
    group.wait_progress(MIB)?;
    drop(w.haproxy.take());
    group.wait_progress(MIB).with_context(|| w.state())?;
    w.no_resets()?;
    all_intact(&group.finish()?).map(drop)
}

/// Starts daemons under traffic, the proxy's last.
fn start_late(w: &mut World, roles: &[Role]) -> Result<()> {
    for role in roles {
        let daemon = w.fleet.start(&w.lab, *role, DECLARED)?;
        w.daemons.push((*role, daemon));
    }
    Ok(())
}

/// Checks that each of the proxy's connections on these ports has a socket of IPv6 with IPv4 peers.
fn is_mapped(host: &Host, port: u16) -> Result<()> {
    let filter = format!("sport = :{port}");
    let sockets = host.output("ss", &["-Htn", "state", "established", &filter])?;
    let mapped = |line: &str| line.matches("[::ffff:").count() == 2;
    ensure!(
        !sockets.is_empty() && sockets.lines().all(mapped),
        "{sockets}"
    );
    Ok(())
}

/// All three programs use sockets of IPv6, and all packets are of IPv4.
fn mapped(mode: &'static str, roles: &[Role], adopted: bool) -> Result<()> {
    let first = if adopted { &[][..] } else { roles };
    let mut w = World::with(Lab::builder("mapped"), Family::V4, first, DECLARED, |c| c)?;
    w.mode = mode;
    let server = Server::start(&w.lab.server, at("[::]:9001")?)?;
    replace_proxy(&mut w, at("[::]:8080")?, at("10.0.3.1:9001")?)?;
    let to = at("[::ffff:10.0.2.1]:8080")?;
    let group = Group::open(&w.lab.client, &server, to, 3, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    is_mapped(&w.lab.proxy, 8080)?;
    is_mapped(&w.lab.server, 9001)?;
    if adopted {
        start_late(&mut w, roles)?;
    }
    remove_when_possible(&w, 3)?;
    go_on(&mut w, group)?;
    drop(server);
    w.finish()
}

#[test]
fn ipv4_on_sockets_of_ipv6() -> Result<()> {
    MODES
        .iter()
        .try_for_each(|(mode, roles)| mapped(mode, roles, false).context(*mode))
}

#[test]
fn older_sessions_of_ipv4_on_sockets_of_ipv6() -> Result<()> {
    MODES
        .iter()
        .try_for_each(|(mode, roles)| mapped(mode, roles, true).context(*mode))
}

/// Builds a world in which `dyscod` on the proxy's host knows these addresses.
fn world_of(name: &str, mode: &'static str, roles: &[Role], addresses: &[&str]) -> Result<World> {
    let others: Vec<_> = roles
        .iter()
        .copied()
        .filter(|r| *r != Role::Proxy)
        .collect();
    let mut w = World::with(Lab::builder(name), Family::V4, &others, "", |c| c)?;
    w.mode = mode;
    let addresses = addresses.iter().map(|a| a.parse());
    let addresses: Vec<_> = addresses.collect::<Result<_, _>>()?;
    let file = w
        .fleet
        .prepare_host(&w.lab.proxy, &addresses, &["eth0"], DECLARED)?;
    let daemon = w.fleet.restart(&w.lab, Role::Proxy, &file)?;
    w.daemons.push((Role::Proxy, daemon));
    Ok(w)
}

/// Opens sessions by a proxy that listens on a second address of its interface.
fn by_the_second(w: &mut World) -> Result<Group> {
    ip(&w.lab.proxy, &format!("addr add {SECOND}/24 dev eth0"))?;
    let listen = at(&format!("{SECOND}:8080"))?;
    replace_proxy(w, listen, at("10.0.3.1:9000")?)?;
    let group = Group::open(&w.lab.client, &w.server, listen, 3, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    Ok(group)
}

#[test]
fn a_second_address_of_the_interface() -> Result<()> {
    for (mode, roles) in MODES {
        let mut w = world_of("second", mode, roles, &["10.0.2.1", SECOND])?;
        let group = by_the_second(&mut w)?;
        remove_when_possible(&w, 3).context(mode)?;
        go_on(&mut w, group).context(mode)?;
        w.finish()?;
    }
    Ok(())
}

/// That address is not in the configuration. The proxy's host alone needs no name for it.
#[test]
fn a_second_address_that_is_not_in_the_configuration() -> Result<()> {
    let mut w = world_of("unnamed", "local", &[Role::Proxy], &["10.0.2.1"])?;
    let group = by_the_second(&mut w)?;
    remove_when_possible(&w, 3)?;
    go_on(&mut w, group)?;
    w.finish()
}

/// One side uses IPv4 and the other IPv6.
#[test]
fn a_proxy_between_ipv4_and_ipv6_stays_with_that_reason() -> Result<()> {
    for (client, server) in [
        ("10.0.2.1:8080", "[fd00:3::1]:9001"),
        ("[fd00:2::1]:8080", "10.0.3.1:9001"),
    ] {
        let mut w = World::new(Lab::builder("families"), Family::V4)?;
        let far = Server::start(&w.lab.server, at(server)?)?;
        replace_proxy(&mut w, at(client)?, at(server)?)?;
        let group = Group::open(&w.lab.client, &far, at(client)?, 2, &Plan::gentle())?;
        group.run();
        group.wait_progress(MIB)?;
        for mode in ["bypass", "local", "return", "auto"] {
            for words in [
                &["--all", "--dry-run", "--mode", mode][..],
                &["--all", "--mode", mode],
            ] {
                let mut done = Value::Null;
                wait::until("the true reason", SETTLED, || {
                    done = w.remove(words).ok()?;
                    let removals = done["removals"].as_array()?;
                    let told = |removal: &Value| {
                        let reason = removal["reason"]["why"].as_str().unwrap_or_default();
                        reason.contains("one end uses IPv4 and the other IPv6")
                    };
                    (removals.len() == 2 && removals.iter().all(told)).then_some(())
                })
                .with_context(|| format!("{words:?}: {done:#}\n{}", w.state()))?;
                ensure!(done["summary"]["refused"] == 2, "{words:?}: {done:#}");
            }
        }
        group.wait_progress(MIB)?;
        group.rest()?;
        all_intact(&group.finish()?)?;
        drop(far);
        w.finish()?;
    }
    Ok(())
}

/// Opens sessions to an address that only a route of the router leads to, and removes the proxy.
fn with_vip(
    name: &str,
    (mode, roles): (&'static str, &[Role]),
    device: &str,
    close: Close,
) -> Result<(World, Group)> {
    let mut w = world_of(name, mode, roles, &["10.0.2.1", VIP])?;
    ip(&w.lab.proxy, &format!("addr add {VIP}/32 dev {device}"))?;
    ip(&w.lab.router, &format!("route add {VIP} via 10.0.2.1"))?;
    let listen = at(&format!("{VIP}:8080"))?;
    replace_proxy(&mut w, listen, at("10.0.3.1:9000")?)?;
    let plan = Plan::paced(4_000_000, close);
    let group = Group::open(&w.lab.client, &w.server, listen, 3, &plan)?;
    group.run();
    group.wait_progress(MIB)?;
    remove_when_possible(&w, 3)?;
    Ok((w, group))
}

/// The address vanishes from the host and comes back, for sessions that have lost their proxy.
#[test]
fn an_address_that_goes_and_comes_back() -> Result<()> {
    for mode in MODES {
        for device in ["eth0", "lo"] {
            let (mut w, group) = with_vip("vip", mode, device, Close::First(Side::Client))?;
            for _ in 0..3 {
                ip(&w.lab.proxy, &format!("addr del {VIP}/32 dev {device}"))?;
                ip(&w.lab.proxy, &format!("addr add {VIP}/32 dev {device}"))?;
                group.wait_progress(MIB).with_context(|| w.state())?;
            }
            go_on(&mut w, group).with_context(|| format!("{mode:?} {device}"))?;
            w.finish()?;
        }
    }
    Ok(())
}

/// Makes a host beside the proxy's, on a link of its own to the router.
fn standby(w: &World) -> Result<Host> {
    let host = Host::new("standby", &w.lab.dir().join("standby"))?;
    let netns = host.netns().display();
    ip(
        &w.lab.router,
        &format!("link add standby type veth peer name eth0 netns {netns}"),
    )?;
    ip(&w.lab.router, "addr add 10.0.4.254/24 dev standby")?;
    ip(&w.lab.router, "link set standby up")?;
    ip(&host, "addr add 10.0.4.1/24 dev eth0")?;
    ip(&host, "link set eth0 up")?;
    ip(&host, "route add default via 10.0.4.254")?;
    Ok(host)
}

/// Moves the address from the proxy's host to another one, or back.
fn move_vip(w: &World, from: &Host, to: &Host, by: &str) -> Result<()> {
    ip(from, &format!("addr del {VIP}/32 dev eth0"))?;
    ip(to, &format!("addr add {VIP}/32 dev eth0"))?;
    ip(&w.lab.router, &format!("route replace {VIP} via {by}")).map(drop)
}

/// The address moves to another host, as between two load balancers. Sessions that bypass its
/// former host do not need it.
#[test]
fn an_address_that_moves_after_a_bypass() -> Result<()> {
    let (mut w, group) = with_vip("vipmoves", MODES[0], "eth0", Close::First(Side::Client))?;
    let standby = standby(&w)?;
    move_vip(&w, &w.lab.proxy, &standby, "10.0.4.1")?;
    group.wait_progress(MIB).with_context(|| w.state())?;
    move_vip(&w, &standby, &w.lab.proxy, "10.0.2.1")?;
    go_on(&mut w, group)?;
    drop(standby);
    w.finish()
}

/// Sessions that the former host relays end as they do without Dysco: the new host knows nothing of
/// them, and resets them.
#[test]
fn an_address_that_moves_from_a_host_that_relays() -> Result<()> {
    let (w, group) = with_vip("viplocal", MODES[1], "eth0", Close::Reset(Side::Client))?;
    let standby = standby(&w)?;
    move_vip(&w, &w.lab.proxy, &standby, "10.0.4.1")?;
    wait::until("resets of the new host", SETTLED, || {
        (counters::sessions_reset(&w.lab.client).ok()? == 3).then_some(())
    })
    .with_context(|| w.state())?;
    let clients = group.locals();
    let sessions = w.sessions(Role::Proxy)?;
    for client in clients.iter().map(ToString::to_string) {
        let listed = sessions.iter().find(|s| s["remote"] == client.as_str());
        let state = listed.map(|s| &s["state"]);
        ensure!(state.is_some_and(|s| s == "relayed"), "{sessions:#?}");
    }
    // The server hears of the end once the former host relays again.
    move_vip(&w, &standby, &w.lab.proxy, "10.0.2.1")?;
    for outcome in group.finish()? {
        outcome.intact()?;
    }
    drop(standby);
    w.finish()
}
