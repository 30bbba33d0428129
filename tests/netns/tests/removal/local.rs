//! HAProxy is removed from live sessions by its own host alone: neither the client's nor the
//! server's host runs `dyscod`. Both directions carry data all the time; every byte is checked, and
//! both streams' SHA-256.

mod ends;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Amount, Close, Group, Plan, Reading, Side, all_intact};
use dysco_netns::{Builder, Family, HostOptions, Lab, Program, Role, wait};
use serde_json::Value;

use crate::world::{DECLARED, World};

const LIMIT: Duration = Duration::from_secs(60);

/// Builds a world with a daemon only on the proxy's host.
fn alone(builder: Builder, family: Family) -> Result<World> {
    alone_with(builder, family, "")
}

fn alone_with(builder: Builder, family: Family, more: &str) -> Result<World> {
    let config = format!("{DECLARED}{more}[log]\nfilter = \"dysco_daemon::engine=debug\"\n");
    let mut w = World::with(builder, family, &[Role::Proxy], &config, |c| c)?;
    w.mode = "local";
    Ok(w)
}

/// Removes the proxy from all sessions, in this mode.
fn remove(w: &World, count: usize) -> Result<Value> {
    // The data that the proxy holds drains slowly if packets are lost.
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    ensure!(
        done["summary"]["removed"] == count,
        "{done:#}\n{}",
        w.state()
    );
    for removal in done["removals"].as_array().into_iter().flatten() {
        ensure!(removal["mode"] == "local", "{done:#}");
    }
    Ok(done)
}

/// Checks that no socket of the proxy's host belongs to the sessions any more, and that the daemon
/// lists them.
fn relayed(w: &World, group: &Group) -> Result<()> {
    let sockets = w.lab.proxy.output("ss", &["-tan"])?;
    let sessions = w.sessions(Role::Proxy)?;
    for end in group.locals().iter().map(ToString::to_string) {
        ensure!(!sockets.contains(&end), "{end}: {sockets}");
        let listed = sessions.iter().find(|s| s["remote"] == end.as_str());
        let listed = listed.with_context(|| format!("{end} is not listed"))?;
        ensure!(listed["mode"] == "local", "{listed:#}");
        ensure!(listed["state"] == "relayed", "{listed:#}");
        ensure!(listed["bytes_in"].as_u64() > Some(0), "{listed:#}");
    }
    Ok(())
}

/// Busy sessions lose the proxy, and continue without its process.
fn busy(builder: Builder, family: Family, count: usize) -> Result<()> {
    busy_in(alone(builder, family)?, count, 1 << 20)
}

fn busy_in(mut w: World, count: usize, progress: u64) -> Result<()> {
    let group = w.open(count, &Plan::default())?;
    group.run();
    group.wait_progress(progress)?;
    remove(&w, count)?;
    relayed(&w, &group)?;
    group.wait_progress(2 * progress)?;
    drop(w.haproxy.take());
    group.wait_progress(2 * progress)?;
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn one_busy_session_ipv4() -> Result<()> {
    busy(Lab::builder("local4"), Family::V4, 1)
}

#[test]
fn one_busy_session_ipv6() -> Result<()> {
    busy(Lab::builder("local6"), Family::V6, 1)
}

#[test]
fn twenty_busy_sessions() -> Result<()> {
    busy(Lab::builder("local20"), Family::V4, 20)
}

#[test]
fn without_offloads() -> Result<()> {
    let lab = |name| Lab::builder(name).hosts(|h| h.offload(false));
    busy(lab("localoff"), Family::V4, 4)?;
    busy(lab("localoff6"), Family::V6, 4)
}

#[test]
fn with_clsact() -> Result<()> {
    let more = "[data_plane]\nattach = \"clsact\"\n";
    let w = alone_with(Lab::builder("localcls"), Family::V4, more)?;
    busy_in(w, 4, 1 << 20)
}

/// Idle sessions are considered dead after a time without a packet, and not before.
#[test]
fn silent_ones_are_collected() -> Result<()> {
    let more = "[removal]\nrelay_idle_s = 10\n";
    let w = alone_with(Lab::builder("localidle"), Family::V4, more)?;
    let plan = Plan {
        rate: Some(500_000),
        ..Plan::default()
    };
    let (silent, busy) = (w.open(1, &plan)?, w.open(1, &plan)?);
    for group in [&silent, &busy] {
        group.run();
        group.wait_progress(100_000)?;
        w.wait_removable(&w.ends(group)?)?;
    }
    remove(&w, 2)?;
    // Both ends vanish, as far as the proxy's host can see.
    let end = silent.locals()[0].port();
    for rule in ["dport", "sport"] {
        w.lab.add_rule(&format!("tcp {rule} {end} drop"))?;
    }
    let port = |s: &Value| {
        s["remote"]
            .as_str()
            .is_some_and(|r| r.ends_with(&format!(":{end}")))
    };
    let limit = Duration::from_secs(200);
    wait::until("the silent one to go", limit, || {
        let all = w.sessions(Role::Proxy).ok()?;
        (!all.iter().any(port)).then_some(())
    })?;
    busy.wait_progress(100_000)?;
    relayed(&w, &busy)?;
    all_intact(&busy.finish()?)?;
    drop(silent);
    w.finish()
}

#[test]
fn with_one_percent_loss() -> Result<()> {
    let w = alone(Lab::builder("localloss").loss(1.0), Family::V4)?;
    busy_in(w, 4, 200_000)
}

#[test]
fn with_five_percent_loss() -> Result<()> {
    let w = alone(Lab::builder("localloss5").loss(5.0), Family::V4)?;
    busy_in(w, 4, 50_000)
}

#[test]
fn options_that_differ_are_bridged() -> Result<()> {
    let lab =
        |role, change: fn(HostOptions) -> HostOptions| Lab::builder("localopt").host(role, change);
    for role in [Role::Client, Role::Server] {
        busy(lab(role, |h| h.timestamps(false)), Family::V4, 2).context("timestamps")?;
        busy(lab(role, |h| h.window_scaling(false)), Family::V4, 2).context("scaling")?;
    }
    busy(lab(Role::Proxy, |h| h.advmss(900)), Family::V4, 1).context("a smaller MSS")
}

#[test]
fn what_cannot_be_bridged_is_refused() -> Result<()> {
    for role in [Role::Client, Role::Server] {
        let lab = Lab::builder("localsack").host(role, |h| h.sack(false));
        let w = alone(lab, Family::V4)?;
        let group = w.open(1, &Plan::default())?;
        group.run();
        group.wait_progress(1 << 20)?;
        // Data may arrive before the shim has reported the session.
        let done = wait::until("the session to be known", LIMIT, || {
            let done = w.remove_all();
            let none = |done: &Value| done["removals"][0].is_null();
            (!done.as_ref().is_ok_and(none)).then_some(done)
        })??;
        let reason = done["removals"][0]["reason"].to_string();
        ensure!(reason.contains("SACK"), "{done:#}");
        group.wait_progress(1 << 20)?;
        group.rest()?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}

#[test]
fn a_download_and_an_upload() -> Result<()> {
    for (up, down) in [
        (Amount::Bytes(0), Amount::UntilStopped),
        (Amount::UntilStopped, Amount::Bytes(0)),
    ] {
        let mut w = alone(Lab::builder("localone"), Family::V4)?;
        let close = match up {
            Amount::Bytes(_) => Close::First(Side::Server),
            Amount::UntilStopped => Close::First(Side::Client),
        };
        let plan = Plan {
            up,
            down,
            close,
            ..Plan::default()
        };
        let group = w.open(2, &plan)?;
        group.run();
        group.wait_more(4 << 20, LIMIT)?;
        remove(&w, 2)?;
        drop(w.haproxy.take());
        group.wait_more(8 << 20, LIMIT)?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}

#[test]
fn a_slow_reader_loses_its_proxy_too() -> Result<()> {
    let w = alone(Lab::builder("localslow"), Family::V4)?;
    let group = w.open(2, &Plan::default())?;
    group.set_reading(Side::Server, Reading::Slow(20 << 20));
    group.run();
    group.wait_progress(4 << 20)?;
    remove(&w, 2)?;
    group.wait_progress(4 << 20)?;
    group.set_reading(Side::Server, Reading::Fast);
    group.wait_progress(10 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The client does not read, and the proxy accepts all data of the server: it holds more data for
/// the client than the client has room for. The client has no room for the server's data after the
/// cutover either. The NAT does not attribute that data to a session, and its own stack would
/// answer with a reset.
#[test]
fn a_client_behind_a_nat_has_no_room() -> Result<()> {
    let mut w = alone(Lab::builder("localnat"), Family::V4)?;
    let nat = "table ip n {
        chain out {
            type nat hook postrouting priority 100
            ip saddr 10.0.1.1 tcp dport 8080 masquerade
        }
    }";
    w.lab.router.input("nft", &["-f", "-"], nat)?;
    // The client is idle then: its acknowledgements would tell the server about its window.
    let plan = Plan {
        up: Amount::Bytes(1000),
        close: Close::First(Side::Server),
        rate: Some(1_000_000),
        receive_buffer: Some(64 << 10),
        ..Plan::default()
    };
    let group = w.open(1, &plan)?;
    group.run();
    group.wait_goals(Side::Client, &group.goals(Side::Client, 200_000))?;
    group.set_reading(Side::Client, Reading::Paused);
    let held = |w: &World| -> Result<u64> {
        let sessions = w.sessions(Role::Proxy)?;
        let from = sessions.iter().find(|s| s["remote"] == "10.0.3.1:9000");
        let taken = from.and_then(|s| s["bytes_in"].as_u64()).unwrap_or(0);
        Ok(taken.saturating_sub(group.received(Side::Client)))
    };
    wait::until("the proxy to hold enough", LIMIT, || {
        (held(&w).ok()? > 500_000).then_some(())
    })?;
    // The server must have room to send after the cutover, however long the removal takes.
    group.pause();
    let words = ["remove-middlebox", "self", "--all", "--wait", "-o", "json"];
    let removal = Program::new(w.fleet.dyscoctl_path()).args(words);
    let removal = w.lab.proxy.spawn(removal.named("removal"))?;
    wait::until("the cutover", LIMIT, || {
        let sessions = w.sessions(Role::Proxy).ok()?;
        let cut = |s: &Value| s["state"] == "two-paths";
        sessions.iter().any(cut).then_some(())
    })
    .with_context(|| w.state())?;
    group.run();
    let beyond = |w: &World| {
        let counters = w.counters(Role::Proxy).ok()?;
        counters["dropped_beyond_window_in_two_paths"].as_u64()
    };
    wait::until("the server to send what has no room", LIMIT, || {
        beyond(&w).filter(|dropped| *dropped > 0)
    })
    .with_context(|| w.state())?;
    group.set_reading(Side::Client, Reading::Fast);
    wait::until("the session to lose its proxy", LIMIT, || {
        let removed = removal.log().contains("\"removed\": 1");
        removed.then_some(())
    })
    .with_context(|| format!("{}\n{}", removal.log(), w.state()))?;
    drop(w.haproxy.take());
    group.wait_goals(Side::Client, &group.goals(Side::Client, 1 << 20))?;
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    w.finish()
}
