//! In mode `auto`, the daemon of the proxy's host chooses the mode that is possible.

use std::time::Duration;

use crate::world::fates::Ends;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use serde_json::Value;

fn first(done: &Value, what: &str) -> String {
    let found = &done["removals"][0][what];
    found.as_str().map_or(found.to_string(), str::to_owned)
}

fn world(name: &str, roles: &[Role]) -> Result<World> {
    let mut w = World::with(Lab::builder(name), Family::V4, roles, DECLARED, |c| c)?;
    w.mode = "auto";
    Ok(w)
}

/// Opens sessions that can lose the proxy. Returns the sessions and their ends.
fn open(w: &World, count: usize) -> Result<(Group, Vec<Ends>)> {
    let plan = Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    };
    let group = w.open(count, &plan)?;
    group.run();
    group.wait_progress(200_000)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;
    Ok((group, ends))
}

fn remove(w: &World, ends: &Ends, more: &[&str]) -> Result<Value> {
    let name = ends.name();
    w.remove(&[&["--session", &name], more].concat())
}

/// Checks that the removal was done in this mode, for this reason. For a dry run, checks that it
/// would be.
fn done(done: &Value, mode: &str, why: &str) -> Result<()> {
    let word = if done["dry_run"] == true {
        "removable"
    } else {
        "removed"
    };
    ensure!(done["summary"][word] == 1, "{done:#}");
    ensure!(first(done, "mode") == mode, "{done:#}");
    ensure!(first(done, "why_mode").contains(why), "{done:#}");
    Ok(())
}

/// Checks that no firewall can enter a session that the proxy's host relays, for this reason.
fn takes_no_other(w: &World, ends: &Ends, why: &str) -> Result<()> {
    let name = format!("{}>{}", ends.proxy, ends.server);
    let words = ["reconfigure", &name, "--chain", "10.0.9.9", "--wait"];
    let mut said = String::new();
    // Facts about a neighbour that are not known are fetched now.
    wait::until("the reason", Duration::from_secs(20), || {
        let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words).ok()?;
        said = format!("{ran:?}");
        let local = said.contains("its host alone relays it (local)");
        (ran.code == Some(5) && local && said.contains(why)).then_some(())
    })
    .with_context(|| format!("{why}: {said}"))
}

#[test]
fn a_proxys_host_alone_takes_no_firewall() -> Result<()> {
    let w = world("autoalone", &[Role::Proxy])?;
    let (group, ends) = open(&w, 1)?;
    done(&remove(&w, &ends[0], &[])?, "local", "no dyscod at")?;
    let why = "as far as is known, neither 10.0.3.1 nor 10.0.1.1 runs it";
    takes_no_other(&w, &ends[0], why)?;
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_neighbour_without_a_daemon_makes_it_local() -> Result<()> {
    let w = world("autolocal", &[Role::Client, Role::Proxy])?;
    let (group, ends) = open(&w, 2)?;
    let why = "no dyscod at 10.0.3.1";
    done(&remove(&w, &ends[0], &["--dry-run"])?, "local", why)?;
    done(&remove(&w, &ends[0], &[])?, "local", why)?;
    // By the operator's word alone the bypass is tried, and refused.
    let refused = remove(&w, &ends[1], &["--mode", "bypass"])?;
    let reason = first(&refused, "reason");
    ensure!(reason.contains("no dyscod answers at"), "{refused:#}");
    done(&remove(&w, &ends[1], &[])?, "local", why)?;
    takes_no_other(&w, &ends[0], "10.0.1.1 runs it and 10.0.3.1 does not")?;
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn daemons_on_both_sides_make_it_a_bypass() -> Result<()> {
    let w = world("autobypass", &Role::ALL)?;
    let (group, ends) = open(&w, 2)?;
    let why = "a dyscod answers on both sides";
    done(&remove(&w, &ends[0], &["--dry-run"])?, "bypass", why)?;
    done(&remove(&w, &ends[0], &[])?, "bypass", why)?;
    done(&remove(&w, &ends[1], &["--mode", "local"])?, "local", "")?;
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// A reason against the bypass only is not a reason against the other modes.
#[test]
fn a_bypass_that_is_refused_falls_to_local() -> Result<()> {
    let w = world("autofall", &Role::ALL)?;
    let (group, ends) = open(&w, 1)?;
    w.lab
        .add_rule("ip saddr 10.0.1.1 ip daddr 10.0.3.1 tcp dport 9000 drop")?;
    done(&remove(&w, &ends[0], &[])?, "local", "no answer to a SYN")?;
    // The removal took two changes, and counts as one for the requester. A request for which no
    // change begins also counts once.
    for more in [&["--dry-run"][..], &[]] {
        let again = remove(&w, &ends[0], &[&["--mode", "local"], more].concat())?;
        ensure!(again["summary"]["refused"] == 1, "{again:#}");
    }
    let counters = w.counters(Role::Proxy)?;
    let ends = ["done", "rolled_back", "refused", "not_done_already_out"];
    let ended = ends.map(|end| &counters[format!("changes_{end}")]);
    ensure!(ended == [1, 0, 1, 1], "{counters:#}");
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// The server's host does not know a session that is older than its daemon, unless it adopts the
/// session.
#[test]
fn a_session_that_a_neighbour_does_not_know_falls_to_local() -> Result<()> {
    let mut w = world("autolate", &[Role::Client, Role::Proxy])?;
    let (group, ends) = open(&w, 1)?;
    let server = (w.fleet).start(&w.lab, Role::Server, "[data_plane]\nadopt = false\n")?;
    w.daemons.push((Role::Server, server));
    wait::until("both neighbours", Duration::from_secs(60), || {
        let dry = remove(&w, &ends[0], &["--dry-run"]).ok()?;
        (first(&dry, "mode") == "bypass").then_some(())
    })?;
    let why = "bypass was not possible: a host does not track";
    done(&remove(&w, &ends[0], &[])?, "local", why)?;
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    w.finish()
}
