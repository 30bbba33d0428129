//! Proxies without the shim, or whose shim reports nothing, are removed from live sessions, according to the kernel's counts and
//! the operator's word. Sessions without proof stay.

mod no_relay;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Process, Role, relays, wait};
use serde_json::Value;

use crate::world::{SERVER_PORT, World};

const PORT: u16 = 8090;

type Start = fn(&Host, SocketAddr, SocketAddr) -> Result<Process>;

fn plan() -> Plan {
    Plan {
        rate: Some(4_000_000),
        ..Plan::default()
    }
}

fn world(name: &str, start: Start) -> Result<(World, Process)> {
    let w = World::new(Lab::builder(name), Family::V4)?;
    let to = Role::Server.at(Family::V4, SERVER_PORT);
    let relay = start(&w.lab.proxy, Role::Proxy.at(Family::V4, PORT), to)?;
    Ok((w, relay))
}

fn running(w: &World, plan: &Plan) -> Result<Group> {
    let group = w.open_at(PORT, 1, plan)?;
    group.run();
    group.wait_progress(1 << 20)?;
    Ok(group)
}

fn reasons(done: &Value) -> Vec<String> {
    let all = done["removals"].as_array().cloned().unwrap_or_default();
    all.iter().map(|r| r["reason"].to_string()).collect()
}

/// True if a session is not proven only at this moment: too little data was seen, sessions at full
/// speed moved equally, or an end that read slowly left no moment in which the relay held nothing.
fn unproven(why: &str) -> bool {
    let again = [
        "when more data flows",
        "when they differ",
        "when the session is less busy",
    ];
    again.iter().any(|when| why.contains(when))
}

/// Removes this number of sessions. Sessions that were not proven at this moment are requested
/// again, as their refusal advises.
fn removed(w: &World, count: usize, words: &[&str]) -> Result<()> {
    let is_dry = words.contains(&"--dry-run");
    let mut removed = 0;
    let done = wait::until("the sessions to be proven", Duration::from_secs(90), || {
        let done = match w.remove(words) {
            Ok(done) => done,
            Err(error) => return Some(Err(error)),
        };
        let word = if is_dry { "removable" } else { "removed" };
        let now = done["summary"][word].as_u64().unwrap_or_default() as usize;
        removed = if is_dry { now } else { removed + now };
        let again = reasons(&done).iter().any(|why| unproven(why));
        (!again || removed == count).then_some(Ok(done))
    })??;
    ensure!(removed == count, "{done:#}\n{}", w.state());
    Ok(())
}

/// Checks that each session is proven, at this moment or one of the next, and refused because the
/// operator's word is missing.
fn needs_the_word(w: &World, count: usize, pid: &str) -> Result<()> {
    wait::until("the word to be missed", Duration::from_secs(90), || {
        let done = match w.remove(&["--pid", pid, "--all"]) {
            Ok(done) => done,
            Err(error) => return Some(Err(error)),
        };
        let why = reasons(&done);
        if done["summary"]["refused"] != count || why.len() != count {
            return Some(Err(anyhow!("{done:#}\n{}", w.state())));
        }
        let missed = |why: &String| why.contains("declare it: --listen");
        if let Some(other) = why.iter().find(|why| !missed(why) && !unproven(why)) {
            return Some(Err(anyhow!("{other}")));
        }
        why.iter().all(missed).then_some(Ok(()))
    })?
}

/// Sessions are refused without the operator's word, and removed with it. The relay then ends its
/// part without a packet, and continues to serve.
fn leaves(name: &str, start: Start, plans: &[Plan]) -> Result<()> {
    let (w, relay) = world(name, start)?;
    leaves_as(w, relay, plans)
}

fn leaves_as(w: World, mut relay: Process, plans: &[Plan]) -> Result<()> {
    let groups: Result<Vec<_>> = plans.iter().map(|p| running(&w, p)).collect();
    let groups = groups?;
    let pid = relay.id().to_string();
    removed_by_the_word(&w, groups.len(), &pid)?;
    serves_on(&w, &mut relay, groups)?;
    drop(relay);
    w.finish()
}

fn removed_by_the_word(w: &World, count: usize, pid: &str) -> Result<()> {
    needs_the_word(w, count, pid)?;
    removed(w, count, &["--listen", ":8090", "--all", "--dry-run"])?;
    removed(
        w,
        count,
        &["--listen", ":8090", "--all", "--timeout", "60s"],
    )
}

/// Checks that the removed sessions bypass the relay, which closes its sockets and serves new ones.
fn serves_on(w: &World, relay: &mut Process, groups: Vec<Group>) -> Result<()> {
    let before = w.lab.proxy_packets()?;
    for group in &groups {
        group.wait_progress(1 << 20)?;
    }
    let seen = w.lab.proxy_packets()? - before;
    ensure!(seen < 50, "the proxy still sees {seen} packets");
    wait::until(
        "the relay to close its sockets",
        Duration::from_secs(20),
        || {
            let held = w
                .fleet
                .json(&w.lab.proxy, &["drain", ":8090", "--dry-run"])
                .ok()?;
            (held["left"] == 0).then_some(())
        },
    )?;
    ensure!(relay.runs(), "the relay has ended: {}", relay.log());
    let after = running(w, &plan())?;
    for group in groups.into_iter().chain([after]) {
        all_intact(&group.finish()?)?;
    }
    Ok(())
}

/// Sends at full speed, in bursts: a constant stream leaves the relay no moment in which it
/// certainly holds nothing, so that its removal may be refused forever.
fn in_bursts(group: &Group, is_over: &AtomicBool) -> Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        group.wait_progress(4 << 20)?;
        group.rest()?;
        group.run();
    }
    Ok(())
}

#[test]
fn socat_leaves() -> Result<()> {
    leaves("socat", relays::socat, &Plan::different(3))
}

#[test]
fn nginx_stream_leaves() -> Result<()> {
    leaves("stream", relays::nginx_stream, &Plan::different(8))
}

/// The shim reports nothing of a proxy that does not splice, and bars nothing.
#[test]
fn haproxy_that_copies_leaves_under_the_shim() -> Result<()> {
    let w = World::new(Lab::builder("shimcopy"), Family::V4)?;
    let copies = w.proxy("copies", PORT, |c| c.splice(false))?;
    leaves_as(w, copies, &Plan::different(3))
}

#[test]
fn nginx_stream_leaves_under_the_shim() -> Result<()> {
    let w = World::new(Lab::builder("shimngx"), Family::V4)?;
    let (listen, to) = (
        Role::Proxy.at(Family::V4, PORT),
        Role::Server.at(Family::V4, SERVER_PORT),
    );
    let nginx = relays::nginx_stream_by(&w.lab.proxy, listen, to, |p| w.fleet.under_shim(p))?;
    leaves_as(w, nginx, &Plan::different(3))
}

#[test]
fn go_leaves() -> Result<()> {
    leaves("go", relays::go, &Plan::different(8))
}

#[test]
fn go_leaves_between_bursts_at_full_speed() -> Result<()> {
    let (w, mut relay) = world("gofast", relays::go)?;
    let groups = [
        running(&w, &Plan::default())?,
        running(&w, &Plan::default())?,
    ];
    let pid = relay.id().to_string();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let bursts = groups
            .each_ref()
            .map(|group| scope.spawn(|| in_bursts(group, &is_over)));
        let removed = removed_by_the_word(&w, groups.len(), &pid);
        is_over.store(true, Ordering::Relaxed);
        for burst in bursts {
            burst
                .join()
                .map_err(|_| anyhow!("a sender of bursts panicked"))??;
        }
        removed
    })?;
    serves_on(&w, &mut relay, groups.into())?;
    drop(relay);
    w.finish()
}

/// The restarted daemon finds by itself what a shim would report to it: the sockets are closed
/// nevertheless.
#[test]
fn the_proxys_daemon_dies_before_it_closes() -> Result<()> {
    let (mut w, relay) = world("outdies", relays::go)?;
    let group = running(&w, &plan())?;
    let client = group.locals()[0].to_string();
    w.fault(Role::Proxy, "die:Close")?;
    // The daemon dies before it can answer.
    let words = [
        "remove-middlebox",
        "self",
        "--listen",
        ":8090",
        "--all",
        "--wait",
    ];
    w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
    let daemon = w.daemon(Role::Proxy)?;
    wait::until("death", Duration::from_secs(30), || {
        (!daemon.runs()).then_some(())
    })?;
    group.wait_progress(1 << 20)?;
    w.fault(Role::Proxy, "")?;
    w.restart(Role::Proxy)?;
    wait::until("the relay to hold nothing", Duration::from_secs(60), || {
        let held = w.fleet.json(&w.lab.proxy, &["drain", ":8090", "--dry-run"]);
        held.is_ok_and(|h| h["left"] == 0).then_some(())
    })?;
    let left = w.sessions(Role::Client)?;
    let ours = left.iter().find(|s| s["local"] == client.as_str());
    ensure!(ours.is_some_and(|s| s["state"] == "new-path"), "{left:#?}");
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    drop(relay);
    w.finish()
}
