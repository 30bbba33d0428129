//! Proxies without the shim are removed from live sessions, according to the kernel's counts and
//! the operator's word. Sessions without proof stay.

use crate::world::{DECLARED, SERVER_PORT, World};
use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Process, Role, echo, relays, wait};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PORT: u16 = 8090;

type Start = fn(&Host, SocketAddr, SocketAddr) -> Result<Process>;

fn plan() -> Plan {
    Plan {
        rate: Some(4_000_000),
        ..Plan::default()
    }
}

/// Returns plans of sessions that differ, as those of different people do.
fn different(count: usize) -> Vec<Plan> {
    let plan = |i: usize| Plan {
        rate: Some(3_000_000 + 170_000 * i as u64),
        write: 5_000 + 1_100 * i,
        ..Plan::default()
    };
    (0..count).map(plan).collect()
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
    let (w, mut relay) = world(name, start)?;
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
    leaves("socat", relays::socat, &different(3))
}

#[test]
fn nginx_stream_leaves() -> Result<()> {
    leaves("stream", relays::nginx_stream, &different(8))
}

#[test]
fn go_leaves() -> Result<()> {
    leaves("go", relays::go, &different(8))
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

/// Nothing changes, and the reason describes the observations.
#[test]
fn what_is_no_relay_is_refused_with_what_was_seen() -> Result<()> {
    let w = World::new(Lab::builder("norelay"), Family::V4)?;
    let nobody = w.fleet.try_dyscoctl(
        &w.lab.proxy,
        &["remove-middlebox", "self", "--pid", "1999999999", "--all"],
    )?;
    ensure!(nobody.code == Some(5), "{nobody:?}");
    ensure!(nobody.stderr.contains("no process"), "{nobody:?}");
    // This process has no session.
    let shell = w
        .lab
        .proxy
        .spawn(dysco_netns::Program::new("sleep").arg("1000"))?;
    let pid = shell.id().to_string();
    let none = w.remove(&["--pid", &pid, "--all"])?;
    ensure!(none["accepted"] == 0, "{none:#}");

    // The sessions are idle: moving data is needed to see which sessions belong together.
    let to = Role::Server.at(Family::V4, SERVER_PORT);
    let relay = relays::nginx_stream(&w.lab.proxy, Role::Proxy.at(Family::V4, PORT), to)?;
    let group = w.open_at(PORT, 2, &plan())?;
    let done = w.remove(&["--listen", ":8090", "--all"])?;
    ensure!(done["summary"]["refused"] == 2, "{done:#}");
    for why in reasons(&done) {
        ensure!(why.contains("no bytes moved"), "{why}");
    }
    // A selection by this name does not apply to another process' sessions.
    let ends = group.locals();
    let name = format!("10.0.2.1:8090>{}", ends[0]);
    let done = w.remove(&["--pid", &pid, "--session", &name])?;
    ensure!(done["summary"]["refused"] == 1, "{done:#}");
    ensure!(
        reasons(&done)[0].contains("has not accepted it"),
        "{done:#}"
    );
    group.run();
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    drop((relay, shell));
    w.finish()
}

/// The program's sessions look like pairs and are none: they are never joined, whatever the
/// operator says of the listener, and continue.
fn is_never_joined(kind: &str, seen: &str) -> Result<()> {
    asked_of(kind, |done| {
        ensure!(done["summary"]["removed"] == 0, "{done:#}");
        ensure!(done["summary"]["refused"] == 2, "{done:#}");
        let told = |why: &String| !why.is_empty() && why.contains(seen);
        ensure!(reasons(done).iter().all(told), "{done:#}");
        Ok(())
    })
}

/// Requests the removal of two busy sessions of such a process, whose listener is declared
/// transparent, and judges the result. The sessions continue in any case.
fn asked_of(kind: &str, judge: impl FnOnce(&Value) -> Result<()>) -> Result<()> {
    let mut w = World::with(
        Lab::builder(kind),
        Family::V4,
        &[Role::Proxy],
        DECLARED,
        |c| c,
    )?;
    w.mode = "local";
    let (listen, to) = (
        Role::Proxy.at(Family::V4, PORT),
        Role::Server.at(Family::V4, 9001),
    );
    echo::serve(&w.lab.server, to)?;
    let odd = relays::odd(&w.lab.proxy, kind, listen, to)?;
    let stop = Arc::new(AtomicBool::new(false));
    let clients: Result<Vec<_>> = (0..2)
        .map(|client| {
            let mut stream = echo::connect(&w.lab.client, 0, listen)?;
            // After its first answer the program has done everything to its sockets that its kind
            // does.
            echo::talk(&mut stream, client, 1)?;
            let stop = stop.clone();
            Ok(std::thread::spawn(move || {
                let mut said = client;
                while !stop.load(Ordering::Relaxed) {
                    echo::talk(&mut stream, said, 10)?;
                    said = said.wrapping_add(17);
                }
                echo::talk(&mut stream, said, 10)
            }))
        })
        .collect();
    let done = w.remove(&["--listen", ":8090", "--all", "--timeout", "20s"])?;
    stop.store(true, Ordering::Relaxed);
    for client in clients? {
        let ended = client.join().map_err(|_| anyhow!("a client panicked"))?;
        ended.with_context(|| format!("after {done:#}\n{}", w.state()))?;
    }
    judge(&done).with_context(|| w.state())?;
    drop(odd);
    w.finish()
}

#[test]
fn a_pool_is_never_joined() -> Result<()> {
    is_never_joined("pool", "")
}

#[test]
fn a_mirror_is_never_joined() -> Result<()> {
    is_never_joined("mirror", "")
}

#[test]
fn a_cache_is_never_joined() -> Result<()> {
    is_never_joined("cache", "")
}

/// The way in which the others are made is not the reason for their refusal.
#[test]
fn a_relay_of_the_same_make_leaves() -> Result<()> {
    asked_of("alone", |done| {
        ensure!(done["summary"]["removed"] == 2, "{done:#}");
        Ok(())
    })
}

/// Another process has the accepted socket as well, and would continue with it.
#[test]
fn a_relay_that_shares_its_sockets_is_refused() -> Result<()> {
    is_never_joined("shared", "is shared by the processes")
}

/// The owners of descriptors change all the time.
#[test]
fn a_relay_whose_sockets_change_hands_is_refused() -> Result<()> {
    is_never_joined("hands", "while")
}

/// A user other than root sees no other user's processes, and changes none.
#[test]
fn another_users_process_is_refused() -> Result<()> {
    let lab = Lab::builder("outuser");
    let api = "[api]\ngroup = \"nogroup\"\n";
    let w = World::with(lab, Family::V4, &[Role::Proxy], api, |c| c)?;
    let group = w.open(1, &plan())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let pid = w.haproxy.as_ref().context("it runs")?.id().to_string();
    // The program must be executable by every user.
    let program = dysco_netns::fleet::built("dyscoctl")?;
    let program = program.to_string_lossy();
    w.lab
        .proxy
        .output("install", &["-m", "755", &program, "/run/dyscoctl"])?;
    let nobody = |words: &[&str]| {
        let user = [
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/run/dyscoctl",
        ];
        w.lab.proxy.ran("setpriv", &[&user[..], words].concat())
    };
    let status = nobody(&["status"])?;
    ensure!(status.code == Some(0), "{status:?}");
    let words = ["remove-middlebox", "self", "--pid", &pid, "--all"];
    for (more, why) in [
        ("--dry-run", "is not the caller's own"),
        ("--wait", "only root may"),
    ] {
        let refused = nobody(&[&words[..], &[more]].concat())?;
        ensure!(
            refused.code == Some(4) && refused.stderr.contains(why),
            "{refused:?}"
        );
    }
    let looked = nobody(&["drain", &pid, "--dry-run"])?;
    ensure!(
        looked.code == Some(4) && looked.stderr.contains("is not the caller's own"),
        "{looked:?}"
    );
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The process ends while it is watched: nothing is removed, and the report says so.
#[test]
fn a_relay_that_ends_meanwhile_is_refused() -> Result<()> {
    let (w, mut relay) = world("outgone", relays::go)?;
    let group = w.open_at(PORT, 1, &plan())?;
    let pid = relay.id().to_string();
    let program = dysco_netns::fleet::built("dyscoctl")?;
    let words = [
        "remove-middlebox",
        "self",
        "--pid",
        &pid,
        "--all",
        "--wait",
        "-o",
        "json",
    ];
    // Idle sessions are watched for the maximum time.
    let asked = w.lab.proxy.spawn(
        dysco_netns::Program::new(program)
            .args(words)
            .named("asked"),
    )?;
    relay.kill()?;
    let mut asked = asked;
    wait::until("the answer", Duration::from_secs(60), || {
        (!asked.runs()).then_some(())
    })?;
    let said = asked.log();
    ensure!(!said.contains("\"removed\": 1"), "{said}");
    // The process ended before the first look, or while it was watched.
    ensure!(
        said.contains("its process ended") || said.contains("no process"),
        "{said}"
    );
    let words = ["remove-middlebox", "self", "--pid", &pid, "--all"];
    let gone = w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
    ensure!(
        gone.code == Some(5) && gone.stderr.contains("no process"),
        "{gone:?}"
    );
    drop((group, relay, asked));
    w.finish()
}
