//! An end whose window is smaller than the segments that the other end would send: with the proxy
//! both make progress, and without it the sender would wait for its timers.

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};
use serde_json::Value;

/// Modes, each with the hosts that have a daemon.
const MODES: [(&str, &[Role]); 2] = [("bypass", &Role::ALL), ("local", &[Role::Proxy])];

/// Builds a world in which this end has a receive buffer of a fixed size in bytes.
fn world(end: Role, buffer: u32, daemons: &[Role]) -> Result<World> {
    let sizes = format!("{buffer} {buffer} {buffer}");
    let small = |host: dysco_netns::HostOptions| host.sysctl("net.ipv4.tcp_rmem", &sizes);
    let lab = Lab::builder("smallwin").host(end, small);
    World::with(lab, Family::V4, daemons, DECLARED, |c| c)
}

fn open(w: &World) -> Result<Group> {
    let plan = Plan {
        rate: Some(400_000),
        write: 4000,
        ..Plan::default()
    };
    let group = w.open(1, &plan)?;
    group.run();
    group.wait_progress(100_000)?;
    Ok(group)
}

fn reason(done: &Value) -> String {
    done["removals"][0]["reason"].to_string()
}

fn is_refused(end: Role, which: &str, mode: &'static str, daemons: &[Role]) -> Result<()> {
    let mut w = world(end, 2304, daemons)?;
    w.mode = mode;
    let group = open(&w)?;
    // A dry run reports it as well, as soon as no other reason exists.
    let mut dry = Value::Null;
    wait::until("the dry run to tell of the window", SETTLED, || {
        dry = w.remove(&["--all", "--dry-run"]).ok()?;
        reason(&dry).contains("window").then_some(())
    })
    .with_context(|| format!("{dry:#}"))?;
    let done = w.remove_all()?;
    let reason = reason(&done);
    let told = [which, "window", "receive buffer"];
    let told = told.iter().all(|word| reason.contains(word));
    ensure!(
        done["summary"]["removed"] != 1 && told,
        "{done:#}\n{}",
        w.state()
    );
    // The session continues as before.
    group.wait_progress(200_000)?;
    group.rest()?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_window_below_a_segment_is_refused() -> Result<()> {
    for (mode, daemons) in MODES {
        is_refused(Role::Server, "right end", mode, daemons)?;
    }
    Ok(())
}

#[test]
fn a_window_of_the_client_below_a_segment_is_refused() -> Result<()> {
    for (mode, daemons) in MODES {
        is_refused(Role::Client, "left end", mode, daemons)?;
    }
    Ok(())
}

/// Windows of a few segments: the proxy leaves, or stays, and the session makes progress.
#[test]
fn a_narrow_window_makes_progress() -> Result<()> {
    for (mode, daemons) in MODES {
        for (end, buffer) in [(Role::Server, 6912), (Role::Client, 16_384)] {
            let mut w = world(end, buffer, daemons)?;
            w.mode = mode;
            let group = open(&w)?;
            w.remove_all()?;
            group
                .wait_progress(400_000)
                .with_context(|| format!("{mode} {end:?} {buffer}\n{}", w.state()))?;
            group.rest()?;
            all_intact(&group.finish()?)?;
            w.finish()?;
        }
    }
    Ok(())
}
