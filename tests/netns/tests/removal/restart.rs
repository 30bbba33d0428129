//! Daemons start and stop, tables and port ranges are exhausted: sessions notice nothing.

use std::fs;
use std::time::Duration;

use crate::world::fates::Fate;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{Fleet, built};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use serde_json::Value;

fn gentle() -> Plan {
    Plan {
        rate: Some(1_000_000),
        ..Plan::default()
    }
}

fn reasons(done: &Value) -> Vec<String> {
    let all = done["removals"].as_array().cloned().unwrap_or_default();
    let of = |r: &Value| (!r["reason"].is_null()).then(|| r["reason"].to_string());
    all.iter().filter_map(of).collect()
}

#[test]
fn sessions_outlive_their_daemons() -> Result<()> {
    let mut w = World::new(Lab::builder("restart"), Family::V4)?;
    let group = w.open(3, &gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.remove_these(&ends[..2])?;
    for kill in [false, true] {
        for role in Role::ALL {
            match kill {
                true => drop(w.daemon(role)?.kill()?),
                false => w.daemon(role)?.stop()?,
            }
        }
        group.wait_progress(200_000)?;
        for role in Role::ALL {
            w.restart(role)?;
        }
        let fates = w.settle(&ends)?;
        let expected = [Fate::Removed, Fate::Removed, Fate::Tracked];
        ensure!(fates == expected, "{fates:?}");
        group.wait_progress(100_000)?;
    }
    // The next removals are of a session that began before, and of one that begins now.
    let later = w.open(1, &gentle())?;
    later.run();
    later.wait_progress(100_000)?;
    let mut all = ends[2..].to_vec();
    all.extend(w.ends(&later)?);
    w.wait_removable(&all)?;
    w.remove_these(&all)?;
    for group in [group, later] {
        group.wait_progress(200_000)?;
        all_intact(&group.finish()?)?;
    }
    w.finish()
}

/// A chrooted proxy reaches neither the path of the daemon's socket nor its own logs.
#[test]
fn a_chrooted_proxy_is_heard_by_the_next_daemon() -> Result<()> {
    let mut w = World::with(
        Lab::builder("chroot"),
        Family::V4,
        &[Role::Proxy],
        DECLARED,
        |c| c.chroot("/var/lib/haproxy"),
    )?;
    w.mode = "local";
    w.restart(Role::Proxy)?;
    let group = w.open(2, &gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.remove_these(&ends)?;
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_stranger_gets_nothing() -> Result<()> {
    let mut w = World::new(Lab::builder("stranger"), Family::V4)?;
    let group = w.open(2, &gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.daemon(Role::Client)?.stop()?;
    w.daemons.retain(|(role, _)| *role != Role::Client);
    fs::remove_dir_all(w.lab.client.dir().join("pki")).context("no keys")?;
    let other = Fleet::of_another_authority(&w.lab)?;
    let stranger = other.start(&w.lab, Role::Client, "")?;
    w.daemons.push((Role::Client, stranger));

    let done = w.remove_all()?;
    ensure!(done["summary"]["refused"] == 2, "{done:#}");
    let why = reasons(&done).join("\n");
    ensure!(why.contains("no dyscod answers at 10.0.1.1"), "{why}");
    let done = w.remove_from(Role::Client, "10.0.2.1", &["--all"])?;
    ensure!(done["summary"]["refused"] == 2, "{done:#}");
    let why = reasons(&done).join("\n");
    ensure!(why.contains("10.0.2.1 has not answered"), "{why}");
    let failed = w.counters(Role::Proxy)?["control_handshakes_failed"].clone();
    ensure!(failed.as_u64() > Some(0), "{failed}");
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Tracked), "{fates:?}");
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn full_tables_and_spent_ports_are_reported_and_harm_nobody() -> Result<()> {
    let config = format!(
        "{}[data_plane]\nmax_sessions = 16\n[removal]\nports = \"61000-61001\"\n",
        crate::world::DECLARED
    );
    let w = World::with(Lab::builder("full"), Family::V4, &Role::ALL, &config, |c| c)?;
    // Two of the four sessions find a port.
    let group = w.open(4, &gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    w.wait_removable(&w.ends(&group)?)?;
    let done = w.remove_all()?;
    let why = reasons(&done);
    ensure!(done["summary"]["removed"] == 2, "{done:#}\n{}", w.state());
    ensure!(why.len() == 2, "{done:#}");
    let told = |w: &String| w.contains("all source ports for new paths");
    ensure!(why.iter().all(told), "{why:?}");
    for role in [Role::Client, Role::Proxy] {
        let all = w.counters(role)?;
        ensure!(all["changes_done"] == 2, "{role:?}: {all:#}");
        ensure!(
            all["changes_not_done_ports_exhausted"] == 2,
            "{role:?}: {all:#}"
        );
    }

    // On the proxy's host each session takes two of the sixteen entries.
    let more = w.open(20, &gentle())?;
    more.run();
    more.wait_progress(50_000)?;
    let missed = w.counters(Role::Proxy)?["sessions_not_tracked_no_room"].clone();
    ensure!(missed.as_u64() > Some(0), "{missed}");
    let known = w.sessions(Role::Proxy)?;
    let listed = |l: &String| known.iter().any(|s| s["remote"] == l.as_str());
    let mut locals = more.locals().into_iter().map(|l| l.to_string());
    let missed = locals.rfind(|l| !listed(l));
    let name = format!("{}>{}", w.listen(), missed.context("all are tracked")?);
    let words = ["remove-middlebox", "self", "--wait", "--session", &name];
    let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
    ensure!(ran.code == Some(5), "{ran:?}");
    ensure!(ran.stderr.contains("has no such session"), "{ran:?}");
    for group in [group, more] {
        group.wait_progress(100_000)?;
        all_intact(&group.finish()?)?;
    }
    w.finish()
}

/// The programs vanished with the interface; the new interface has them again.
#[test]
fn an_interface_is_made_anew() -> Result<()> {
    let w = World::new(Lab::builder("anew"), Family::V4)?;
    let (client, router) = (&w.lab.client, &w.lab.router);
    let wait_attached = |expected: bool| {
        wait::until("status to tell", Duration::from_secs(20), || {
            let status = w.fleet.json(client, &["status"]).ok()?;
            let is = status["interfaces"][0]["attach"] != "not attached";
            (is == expected).then_some(())
        })
        .with_context(|| format!("attached: {expected}"))
    };
    wait_attached(true)?;
    client.output("ip", &["link", "del", "eth0"])?;
    wait_attached(false)?;

    let link = format!(
        "link add client type veth peer name eth0 netns {}\n\
         addr add 10.0.1.254/24 dev client\nlink set client up\n",
        client.netns().display()
    );
    router.input("ip", &["-batch", "-"], &link)?;
    let end = "addr add 10.0.1.1/24 dev eth0\nlink set eth0 up\n\
               route add default via 10.0.1.254\n";
    client.input("ip", &["-batch", "-"], end)?;
    wait_attached(true)?;
    let group = w.open(1, &gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.remove_these(&ends)?;
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A second daemon would put its tracking rules in force, and then find the shim's socket in use.
#[test]
fn a_second_one_beside_the_first_changes_nothing() -> Result<()> {
    let w = World::new(Lab::builder("second"), Family::V4)?;
    let host = w.lab.host(Role::Proxy);
    let first = host.dir().join("dyscod.toml");
    let other = "\n[[track]]\ndestination = \"10.9.0.0/16\"\n";
    let text = fs::read_to_string(first)? + other;
    let file = host.dir().join("second.toml");
    fs::write(&file, text)?;
    let (dyscod, file) = (built("dyscod")?, file.to_string_lossy());
    let ran = host.ran(&dyscod.to_string_lossy(), &["--config", &file])?;
    ensure!(
        ran.code == Some(2) && ran.stderr.contains("another dyscod runs"),
        "{} {}",
        ran.stdout,
        ran.stderr
    );
    let group = w.open(1, &gentle())?;
    group.run();
    group.wait_progress(100_000)?;
    w.remove_these(&w.ends(&group)?)?;
    all_intact(&group.finish()?)?;
    w.finish()
}
