//! The proxy's host and the server's host remove HAProxy from live sessions: requests are relayed,
//! and replies go straight to a client that runs no `dyscod`. Every byte is checked, and both
//! streams' SHA-256.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Builder, Family, Lab, Role, wait};
use serde_json::Value;

use crate::world::fates::Ends;
use crate::world::{DECLARED, World};

const LIMIT: Duration = Duration::from_secs(60);
/// Hosts that run a daemon.
const TWO: [Role; 2] = [Role::Proxy, Role::Server];

fn world(lab: Builder, family: Family, roles: &[Role]) -> Result<World> {
    let config = format!("{DECLARED}[log]\nfilter = \"dysco_daemon::engine=debug\"\n");
    let mut w = World::with(lab, family, roles, &config, |c| c)?;
    w.mode = "return";
    // The rule counts packets from the server's host to the proxy's host.
    w.lab
        .add_rule("iifname server oifname proxy meta l4proto tcp counter comment \"replies\"")?;
    Ok(w)
}

/// Number of packets of replies that have passed the proxy's host so far.
fn replies(w: &World) -> Result<u64> {
    let chain = ["list", "chain", "inet", "lab", "forward"];
    let text = w.lab.router.output("nft", &chain)?;
    let line = text.lines().find(|l| l.contains("replies"));
    let mut words = line.unwrap_or_default().split_whitespace();
    let found = words.find(|w| *w == "packets").and(words.next());
    found
        .and_then(|w| w.parse().ok())
        .with_context(|| format!("no count in {text}"))
}

fn open(w: &World, count: usize, plan: &Plan) -> Result<(Group, Vec<Ends>)> {
    let group = w.open(count, plan)?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    Ok((group, ends))
}

fn first(done: &Value, what: &str) -> String {
    let found = &done["removals"][0][what];
    found.as_str().map_or(found.to_string(), str::to_owned)
}

/// Checks that all sessions were removed in this mode.
fn all_by(w: &World, done: &Value, mode: &str, count: usize) -> Result<()> {
    let removed = done["summary"]["removed"] == count;
    ensure!(removed, "{done:#}\n{}", w.state());
    for removal in done["removals"].as_array().into_iter().flatten() {
        ensure!(removal["mode"] == mode, "{done:#}\n{}", w.state());
    }
    Ok(())
}

fn remove(w: &World, mode: &str, count: usize) -> Result<()> {
    let done = w.remove(&["--all", "--mode", mode, "--timeout", "60s"])?;
    all_by(w, &done, mode, count)
}

/// Checks that data flows in both directions, and that no reply passes the proxy's host.
fn replies_directly(w: &World, group: &Group, progress: u64) -> Result<()> {
    // Packets that were in flight may still pass.
    let before = replies(w)?;
    group.wait_progress(progress)?;
    let passed = replies(w)? - before;
    ensure!(
        passed < 20,
        "{passed} replies pass the proxy's host\n{}",
        w.state()
    );
    for role in TWO {
        let all = w.sessions(role)?;
        let listed = all.iter().filter(|s| s["mode"] == "return");
        ensure!(listed.count() >= group.locals().len(), "{all:#?}");
    }
    Ok(())
}

fn busy(lab: Builder, family: Family, count: usize, progress: u64) -> Result<()> {
    let mut w = world(lab, family, &TWO)?;
    let (group, _) = open(&w, count, &Plan::default())?;
    remove(&w, "return", count)?;
    drop(w.haproxy.take());
    replies_directly(&w, &group, progress)?;
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn busy_sessions_ipv4() -> Result<()> {
    busy(Lab::builder("return4"), Family::V4, 8, 4 << 20)
}

#[test]
fn busy_sessions_ipv6() -> Result<()> {
    busy(Lab::builder("return6"), Family::V6, 4, 4 << 20)
}

#[test]
fn without_offloads() -> Result<()> {
    let lab = Lab::builder("returnoff").hosts(|h| h.offload(false));
    busy(lab, Family::V4, 2, 1 << 20)
}

#[test]
fn with_one_percent_loss() -> Result<()> {
    busy(Lab::builder("returnloss").loss(1.0), Family::V4, 4, 200_000)
}

#[test]
fn without_timestamps() -> Result<()> {
    let lab = Lab::builder("returnts").host(Role::Client, |h| h.timestamps(false));
    busy(lab, Family::V4, 2, 1 << 20)
}

/// A router with a reverse-path filter drops packets that the server's host sends under the proxy's
/// address.
#[test]
fn a_reverse_path_filter_refuses_it() -> Result<()> {
    let w = world(Lab::builder("returnrpf"), Family::V4, &TWO)?;
    for interface in ["all", "server"] {
        let key = format!("net.ipv4.conf.{interface}.rp_filter");
        w.lab.router.sysctl(&key, "1")?;
    }
    let (group, ends) = open(&w, 2, &Plan::paced(1_000_000, Close::Together))?;
    let name = ends[0].name();
    let refused = w.remove(&["--session", &name])?;
    ensure!(refused["summary"]["refused"] == 1, "{refused:#}");
    let reason = first(&refused, "reason");
    ensure!(reason.contains("reverse-path filter"), "{refused:#}");
    group.wait_progress(100_000)?;
    // The session still has its proxy, and loses it in another mode.
    w.wait_removable(&ends)?;
    let done = w.remove(&["--session", &name, "--mode", "auto"])?;
    all_by(&w, &done, "local", 1)?;
    let why = first(&done, "why_mode");
    ensure!(why.contains("no dyscod at 10.0.1.1"), "{done:#}");
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Without SACK a client cannot show that it received data twice.
#[test]
fn a_client_that_cannot_show_it_is_refused() -> Result<()> {
    let lab = Lab::builder("returnsack").hosts(|h| h.sack(false));
    let w = world(lab, Family::V4, &TWO)?;
    let (group, _) = open(&w, 1, &Plan::paced(1_000_000, Close::Together))?;
    let refused = w.remove(&["--all"])?;
    ensure!(first(&refused, "reason").contains("SACK"), "{refused:#}");
    let done = w.remove(&["--all", "--mode", "auto"])?;
    all_by(&w, &done, "local", 1)?;
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Nothing shows in advance how a firewall on the path would treat the replies.
#[test]
fn auto_leaves_it_to_who_asks_for_it_by_name() -> Result<()> {
    let w = world(Lab::builder("returnauto"), Family::V4, &TWO)?;
    let (group, ends) = open(&w, 1, &Plan::paced(1_000_000, Close::Together))?;
    let done = w.remove(&["--session", &ends[0].name(), "--mode", "auto"])?;
    all_by(&w, &done, "local", 1)?;
    let why = first(&done, "why_mode");
    ensure!(why.contains("no dyscod at 10.0.1.1"), "{done:#}");
    group.wait_progress(100_000)?;
    remove(&w, "return", 1)?;
    replies_directly(&w, &group, 100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A session changes through all modes, and its history lists them.
#[test]
fn local_then_return_then_bypass() -> Result<()> {
    let w = world(Lab::builder("returnall"), Family::V4, &Role::ALL)?;
    let (group, ends) = open(&w, 2, &Plan::default())?;
    remove(&w, "local", 2)?;
    group.wait_progress(1 << 20)?;
    remove(&w, "return", 2)?;
    replies_directly(&w, &group, 2 << 20)?;
    let all = w.sessions(Role::Proxy)?;
    let listed = all.iter().find(|s| s["remote"] == ends[0].client.as_str());
    let history = listed.context("not listed")?["history"].clone();
    let changes = history.as_array().into_iter().flatten();
    let changes = changes.map(|e| e["change"].clone());
    let ways: Vec<_> = changes
        .filter(|c| !c.is_null())
        .map(|c| (c["from"].clone(), c["to"].clone()))
        .collect();
    let want = [("middlebox", "local"), ("local", "return")];
    ensure!(ways == want.map(|(a, b)| (a.into(), b.into())), "{ways:?}");
    remove(&w, "bypass", 2)?;
    let before = w.lab.proxy_packets()?;
    group.wait_progress(2 << 20)?;
    let passed = w.lab.proxy_packets()? - before;
    ensure!(passed < 20, "{passed} packets still pass the proxy's host");
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The proxy's host sees the ends of sessions, although it does not see replies.
#[test]
fn they_end_in_each_way() -> Result<()> {
    let ways = [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Together,
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
    ];
    let mut w = world(Lab::builder("returnend"), Family::V4, &TWO)?;
    let groups =
        ways.map(|close| open(&w, 1, &Plan::paced(1_000_000, close)).map(|(group, _)| group));
    remove(&w, "return", ways.len())?;
    drop(w.haproxy.take());
    for (group, way) in groups.into_iter().zip(ways) {
        let group = group?;
        group.wait_progress(100_000)?;
        let intact = group.finish().and_then(|o| all_intact(&o));
        intact.with_context(|| format!("{way:?}\n{}", w.state()))?;
    }
    let daemon = w.daemon(Role::Proxy)?;
    wait::until("the ends to be told", LIMIT, || {
        let log = daemon.log();
        let told = log.matches("has ended").count() + log.matches("was reset").count();
        (told == ways.len()).then_some(())
    })
    .with_context(|| w.state())?;
    w.finish()
}

/// The daemon notices that a network no longer carries replies, and goes back to the path through
/// the proxy's host.
#[test]
fn replies_that_no_longer_arrive_take_the_old_way() -> Result<()> {
    let mut w = world(Lab::builder("returnlost"), Family::V4, &TWO)?;
    let (group, _) = open(&w, 2, &Plan::paced(1_000_000, Close::Together))?;
    remove(&w, "return", 2)?;
    replies_directly(&w, &group, 100_000)?;
    w.lab
        .add_rule("iifname server ip saddr 10.0.2.1 counter drop")?;
    let server = w.daemon(Role::Server)?;
    wait::until("the short way to be given up", LIMIT, || {
        (server.log().matches("nothing was acknowledged").count() == 2).then_some(())
    })?;
    group.wait_progress(200_000)?;
    wait::until("the proxy's host to see it", LIMIT, || {
        let all = w.sessions(Role::Proxy).ok()?;
        let local = all.iter().filter(|s| s["mode"] == "local");
        (local.count() == 4).then_some(())
    })
    .with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A stateful firewall before the proxy's host has not seen the replies, and drops their
/// acknowledgements: the sessions continue through that host.
#[test]
fn a_firewall_that_drops_what_it_calls_invalid() -> Result<()> {
    let w = world(Lab::builder("returnfw"), Family::V4, &TWO)?;
    for way in ["iifname", "oifname"] {
        let rule = format!("{way} proxy ct state invalid counter drop comment \"invalid\"");
        w.lab.add_rule(&rule)?;
    }
    let (group, _) = open(&w, 2, &Plan::paced(1_000_000, Close::Together))?;
    goes_back(w, group)
}

/// Replies are given up after the change to the short way, and the sessions continue.
fn goes_back(mut w: World, group: Group) -> Result<()> {
    remove(&w, "return", 2)?;
    let server = w.daemon(Role::Server)?;
    wait::until("the short way to be given up", LIMIT, || {
        (server.log().matches("nothing was acknowledged").count() == 2).then_some(())
    })?;
    group.wait_progress(400_000).with_context(|| w.state())?;
    // A message notifies the proxy's host.
    wait::until("all sessions to be local", LIMIT, || {
        let all = w.sessions(Role::Proxy).ok()?;
        let local = all.iter().filter(|s| s["mode"] == "local").count();
        (local == 4).then_some(())
    })
    .with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The firewall is between the client and the proxy alone: packets of the server do not pass it.
#[test]
fn a_firewall_of_the_clients_side_that_sees_no_replies() -> Result<()> {
    let w = world(Lab::builder("returncfw"), Family::V4, &TWO)?;
    let untracked = "table inet aside {\n chain early {\n \
                     type filter hook prerouting priority raw\n iifname server notrack\n \
                     iifname proxy ip daddr 10.0.3.1 notrack\n }\n}\n";
    w.lab.router.input("nft", &["-f", "-"], untracked)?;
    w.lab
        .add_rule("iifname client ct state invalid counter drop")?;
    let (group, _) = open(&w, 2, &Plan::paced(1_000_000, Close::Together))?;
    goes_back(w, group)
}

/// The client's host translates the address of a service to the proxy's, and the firewall before
/// the proxy drops what it calls invalid, as the nodes of a Kubernetes cluster do.
#[test]
fn a_client_that_reaches_the_proxy_by_another_address() -> Result<()> {
    let w = world(Lab::builder("returndnat"), Family::V4, &TWO)?;
    let translates = "table ip nat {\n chain output {\n type nat hook output priority -100\n \
                      ip daddr 10.96.0.10 tcp dport 80 dnat to 10.0.2.1:8080\n }\n \
                      chain input {\n type filter hook input priority filter\n \
                      ct state invalid drop\n }\n}\n";
    w.lab.client.input("nft", &["-f", "-"], translates)?;
    for way in ["iifname", "oifname"] {
        let rule = format!("{way} proxy ct state invalid counter drop");
        w.lab.add_rule(&rule)?;
    }
    let service = std::net::SocketAddr::from(([10, 96, 0, 10], 80));
    let group = Group::open(
        &w.lab.client,
        &w.server,
        service,
        2,
        &Plan::paced(1_000_000, Close::Together),
    )?;
    group.run();
    group.wait_progress(100_000)?;
    w.wait_removable(&w.ends(&group)?)?;
    goes_back(w, group)
}

/// Each message of the change is lost once.
#[test]
fn what_is_said_of_it_is_lost() -> Result<()> {
    let said = [
        (Role::Proxy, "Prove"),
        (Role::Server, "ProveAck"),
        (Role::Proxy, "Return"),
        (Role::Server, "ReturnAck"),
    ];
    let w = world(Lab::builder("returnwords"), Family::V6, &TWO)?;
    let (group, ends) = open(&w, said.len(), &Plan::paced(1_000_000, Close::Together))?;
    for ((role, message), own) in said.iter().zip(&ends) {
        w.fault(*role, &format!("drop:{message}"))?;
        let done = w.remove(&["--session", &own.name(), "--mode", "return"])?;
        all_by(&w, &done, "return", 1).with_context(|| format!("{message} was lost"))?;
        w.fault(*role, "")?;
        let lost = w.lost(*role, message)?;
        ensure!(lost == 1, "{message} of {role:?} was lost {lost} times");
    }
    replies_directly(&w, &group, 100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A daemon is killed before each of these steps, in removals of one session each, and restarted.
#[test]
fn a_daemon_dies() -> Result<()> {
    let before = [
        (Role::Proxy, "Watch"),
        (Role::Proxy, "Prove"),
        (Role::Proxy, "Join"),
        (Role::Proxy, "Cut"),
        (Role::Proxy, "Watch:2"),
        (Role::Proxy, "Return"),
        (Role::Proxy, "Returned"),
        (Role::Server, "Prove"),
        (Role::Server, "ProveAck"),
        (Role::Server, "Return"),
        (Role::Server, "ReturnAck"),
    ];
    let plan = Plan::paced(1_000_000, Close::First(Side::Client));
    let mut w = world(Lab::builder("returndies"), Family::V4, &TWO)?;
    let (group, ends) = open(&w, before.len(), &plan)?;
    for ((role, name), own) in before.iter().zip(&ends) {
        let context = || format!("{role:?} died before {name}");
        w.wait_removable(std::slice::from_ref(own))?;
        w.fault(*role, &format!("die:{name}"))?;
        w.begin(own)?;
        let daemon = w.daemon(*role)?;
        wait::until("death", LIMIT, || (!daemon.runs()).then_some(())).with_context(context)?;
        group.wait_progress(50_000).with_context(context)?;
        w.fault(*role, "")?;
        w.restart(*role)?;
        group.wait_progress(50_000).with_context(context)?;
        wait::until("the changes to end", LIMIT, || {
            let idle = |role| w.counters(role).is_ok_and(|c| c["changes_under_way"] == 0);
            TWO.into_iter().all(idle).then_some(())
        })
        .with_context(context)?;
    }
    // Wherever the changes stopped, the rest of them can be done.
    let done = w.remove(&["--all"])?;
    ensure!(done["summary"]["refused"] == 0, "{done:#}");
    replies_directly(&w, &group, 100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}
