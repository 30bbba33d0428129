//! `dyscoctl drain`: a proxy leaves its sessions as they become removable, and a reload then loses
//! none.

use std::time::Duration;

use crate::world::World;
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::nginx::Nginx;
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Ran, Role, http, wait};
use serde_json::Value;

const KEEP_ALIVE: u16 = 8082;
const NGINX: u16 = 9080;
const ALL: [Role; 3] = [Role::Client, Role::Proxy, Role::Server];

/// Configuration with HAProxy's runtime socket, which shows HAProxy's modes.
const ASKED: &str = "[[listener]]\naddress = \":8080\"\ntransparent = true\n\
                     haproxy_socket = \"/run/haproxy.sock\"\n";

fn plan() -> Plan {
    Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    }
}

fn drain(w: &World, words: &[&str]) -> Result<Ran> {
    let mut all = vec!["drain"];
    all.extend(words);
    all.extend(["-o", "json"]);
    w.fleet.try_dyscoctl(&w.lab.proxy, &all)
}

/// Parses the lines that a drain printed. The last line is its end.
fn lines(ran: &Ran) -> Result<Vec<Value>> {
    let parse = |l: &str| serde_json::from_str(l).with_context(|| format!("{l:?}: {ran:?}"));
    ran.stdout.lines().map(parse).collect()
}

fn end(ran: &Ran) -> Result<Value> {
    let all = lines(ran)?;
    let last = all.last().with_context(|| format!("{ran:?}"))?.clone();
    ensure!(last["event"] == "end", "{ran:?}");
    Ok(last)
}

#[test]
fn a_drained_haproxy_is_reloaded_and_leaves_no_old_process() -> Result<()> {
    let mut w = World::with(Lab::builder("drain"), Family::V4, &ALL, ASKED, |c| c)?;
    // Without sessions there is nothing to wait for.
    let none = drain(&w, &["haproxy"])?;
    ensure!(none.code == Some(0), "{none:?}");
    let group = w.open(6, &plan())?;

    // The daemon asks HAProxy for its modes only from time to time.
    wait::until("HAProxy's mode", Duration::from_secs(30), || {
        let dry = end(&drain(&w, &["haproxy", "--dry-run"]).ok()?).ok()?;
        (dry["reasons"][0]["label"]["mode"] == "tcp").then_some(())
    })?;

    // Idle sessions are not removable yet: they stay, with the reason.
    let ran = drain(&w, &["haproxy", "--timeout", "1s"])?;
    ensure!(ran.code == Some(7), "{ran:?}");
    let left = end(&ran)?;
    ensure!(left["left"] == 6 && left["removed"] == 0, "{left:#}");
    ensure!(left["reasons"][0]["count"] == 6, "{left:#}");
    ensure!(
        left["reasons"][0]["label"]["frontend"] == "relay",
        "{left:#}"
    );
    ensure!(left["reasons"][0]["label"]["mode"] == "tcp", "{left:#}");
    ensure!(
        left["sessions"].as_array().map(Vec::len) == Some(6),
        "{left:#}"
    );

    // The drain waits until they are removable.
    group.run();
    let pid = w.haproxy.as_ref().context("it runs")?.id().to_string();
    let ran = drain(&w, &[&pid])?;
    ensure!(ran.code == Some(0), "{ran:?}\n{}", w.state());
    let done = end(&ran)?;
    ensure!(done["left"] == 0 && done["removed"] == 6, "{done:#}");

    let mut old = w.haproxy.take().context("it runs")?;
    let new = w.proxy("reloaded", crate::world::PROXY_PORT, |c| c.reloading(&pid))?;
    w.haproxy = Some(new);
    wait::until("the old proxy to end", Duration::from_secs(30), || {
        (!old.runs()).then_some(())
    })?;
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn what_cannot_leave_is_listed_and_a_dry_run_changes_nothing() -> Result<()> {
    let w = World::with(Lab::builder("drainleft"), Family::V4, &ALL, ASKED, |c| c)?;
    let nginx = Nginx::start(&w.lab.server, NGINX)?;
    let to = Role::Server.at(Family::V4, NGINX);
    let alive = w.proxy("alive", KEEP_ALIVE, |c: Config| c.in_http().to(to))?;
    let at = Role::Proxy.at(Family::V4, KEEP_ALIVE);
    let kept = http::requests(&w.lab.client, at, "requests")?;
    let group = w.open(2, &plan())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;

    // Two processes have the name, which is therefore ambiguous.
    let ran = drain(&w, &["haproxy"])?;
    ensure!(
        ran.code == Some(5) && ran.stderr.contains("2 processes"),
        "{ran:?}"
    );
    let ran = drain(&w, &["nothing-of-this-name"])?;
    ensure!(
        ran.code == Some(5) && ran.stderr.contains("no process"),
        "{ran:?}"
    );

    let ran = drain(&w, &[":8080", "--dry-run"])?;
    let dry = end(&ran)?;
    ensure!(ran.code == Some(0) && dry["removable"] == 2, "{ran:?}");
    let fates = w.settle(&ends)?;
    ensure!(
        fates
            .iter()
            .all(|f| *f == crate::world::fates::Fate::Tracked),
        "{fates:?}"
    );

    // Keep-alive HTTP stays, with the reason; the other sessions leave.
    let pid = alive.id().to_string();
    let ran = drain(&w, &[&pid, "--timeout", "1s"])?;
    let left = end(&ran)?;
    ensure!(ran.code == Some(7) && left["left"] == 1, "{ran:?}");
    let why = left["reasons"][0]["reason"].to_string();
    ensure!(
        why.contains("byte-transparent") || why.contains("changed"),
        "{why}"
    );
    let ran = drain(&w, &[":8080"])?;
    ensure!(ran.code == Some(0) && end(&ran)?["removed"] == 2, "{ran:?}");

    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    kept.finish()?;
    drop((alive, nginx));
    w.finish()
}

/// A relay without the shim is drained by the operator's word.
#[test]
fn a_relay_without_the_shim_is_drained() -> Result<()> {
    let w = World::new(Lab::builder("drainout"), Family::V4)?;
    let to = Role::Server.at(Family::V4, crate::world::SERVER_PORT);
    let at = Role::Proxy.at(Family::V4, 8090);
    let mut relay = dysco_netns::relays::nginx_stream(&w.lab.proxy, at, to)?;
    // The sessions start separately: sessions with equal traffic are harder to distinguish.
    let slow = Plan {
        rate: Some(900_000),
        write: 7_000,
        ..Plan::default()
    };
    let groups = [w.open_at(8090, 1, &plan())?, w.open_at(8090, 1, &slow)?];
    for group in &groups {
        group.run();
        group.wait_progress(1 << 20)?;
    }
    let ran = drain(&w, &["nginx", "--timeout", "3s"])?;
    ensure!(ran.code == Some(7), "without a word for it: {ran:?}");
    let ran = drain(&w, &["nginx", "--transparent"])?;
    ensure!(ran.code == Some(0), "{ran:?}\n{}", w.state());
    ensure!(end(&ran)?["removed"] == 2, "{ran:?}");
    for group in &groups {
        group.wait_progress(1 << 20)?;
    }
    // nginx ends with its last session, which means at once.
    relay.signal(nix::sys::signal::Signal::SIGQUIT)?;
    wait::until("nginx to end", Duration::from_secs(20), || {
        (!relay.runs()).then_some(())
    })?;
    for group in groups {
        all_intact(&group.finish()?)?;
    }
    w.finish()
}
