//! The modes of a proxy, and its behaviour after the removal.

use std::time::Duration;

use crate::world::World;
use crate::world::fates::Fate;
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::nginx::{Nginx, PONG};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role, http, wait};

const WEB_SOCKET: u16 = 8081;
const KEEP_ALIVE: u16 = 8082;
const BESIDE: u16 = 8083;
const NGINX: u16 = 9080;

fn gentle() -> Plan {
    Plan {
        rate: Some(4_000_000),
        ..Plan::default()
    }
}

#[test]
fn a_header_before_the_bytes_and_an_upgrade_are_removed_and_requests_are_not() -> Result<()> {
    let roles = [Role::Client, Role::Proxy, Role::Server];
    // With PROXY protocol v2 the server's daemon sees 28 bytes more than the client has sent.
    let w = World::with(Lab::builder("modes"), Family::V4, &roles, "", |c| {
        c.server_words("send-proxy-v2")
    })?;
    let nginx = Nginx::start(&w.lab.server, NGINX)?;
    let web = w.proxy("web", WEB_SOCKET, Config::in_http)?;
    let to = Role::Server.at(Family::V4, NGINX);
    let alive = w.proxy("alive", KEEP_ALIVE, |c| c.in_http().to(to))?;

    let header = w.open(2, &gentle())?;
    let upgrade = Plan {
        web_socket: true,
        ..gentle()
    };
    let upgraded = w.open_at(WEB_SOCKET, 2, &upgrade)?;
    let at = Role::Proxy.at(Family::V4, KEEP_ALIVE);
    let kept = [
        http::requests(&w.lab.client, at, "requests")?,
        http::blocks(&w.lab.client, at, "blocks")?,
    ];
    for group in [&header, &upgraded] {
        group.run();
        group.wait_progress(1 << 20)?;
    }
    goes_on(&kept)?;

    let done = w.remove_all()?;
    ensure!(done["summary"]["removed"] == 4, "{done:#}\n{}", w.state());
    for traffic in &kept {
        let local = traffic.gauge.local().context("no connection")?;
        let done = w.remove(&["--session", &format!("{at}>{local}")])?;
        ensure!(done["summary"]["refused"] == 1, "{done:#}");
        let why = done["removals"][0]["reason"].to_string();
        println!("{}: {why}", traffic.name());
        ensure!(why.contains("not proven byte-transparent"), "{why}");
    }

    goes_on(&kept)?;
    for group in [&header, &upgraded] {
        group.wait_progress(1 << 20)?;
    }
    all_intact(&header.finish()?)?;
    all_intact(&upgraded.finish()?)?;
    for traffic in kept {
        traffic.finish()?;
    }
    drop((web, alive, nginx));
    w.finish()
}

/// Checks that many more requests succeed, and a large part of a long answer arrives.
fn goes_on(kept: &[http::Traffic; 2]) -> Result<()> {
    let goals = [200 * PONG.len() as u64, 2 << 20];
    for (traffic, more) in kept.iter().zip(goals) {
        let goal = traffic.gauge.bytes() + more;
        wait::until(traffic.name(), Duration::from_secs(30), || {
            (traffic.gauge.bytes() >= goal || traffic.ended()).then_some(())
        })?;
    }
    Ok(())
}

#[test]
fn removed_sessions_outlive_a_reload_and_the_death_of_the_proxy() -> Result<()> {
    let mut w = World::new(Lab::builder("outlive"), Family::V4)?;
    let beside = w.proxy("beside", BESIDE, |c| c)?;
    let untouched = w.open_at(BESIDE, 2, &gentle())?;
    let first = w.open(2, &gentle())?;
    for group in [&untouched, &first] {
        group.run();
        group.wait_progress(1 << 20)?;
    }
    w.remove_these(&w.ends(&first)?)?;

    // After a reload the new process takes over, and the old one ends with its last session, of
    // which it has none left.
    let mut old = w.haproxy.take().expect("there is one");
    let pid = old.id().to_string();
    let new = w.proxy("reloaded", crate::world::PROXY_PORT, |c| c.reloading(&pid))?;
    w.haproxy = Some(new);
    wait::until("the old proxy to end", Duration::from_secs(30), || {
        (!old.runs()).then_some(())
    })?;
    first.wait_progress(1 << 20)?;
    let second = w.open(2, &gentle())?;
    second.run();
    second.wait_progress(1 << 20)?;
    w.remove_these(&w.ends(&second)?)?;

    // Dropping the process kills it.
    drop(w.haproxy.take());
    for group in [&first, &second, &untouched] {
        group.wait_progress(1 << 20)?;
    }
    let fates = w.settle(&w.ends(&untouched)?)?;
    ensure!(fates.iter().all(|f| *f == Fate::Tracked), "{fates:?}");
    for group in [first, second, untouched] {
        all_intact(&group.finish()?)?;
    }
    drop(beside);
    w.finish()
}
