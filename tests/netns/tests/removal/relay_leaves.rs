//! Sessions that the proxy's host relays leave that host too, once the hosts on both sides run
//! `dyscod`: under traffic, with every byte checked.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, Lab, Role, counters, wait};
use serde_json::Value;

use crate::world::World;
use crate::world::fates::Ends;

const LIMIT: Duration = Duration::from_secs(60);

/// Opens sessions that the proxy's host relays, although it need not.
fn relayed(
    lab: dysco_netns::Builder,
    family: Family,
    plan: &Plan,
    count: usize,
) -> Result<(World, Group, Vec<Ends>)> {
    let w = World::new(lab, family)?;
    let group = w.open(count, plan)?;
    group.run();
    group.wait_progress(100_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    let done = w.remove(&["--all", "--mode", "local"])?;
    ensure!(done["summary"]["removed"] == count, "{done:#}");
    group.wait_progress(100_000)?;
    Ok((w, group, ends))
}

/// Returns the session with these ends, as a host lists it.
fn listed(w: &World, role: Role, local: &str, remote: &str) -> Result<Value> {
    let all = w.sessions(role)?;
    let found = all
        .into_iter()
        .find(|s| s["local"] == local && s["remote"] == remote);
    found.with_context(|| format!("{local} > {remote} is not listed\n{}", w.state()))
}

/// Checks that packets go straight between the anchors, and none through the proxy's host.
fn bypassed(w: &World, group: &Group, ends: &[Ends], progress: u64) -> Result<()> {
    for e in ends {
        let session = listed(w, Role::Client, &e.client, &e.listen)?;
        ensure!(session["mode"] == "bypass", "{session:#}");
        ensure!(session["state"] == "new-path", "{session:#}");
    }
    let before = w.lab.proxy_packets()?;
    group.wait_progress(progress)?;
    let passed = w.lab.proxy_packets()? - before;
    ensure!(passed < 20, "{passed} packets still pass the proxy's host");
    Ok(())
}

fn busy(name: &str, family: Family, count: usize) -> Result<()> {
    let (mut w, group, ends) = relayed(Lab::builder(name), family, &Plan::gentle(), count)?;
    drop(w.haproxy.take());
    let done = w.remove(&["--all", "--mode", "bypass"])?;
    ensure!(
        done["summary"]["removed"] == count,
        "{done:#}\n{}",
        w.state()
    );
    for removal in done["removals"].as_array().into_iter().flatten() {
        ensure!(removal["mode"] == "bypass", "{done:#}");
    }
    bypassed(&w, &group, &ends, 4 << 20)?;
    for host in [&w.lab.client, &w.lab.server] {
        let resets = counters::resets(host)?;
        ensure!(resets == 0, "{resets} resets\n{}", w.state());
    }
    let sent = counters::tcp(&w.lab.proxy)?["Tcp.OutRsts"];
    ensure!(sent == 0, "{sent} resets from the proxy's host");
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn busy_sessions_ipv4() -> Result<()> {
    busy("later4", Family::V4, 8)
}

#[test]
fn busy_sessions_ipv6() -> Result<()> {
    busy("later6", Family::V6, 4)
}

#[test]
fn with_one_percent_loss() -> Result<()> {
    let lab = Lab::builder("laterloss").loss(1.0);
    let (w, group, ends) = relayed(lab, Family::V4, &Plan::default(), 4)?;
    let done = w.remove(&["--all", "--mode", "bypass", "--timeout", "120s"])?;
    ensure!(done["summary"]["removed"] == 4, "{done:#}\n{}", w.state());
    bypassed(&w, &group, &ends, 200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The history has the former and the present mode, the time of the change and its requester.
#[test]
fn its_history_is_kept_and_it_is_counted() -> Result<()> {
    let plan = Plan::paced(1_000_000, Close::Together);
    let (mut w, group, ends) = relayed(Lab::builder("laterpast"), Family::V4, &plan, 2)?;
    let status = |w: &World, role| w.fleet.json(w.lab.host(role), &["status"]);
    let counts = status(&w, Role::Proxy)?["sessions"].clone();
    ensure!(counts["local"] == 2 && counts["bypass"] == 0, "{counts:#}");
    let change = |session: &Value| {
        let all = session["history"].as_array().cloned().unwrap_or_default();
        let changes = all.into_iter().filter(|e| !e["change"].is_null());
        changes.map(|e| e["change"].clone()).collect::<Vec<_>>()
    };
    let e = &ends[0];
    let at_proxy = change(&listed(&w, Role::Proxy, &e.listen, &e.client)?);
    ensure!(at_proxy.len() == 1, "{at_proxy:#?}");
    ensure!(at_proxy[0]["from"] == "middlebox", "{at_proxy:#?}");
    ensure!(at_proxy[0]["to"] == "local", "{at_proxy:#?}");
    let by = at_proxy[0]["by"].as_str().unwrap_or_default();
    ensure!(by.starts_with("root on this host"), "{at_proxy:#?}");
    // The next process has the history as well, and shows it for one session.
    w.daemon(Role::Proxy)?.kill()?;
    w.restart(Role::Proxy)?;
    let after = change(&listed(&w, Role::Proxy, &e.listen, &e.client)?);
    ensure!(after == at_proxy, "{after:#?}");
    let shown = w
        .fleet
        .dyscoctl(&w.lab.proxy, &["sessions", "show", &e.name()])?;
    ensure!(shown.contains("middlebox to local"), "{shown}");
    // Only the bypass differs from the present mode; `local` is the present mode.
    let refused = w.remove(&["--session", &e.name(), "--mode", "local"])?;
    let why = refused["removals"][0]["reason"].to_string();
    ensure!(why.contains("ask for mode bypass"), "{refused:#}");
    // The client's operator requests the removal of the second session.
    let named = format!("{}>{}", ends[1].client, ends[1].listen);
    let proxy = Role::Proxy.at(Family::V4, 0).ip().to_string();
    let done = w.remove_from(Role::Client, &proxy, &["--session", &named])?;
    ensure!(done["summary"]["removed"] == 1, "{done:#}");
    let done = w.remove(&["--session", &e.name(), "--mode", "auto"])?;
    ensure!(done["removals"][0]["mode"] == "bypass", "{done:#}");
    bypassed(&w, &group, &ends, 100_000)?;
    // The proxy has left the session: nothing has to be proven about it.
    let refused = w.remove(&["--session", &e.name(), "--mode", "local"])?;
    let why = refused["removals"][0]["reason"].to_string();
    ensure!(why.contains("has left this session already"), "{refused:#}");
    for (e, by) in [(e, "the host "), (&ends[1], "root on this host")] {
        let at_client = change(&listed(&w, Role::Client, &e.client, &e.listen)?);
        let last = at_client.last().context("no change")?;
        ensure!(last["to"] == "bypass", "{at_client:#?}");
        let said = last["by"].as_str().unwrap_or_default();
        ensure!(said.starts_with(by), "{at_client:#?}");
    }
    let counts = status(&w, Role::Client)?["sessions"].clone();
    ensure!(counts["bypass"] == 2, "{counts:#}");
    // Another host may then enter; the host that opened the session decides, and tries.
    let name = format!("{}>{}", e.server, e.proxy);
    let words = ["reconfigure", &name, "--chain", "10.0.9.9", "--wait"];
    let ran = w.fleet.try_dyscoctl(&w.lab.server, &words)?;
    ensure!(
        ran.code == Some(6) && format!("{ran:?}").contains("1 rolled back"),
        "{ran:?}"
    );
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A daemon is killed before each of these steps, in changes of one session each, and restarted.
#[test]
fn a_daemon_dies() -> Result<()> {
    let before = [
        (Role::Proxy, "Measure"),
        (Role::Proxy, "Persist"),
        (Role::Proxy, "Close"),
        (Role::Proxy, "Erase"),
        (Role::Client, "Reserve"),
        (Role::Client, "Prepare"),
        (Role::Client, "Cut"),
        (Role::Client, "SetCutIn"),
        (Role::Client, "Complete"),
        (Role::Server, "Prepare"),
        (Role::Server, "Cut"),
        (Role::Server, "Complete"),
    ];
    let plan = Plan::paced(1_000_000, Close::First(Side::Client));
    let lab = Lab::builder("laterdies");
    let (mut w, group, ends) = relayed(lab, Family::V4, &plan, before.len())?;
    for ((role, name), own) in before.iter().zip(&ends) {
        let context = || format!("{role:?} died before {name}");
        w.fault(*role, &format!("die:{name}"))?;
        w.mode = "bypass";
        w.begin(own)?;
        let daemon = w.daemon(*role)?;
        wait::until("death", LIMIT, || (!daemon.runs()).then_some(())).with_context(context)?;
        group.wait_progress(50_000).with_context(context)?;
        w.fault(*role, "")?;
        w.restart(*role)?;
        group.wait_progress(50_000).with_context(context)?;
        idle(&w).with_context(context)?;
    }
    // A session that was rolled back is still relayed, and can be requested again.
    let done = w.remove(&["--all", "--mode", "bypass"])?;
    ensure!(done["summary"]["refused"] == 0, "{done:#}");
    ensure!(done["summary"]["rolled_back"] == 0, "{done:#}");
    bypassed(&w, &group, &ends, 100_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Waits until no host has a change in progress.
fn idle(w: &World) -> Result<()> {
    wait::until("the changes to end", LIMIT, || {
        let idle = |role| w.counters(role).is_ok_and(|c| c["changes_under_way"] == 0);
        Role::ALL.into_iter().all(idle).then_some(())
    })
    .with_context(|| w.state())
}
