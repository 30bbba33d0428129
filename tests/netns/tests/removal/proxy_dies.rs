//! HAProxy dies, or closes its sessions, while its removal drains: its data is lost, so that both
//! ends receive a reset, and neither receives a clean end of an incomplete stream.

use std::time::Duration;

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy;
use dysco_netns::stream::{Group, Outcome, Plan, Reading, Side};
use dysco_netns::{Family, Lab, Role, wait};
use nix::sys::signal::Signal;

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);

fn world(name: &str, family: Family, roles: &[Role], mode: &'static str) -> Result<World> {
    let config = format!("{DECLARED}[log]\nfilter = \"dysco_daemon::engine=debug\"\n");
    let mut w = World::with(Lab::builder(name), family, roles, &config, |c| c)?;
    w.mode = mode;
    Ok(w)
}

/// Returns sessions whose ends have cut over while HAProxy holds data that neither end reads.
fn draining(w: &World) -> Result<Group> {
    let group = w.open(2, &Plan::default())?;
    group.run();
    group.wait_progress(MIB)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    read(&group, Reading::Paused);
    // Only window probes pass the router once the windows are closed.
    let (mut last, mut same) = (0, 0);
    wait::until("the windows to shut", LIMIT, || {
        let now = w.lab.proxy_packets().ok()?;
        same = if now == last { same + 1 } else { 0 };
        last = now;
        (same == 10).then_some(())
    })?;
    for own in &ends {
        w.begin(own)?;
    }
    let command = if w.mode == "local" {
        "Cut {"
    } else {
        "SetCutIn {"
    };
    let daemons = w.daemons.iter();
    for (role, daemon) in daemons.filter(|(role, _)| w.mode == "local" || *role != Role::Proxy) {
        let cut = || (daemon.process.log().matches(command).count() >= 2).then_some(());
        wait::until("the cut", LIMIT, cut).with_context(|| format!("{role:?}"))?;
    }
    Ok(group)
}

fn read(group: &Group, how: Reading) {
    group.set_reading(Side::Client, how);
    group.set_reading(Side::Server, how);
}

/// Checks that each end received an error that ended the session, and no wrong byte. After the
/// kernel has reported that error to a program, it reports the end of the stream.
fn both_reset(outcomes: &[Outcome]) -> Result<()> {
    for o in outcomes {
        for end in [&o.client, &o.server] {
            ensure!(end.wrong_at.is_none(), "{o:#?}");
            let error = end.error.as_deref().unwrap_or_default().to_lowercase();
            let reset = error.contains("reset") || error.contains("broken pipe");
            ensure!(reset, "{o:#?}");
        }
    }
    Ok(())
}

/// Checks that all hosts report that the session was lost, the reason, and that nothing was
/// removed.
fn told(w: &World) -> Result<()> {
    let daemons = w.daemons.iter();
    wait::until("the changes to end", LIMIT, || {
        daemons
            .clone()
            .all(|(role, _)| w.counters(*role).is_ok_and(|c| c["changes_under_way"] == 0))
            .then_some(())
    })
    .with_context(|| w.state())?;
    for (role, _) in &w.daemons {
        let counters = w.counters(*role)?;
        ensure!(counters["changes_lost"] == 2, "{role:?}: {counters:#}");
        ensure!(counters["changes_done"] == 0, "{role:?}: {counters:#}");
        ensure!(
            counters["changes_not_done_middlebox_died"] == 2,
            "{role:?}: {counters:#}"
        );
    }
    Ok(())
}

fn lost(
    name: &str,
    family: Family,
    (roles, mode): (&[Role], &'static str),
    dies: impl FnOnce(&mut World) -> Result<()>,
) -> Result<()> {
    let mut w = world(name, family, roles, mode)?;
    let group = draining(&w)?;
    dies(&mut w)?;
    read(&group, Reading::Fast);
    let outcomes = group.finish().with_context(|| w.state())?;
    both_reset(&outcomes).with_context(|| w.state())?;
    told(&w)?;
    w.finish()
}

const BYPASS: (&[Role], &str) = (&Role::ALL, "bypass");
const LOCAL: (&[Role], &str) = (&[Role::Proxy], "local");

fn kill(w: &mut World) -> Result<()> {
    let mut haproxy = w.haproxy.take().context("no HAProxy")?;
    haproxy.kill().map(drop)
}

fn terminate(w: &mut World) -> Result<()> {
    let mut haproxy = w.haproxy.take().context("no HAProxy")?;
    haproxy.signal(Signal::SIGTERM)?;
    wait::until("HAProxy to end", LIMIT, || (!haproxy.runs()).then_some(()))
}

fn shut(w: &mut World) -> Result<()> {
    let words = format!("UNIX-CONNECT:{}", haproxy::Config::SOCKET);
    let command = "shutdown sessions server relay/one\n";
    w.lab.proxy.input("socat", &["-", &words], command)?;
    Ok(())
}

#[test]
fn killed() -> Result<()> {
    lost("dies", Family::V4, BYPASS, kill)
}

#[test]
fn killed_where_its_host_is_alone() -> Result<()> {
    lost("dieslocal", Family::V6, LOCAL, kill)
}

#[test]
fn terminated() -> Result<()> {
    lost("diesterm", Family::V6, BYPASS, terminate)
}

#[test]
fn terminated_where_its_host_is_alone() -> Result<()> {
    lost("diestermlo", Family::V4, LOCAL, terminate)
}

#[test]
fn told_to_shut_its_sessions() -> Result<()> {
    lost("diesshut", Family::V4, LOCAL, shut)
}

#[test]
fn told_to_shut_its_sessions_between_the_anchors() -> Result<()> {
    lost("diesshutby", Family::V4, BYPASS, shut)
}
