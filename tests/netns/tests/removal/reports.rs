//! The reports of removals to the operator are true: a session that its proxy keeps is reported
//! with the reason, and a session without progress on a new path is rolled back.

use std::time::Duration;

use crate::world::{PROXY_PORT, SERVER_PORT, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::Fleet;
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, Lab, Ran, Role, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

const FAMILY: Family = Family::V4;
const LIMIT: Duration = Duration::from_secs(60);

/// Checks that a command about a proxy in another place is never carried out, and that its report
/// names the place.
fn is_reported_elsewhere(ran: &Ran, what: &str) -> Result<()> {
    let reported = format!("{} {}", ran.stdout, ran.stderr);
    let words = ["haproxy", "another network namespace", "run dyscod there"];
    let all = words.iter().all(|word| reported.contains(word));
    ensure!(ran.code == Some(5) && all, "{what}: {ran:?}");
    Ok(())
}

/// The proxy's sockets are in a network namespace without a dyscod, as those of a container are.
#[test]
fn sessions_of_a_proxy_in_another_namespace_are_left() -> Result<()> {
    let lab = Lab::builder("elsewhere").build()?;
    let fleet = Fleet::new(&lab)?;
    // Both reach the socket through this file, as through a directory that a container shares.
    let socket = lab.dir().join("shim.sock");
    let shared = format!("[shim]\nsocket = \"{}\"\n", socket.display());
    let daemon = fleet.start(&lab, Role::Client, &shared)?;
    // The daemon sees the processes of all labs. No other one listens on this port.
    const PORT: u16 = 18_457;
    let listen = Role::Proxy.at(FAMILY, PORT);
    let to = Role::Server.at(FAMILY, SERVER_PORT);
    let server = Server::start(&lab.server, to)?;
    let haproxy = Config::tcp(listen, to).start(&lab.proxy, |program| {
        fleet.under_shim(program.env("DYSCO_SHIM_SOCKET", socket.clone()))
    })?;
    let group = Group::open(&lab.client, &server, listen, 2, &Plan::gentle())?;
    group.run();
    group.wait_progress(64 << 10)?;

    let ask = |words: &[&str]| fleet.try_dyscoctl(&lab.client, words);
    let all = ["remove-middlebox", "self", "--all"];
    for wait in ["--wait", "--dry-run"] {
        let ran = ask(&[&all[..], &[wait, "-o", "json"]].concat())?;
        is_reported_elsewhere(&ran, wait)?;
        let reported: Value = serde_json::from_str(&ran.stdout)?;
        ensure!(reported["left"][0]["sessions"] == 2, "{reported:#}");
    }
    is_reported_elsewhere(&ask(&all)?, "nobody waits")?;
    let listener = format!(":{PORT}");
    let named = ask(&[&all[..], &["--listen", &listener, "--wait"]].concat())?;
    is_reported_elsewhere(&named, "by the listener")?;
    is_reported_elsewhere(&ask(&["drain", &listener, "--dry-run"])?, "drain")?;
    let pid = haproxy.id().to_string();
    let by_pid = ask(&[&all[..], &["--pid", &pid, "--wait"]].concat())?;
    is_reported_elsewhere(&by_pid, "by the process")?;
    is_reported_elsewhere(&ask(&["drain", &pid, "--dry-run"])?, "drain of a process")?;
    all_intact(&group.finish()?)?;
    lab.finish((daemon, haproxy, server))
}

/// Nothing shows that the proxy relays, and dyscod is not on the interface of its sessions.
#[test]
fn sessions_of_a_proxy_on_another_interface_are_left() -> Result<()> {
    let lab = Lab::builder("beside").build()?;
    let fleet = Fleet::new(&lab)?;
    let unused = [
        "link", "add", "unused", "type", "veth", "peer", "name", "far",
    ];
    lab.proxy.output("ip", &unused)?;
    let file = fleet.prepare(&lab, Role::Proxy, "")?;
    let text = std::fs::read_to_string(&file)?;
    let other = text.replace("interfaces = [\"eth0\"]", "interfaces = [\"unused\"]");
    ensure!(other != text, "{text}");
    std::fs::write(&file, other)?;
    let daemon = fleet.restart(&lab, Role::Proxy, &file)?;
    let listen = Role::Proxy.at(FAMILY, PROXY_PORT);
    let to = Role::Server.at(FAMILY, SERVER_PORT);
    let server = Server::start(&lab.server, to)?;
    let haproxy = Config::tcp(listen, to).start(&lab.proxy, |program| program)?;
    let group = Group::open(&lab.client, &server, listen, 2, &Plan::gentle())?;
    group.run();
    group.wait_progress(64 << 10)?;

    for wait in ["--wait", "--dry-run"] {
        let words = ["remove-middlebox", "self", "--all", wait, "-o", "json"];
        let ran = fleet.try_dyscoctl(&lab.proxy, &words)?;
        let reported: Value = serde_json::from_str(&ran.stdout)?;
        let left = &reported["left"][0];
        let why = left["reason"].to_string();
        let all = left["sessions"] == 2 && why.contains("add eth0 to interfaces");
        ensure!(ran.code == Some(5) && all, "{wait}: {ran:?}");
    }
    all_intact(&group.finish()?)?;
    lab.finish((daemon, haproxy, server))
}

/// Rule that passes the packets that open a new path, and drops the data of the stacks there: the
/// path answers, and carries nothing. Without SACK an acknowledgement has 52 bytes.
const OPENS_ALONE: &str = "iifname { client, server } oifname { client, server } \
    meta l4proto tcp tcp window != 65535 meta length > 52 counter drop";

#[test]
fn a_path_that_opens_and_carries_nothing_is_taken_back() -> Result<()> {
    // No window of these ends is the widest that a packet can offer.
    let lab = Lab::builder("opensalone")
        .hosts(|host| host.sack(false))
        .host(Role::Client, |host| host.receive_buffer(1 << 20))
        .host(Role::Server, |host| host.receive_buffer(1 << 20));
    let w = World::new(lab, FAMILY)?;
    // The session is never idle: an end without data to send shows nothing.
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(64 << 10)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.lab.add_rule(OPENS_ALONE)?;
    let done = w.remove(&["--all"])?;
    let one = &done["removals"][0];
    ensure!(one["outcome"] == "rolled_back", "{done:#}\n{}", w.state());
    ensure!(one["reasons"][0] == one["reason"], "{one:#}");
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Rule that passes the packets of the proxy's kernel, and drops the packets that it relays for an
/// end: these have one more hop behind them. Without SACK an acknowledgement has 52 bytes.
const OWN_ALONE: &str = "
table inet own {
  chain forward {
    type filter hook forward priority 0
    iifname proxy meta l4proto tcp ip ttl < 63 meta length > 52 drop
  }
}
";

/// A relay cannot be taken back, and no success is reported.
#[test]
fn a_relay_that_an_end_does_not_acknowledge_is_unconfirmed() -> Result<()> {
    let mut w = World::new(
        Lab::builder("unconfirmed").hosts(|host| host.sack(false)),
        FAMILY,
    )?;
    w.mode = "local";
    let group = w.open(1, &Plan::default())?;
    group.run();
    group.wait_progress(64 << 10)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.lab.router.input("nft", &["-f", "-"], OWN_ALONE)?;
    let words = ["remove-middlebox", "self", "--all", "--mode", "local"];
    let more = ["--wait", "--timeout", "500ms", "-o", "json"];
    let ran = w
        .fleet
        .try_dyscoctl(&w.lab.proxy, &[words, more].concat())?;
    let done: Value = serde_json::from_str(&ran.stdout)?;
    let one = &done["removals"][0];
    let reported = one["reason"].to_string().contains("has not acknowledged");
    let outcome = one["outcome"] == "unconfirmed" && done["summary"]["unconfirmed"] == 1;
    ensure!(
        ran.code == Some(5) && outcome && reported,
        "{ran:?}\n{}",
        w.state()
    );
    // The session continues by itself once it can.
    w.lab
        .router
        .output("nft", &["delete", "table", "inet", "own"])?;
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A client that requests MPTCP from a proxy without it falls back to TCP.
#[test]
fn a_session_that_fell_back_from_mptcp_leaves() -> Result<()> {
    for mode in ["bypass", "local"] {
        let mut w = World::new(Lab::builder("fellback"), FAMILY)?;
        w.mode = mode;
        w.lab.add_rule(
            "tcp flags & (syn | ack) == syn tcp option mptcp exists counter comment \"asks\"",
        )?;
        let plan = Plan {
            multipath: true,
            ..Plan::gentle()
        };
        let group = w.open(1, &plan)?;
        group.run();
        group.wait_progress(64 << 10)?;
        let rules = ["list", "chain", "inet", "lab", "forward"];
        let rules = w.lab.router.output("nft", &rules)?;
        let asked = rules.lines().find(|line| line.contains("asks"));
        ensure!(
            asked.is_some_and(|line| line.contains("packets 1 ")),
            "{rules}"
        );
        w.remove_all_of(1)?;
        group.wait_progress(1 << 20)?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}

/// After a restart of dyscod a shim connects again when its process next uses a socket.
#[test]
fn a_shim_that_has_not_connected_again_is_named_as_the_reason() -> Result<()> {
    let mut w = World::new(Lab::builder("shimlate"), FAMILY)?;
    let group = w.open(2, &Plan::gentle())?;
    group.run();
    group.wait_progress(64 << 10)?;
    let haproxy = w.haproxy.as_ref().context("no haproxy")?;
    haproxy.signal(Signal::SIGSTOP)?;
    w.restart(Role::Proxy)?;
    let reported = w.remove(&["--all", "--dry-run"])?;
    let left = &reported["left"][0];
    let why = left["reason"]["why"].as_str().unwrap_or_default();
    ensure!(
        left["sessions"] == 2 && why.contains("runs under the shim, which has not reported"),
        "{reported:#}"
    );
    let haproxy = w.haproxy.as_ref().context("no haproxy")?;
    haproxy.signal(Signal::SIGCONT)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.remove_all_of(2)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Someone who remedies one problem at a time would otherwise meet one reason after the other.
#[test]
fn all_that_stands_in_the_way_is_reported_at_once() -> Result<()> {
    let lab =
        Lab::builder("allreasons").host(Role::Client, |host| host.sysctl("net.ipv4.tcp_sack", "0"));
    let w = World::with(lab, FAMILY, &[Role::Proxy], "", |haproxy| haproxy)?;
    let group = w.open(1, &Plan::gentle())?;
    group.run();
    group.wait_progress(64 << 10)?;
    let mut reported = Value::Null;
    wait::until("all reasons", LIMIT, || {
        reported = w.remove(&["--all", "--dry-run"]).ok()?;
        let reasons = reported["removals"][0]["reasons"].to_string();
        let all = ["SACK", "no dyscod at 10.0.1.1", "no dyscod at 10.0.3.1"];
        all.iter().all(|word| reasons.contains(word)).then_some(())
    })
    .with_context(|| format!("{reported:#}"))?;
    all_intact(&group.finish()?)?;
    w.finish()
}
