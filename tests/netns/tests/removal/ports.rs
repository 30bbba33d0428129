//! A proxy's kernel chose the port by which each session reaches the server, and loses the port
//! when the proxy leaves: another session may not get it before the first has ended.

use std::time::Duration;

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Plan, Side, all_intact};
use dysco_netns::{Family, Lab, Role, wait};

/// Number of ports from which the proxy's kernel may choose.
const PORTS: usize = 40;
/// Number of sessions that leave the proxy, so that a random choice would mostly be wrong.
const LEAVING: usize = 36;
const MORE: usize = PORTS - LEAVING;
/// Time limit: a server's host reports at once that a session is over.
const AT_ONCE: Duration = Duration::from_secs(20);
/// Time limit: two MSL, and the same again for each query without an answer.
const FREED: Duration = Duration::from_secs(240);

fn narrow(w: &World) -> Result<()> {
    let last = 40_000 + PORTS - 1;
    let range = format!("40000 {last}");
    w.lab.proxy.sysctl("net.ipv4.ip_local_port_range", &range)
}

fn held(w: &World) -> Result<u64> {
    let counters = w.counters(Role::Proxy)?;
    Ok(counters["ports_held"].as_u64().unwrap_or(u64::MAX))
}

fn lost_syns(w: &World) -> Result<u64> {
    let mut lost = 0;
    for (role, _) in &w.daemons {
        let counters = w.counters(*role)?;
        lost += counters["dropped_syn_on_changed_session"]
            .as_u64()
            .unwrap_or(0);
    }
    Ok(lost)
}

/// Sessions leave the proxy, and others arrive through it. Each finds a port that no other session
/// has, even if the daemon was restarted in the meantime. Once the first sessions have ended, their
/// ports are used again. If `asks`, no host is told of an end before it has asked, which it has to
/// do twice.
fn leave(mut w: World, asks: bool) -> Result<()> {
    narrow(&w)?;
    let plan = Plan::default();
    let first = w.open(LEAVING, &plan)?;
    first.run();
    first.wait_progress(64 << 10)?;
    w.remove_all_of(LEAVING)?;
    ensure!(held(&w)? == LEAVING as u64, "{} are held", held(&w)?);
    w.restart(Role::Proxy)?;
    ensure!(held(&w)? == LEAVING as u64, "{} after a restart", held(&w)?);
    let adopted = w.fleet.json(&w.lab.proxy, &["adopt"])?;
    let left = adopted["left"].as_array();
    ensure!(left.is_some_and(Vec::is_empty), "left: {adopted}");
    // These sessions continue while others are waited for.
    let slow = Plan {
        rate: Some(100_000),
        ..Plan::default()
    };
    let more = w.open(MORE, &slow)?;
    more.run();
    more.wait_progress(64 << 10)?;
    if asks {
        w.fault(Role::Server, "lose:Lived")?;
        w.fault(Role::Proxy, "drop:Lives")?;
    }
    first.wait_progress(256 << 10)?;
    ensure!(lost_syns(&w)? == 0, "SYNs were lost: {}", w.state());
    all_intact(&first.finish()?)?;
    if asks {
        wait::until("the first question to be lost", FREED, || {
            (w.lost(Role::Proxy, "Lives").ok()? == 1).then_some(())
        })?;
        let lost = w.lost(Role::Server, "Lived")?;
        ensure!(lost >= LEAVING, "only {lost} ends were told");
        w.fault(Role::Server, "")?;
    }
    wait::until("the ports to be free", FREED, || {
        (held(&w).ok()? == 0).then_some(())
    })?;
    let again = w.open(LEAVING, &plan)?;
    again.run();
    again.wait_progress(64 << 10)?;
    for group in [more, again] {
        all_intact(&group.finish()?)?;
    }
    w.finish()
}

/// No host waits for two MSL or sends queries: the port is free when both ends have closed.
fn is_free_at_once(family: Family, mode: &'static str) -> Result<()> {
    let closes = [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Together,
    ];
    closes
        .into_iter()
        .try_for_each(|close| is_free_after(close, family, mode))
}

fn is_free_after(close: Close, family: Family, mode: &'static str) -> Result<()> {
    let mut w = World::new(Lab::builder("portsfree"), family)?;
    w.mode = mode;
    let plan = Plan {
        close,
        ..Plan::gentle()
    };
    let group = w.open(1, &plan)?;
    group.run();
    group.wait_progress(64 << 10)?;
    w.remove_all_of(1)?;
    ensure!(held(&w)? == 1, "{} are held", held(&w)?);
    all_intact(&group.finish()?)?;
    wait::until("the port to be free", AT_ONCE, || {
        (held(&w).ok()? == 0).then_some(())
    })
    .with_context(|| format!("{close:?}\n{}", w.state()))?;
    w.finish()
}

#[test]
fn of_a_bypass_at_its_end() -> Result<()> {
    is_free_at_once(Family::V4, "bypass")
}

#[test]
fn of_a_relay_at_its_end() -> Result<()> {
    is_free_at_once(Family::V6, "local")
}

/// Both ends close while their hosts still wait for the last message of the change. A port that is
/// held at the end of the change is then free at once: the session no longer uses it.
#[test]
fn of_a_bypass_that_ends_before_its_change() -> Result<()> {
    let w = World::new(Lab::builder("portsdrain"), Family::V4)?;
    let group = w.open(1, &Plan::gentle())?;
    group.run();
    group.wait_progress(64 << 10)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    w.fault(Role::Server, "lose:Drained")?;
    w.begin(&ends[0])?;
    let lost = || (w.lost(Role::Server, "Drained").ok()? > 0).then_some(());
    wait::until("the last word to be lost", AT_ONCE, lost).with_context(|| w.state())?;
    all_intact(&group.finish()?)?;
    wait::until("the server's host to see the end", AT_ONCE, || {
        let sessions = w.sessions(Role::Server).ok()?;
        sessions.iter().all(|s| s["ended"] == true).then_some(())
    })
    .with_context(|| w.state())?;
    ensure!(held(&w)? == 0, "{} are held", held(&w)?);
    w.fault(Role::Server, "")?;
    let counters = || w.counters(Role::Proxy);
    wait::until("the change to end", AT_ONCE, || {
        (counters().ok()?["changes_done"] == 1).then_some(())
    })
    .with_context(|| w.state())?;
    wait::until("the port to be free", AT_ONCE, || {
        (held(&w).ok()? == 0).then_some(())
    })
    .with_context(|| w.state())?;
    w.finish()
}

#[test]
fn of_a_bypass() -> Result<()> {
    leave(World::new(Lab::builder("portsby"), Family::V6)?, true)
}

#[test]
fn of_a_relay() -> Result<()> {
    let lab = Lab::builder("portslo");
    let mut w = World::with(lab, Family::V4, &[Role::Proxy], DECLARED, |c| c)?;
    w.mode = "local";
    leave(w, false)
}
