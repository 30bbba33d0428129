//! Programs whose sockets are no relay, or not theirs alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::stream::all_intact;
use dysco_netns::{Family, Lab, Role, echo, relays, wait};
use serde_json::Value;

use super::{PORT, plan, reasons, world};
use crate::world::{DECLARED, SERVER_PORT, World};

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

/// The program's sessions look like pairs and are none. They are never joined, even if the operator
/// vouches for the listener, and continue.
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

/// The process ends while it is watched: nothing is removed, and the report has the reason.
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
