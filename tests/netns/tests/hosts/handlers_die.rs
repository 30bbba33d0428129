//! Handlers that die, and the sessions that they had.

use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, Role, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::services::{OneEnd, PORT};

/// Returns the process that runs the services of the listed sessions.
fn handler(here: &OneEnd) -> Result<Pid> {
    let listed = here.service(&["list"])?;
    let pid = listed[0]["handler"].as_i64().context("no handler")?;
    Ok(Pid::from_raw(pid as i32))
}

/// Short messages with pauses: a handler has passed them on nearly always.
#[test]
fn sessions_outlive_a_handler_that_has_no_bytes_in_hand() -> Result<()> {
    const COUNT: usize = 3;
    let here = OneEnd::new("svcorphan", Family::V4)?;
    let plan = Plan {
        rate: Some(2_000),
        write: 500,
        after_close: 2_000,
        ..Plan::default()
    };
    let group = here.begin(COUNT, &plan)?;
    group.wait_progress(1_000)?;
    let mut killed = HashSet::new();
    // The second one dies while the sessions enter, or soon after.
    for wait in [true, false, true] {
        if wait {
            here.change(&["put", "+count"], "put", COUNT)?;
        } else {
            here.service(&["put", "+count", "--filter", "port=9000"])?;
        }
        let listed = here.service(&["list"])?;
        let pid = listed[0]["handler"].as_i64().context("no handler")?;
        ensure!(killed.insert(pid), "it was killed before: {listed:#}");
        kill(Pid::from_raw(pid as i32), Signal::SIGKILL)?;
        let mut listed = Value::Null;
        wait::until("sessions without services", Duration::from_secs(30), || {
            listed = here.service(&["list"]).ok()?;
            listed.as_array()?.is_empty().then_some(())
        })
        .with_context(|| format!("{listed:#}"))?;
        group.wait_progress(1_000)?;
    }
    let log = here.daemon.process.log();
    let survived = log.matches("with no bytes in hand").count();
    // At the second time the handler may not have had the sessions yet.
    ensure!(survived >= 2 * COUNT, "{survived} sessions outlived it");
    all_intact(&group.finish()?)?;
    here.finish()
}

/// The next daemon does not have the sockets. Bytes are lost, and no end may take that for the end of the
/// stream.
#[test]
fn a_handler_of_an_earlier_daemon_that_dies_resets_its_sessions() -> Result<()> {
    let mut here = OneEnd::new("svclinger", Family::V4)?;
    let lost = here.open(1, &Plan::gentle())?;
    here.change(&["put", "+latency=delay=300ms"], "put", 1)?;
    here.next_daemon(|_| Ok(()))?;
    let mut listed = Value::Null;
    wait::until(
        "the services of the last daemon",
        Duration::from_secs(30),
        || {
            listed = here.service(&["list"]).ok()?;
            (listed[0]["state"] == "in").then_some(())
        },
    )?;
    let pid = listed[0]["handler"].as_i64().context("no handler")?;
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL)?;
    let ends = lost.finish()?;
    for end in [&ends[0].client, &ends[0].server] {
        ensure!(end.error.is_some(), "an end heard of no reset: {ends:?}");
        ensure!(end.wrong_at.is_none(), "{ends:?}");
    }
    here.finish()
}

#[test]
fn a_handler_that_dies_takes_its_sessions_alone() -> Result<()> {
    let here = OneEnd::new("svckill", Family::V4)?;
    let lost = here.open(1, &Plan::gentle())?;
    // It has bytes in hand at any time.
    here.change(&["put", "+latency=delay=300ms"], "put", 1)?;
    let handler = handler(&here)?;
    let other = here.open(1, &Plan::gentle())?;
    kill(handler, Signal::SIGKILL)?;
    let outcome = lost.finish()?;
    ensure!(
        outcome[0].client.error.is_some(),
        "the session lives: {outcome:?}"
    );
    ensure!(outcome[0].server.wrong_at.is_none() && outcome[0].client.wrong_at.is_none());
    here.change(&["put", "+count"], "put", 1)?;
    other.wait_more(300_000, Duration::from_secs(30))?;
    here.change(&["take"], "taken", 1)?;
    all_intact(&other.finish()?)?;
    here.finish()
}

/// Drops the reset of a dead handler on its way to the server's host, whose end goes on to send. If
/// `accepted`, the handler's host has accepted the session, on a port that still has a listener. If
/// `away`, no `dyscod` runs when the handler dies.
fn misses_the_reset(name: &str, accepted: bool, away: bool) -> Result<()> {
    let mut here = OneEnd::new(name, Family::V4)?;
    let local = Role::Client.at(Family::V4, PORT);
    let listener = Server::start(&here.lab.client, local)?;
    let group = if accepted {
        let group = Group::open(&here.lab.server, &listener, local, 1, &Plan::gentle())?;
        group.run();
        group.wait_progress(100_000)?;
        group
    } else {
        here.open(1, &Plan::gentle())?
    };
    here.change(&["put", "+latency=delay=300ms"], "put", 1)?;
    let handler = handler(&here)?;
    let server = Role::Server.at(Family::V4, 0).ip();
    let rules = format!(
        "table inet misses {{
           counter dropped {{ }}
           chain forward {{
             type filter hook forward priority 0;
             ip daddr {server} tcp flags & rst == rst limit rate 1/hour burst 1 packets counter name dropped drop
           }}
         }}"
    );
    here.lab.router.input("nft", &["-f", "-"], &rules)?;
    let dies = || kill(handler, Signal::SIGKILL).context("no handler");
    match away {
        true => here.next_daemon(|_| dies())?,
        false => dies()?,
    }
    let outcome = group.finish()?;
    let counters = ["list", "counters", "table", "inet", "misses"];
    let dropped = here.lab.router.output("nft", &counters)?;
    ensure!(dropped.contains("packets 1 "), "{dropped}");
    for end in [&outcome[0].client, &outcome[0].server] {
        ensure!(end.error.is_some() && end.wrong_at.is_none(), "{outcome:?}");
    }
    here.finish()
}

#[test]
fn an_end_that_misses_the_reset_gets_another_one() -> Result<()> {
    misses_the_reset("svcmissed", false, false)
}

#[test]
fn an_end_that_misses_the_reset_of_an_accepted_session_gets_another_one() -> Result<()> {
    misses_the_reset("svcmissacc", true, false)
}

/// The next `dyscod` finds the session, and no handler that has it.
#[test]
fn an_end_that_misses_the_reset_while_no_dyscod_runs_gets_another_one() -> Result<()> {
    misses_the_reset("svcmissaway", false, true)
}

/// The handler has closed both sockets in order, and does not list the sessions any more.
#[test]
fn sessions_that_end_while_no_dyscod_runs_have_not_failed() -> Result<()> {
    let mut here = OneEnd::new("svcendaway", Family::V4)?;
    let group = here.open(2, &Plan::gentle())?;
    here.change(&["put", "+count"], "put", 2)?;
    all_intact(&here.next_daemon(|_| group.finish())?)?;
    here.wait_for_none()?;
    let log = here.daemon.process.log();
    ensure!(!log.contains("service-failed"), "{log}");
    here.finish()
}
