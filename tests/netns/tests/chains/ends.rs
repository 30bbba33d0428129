//! Sessions end in each way while a firewall enters or leaves them, and the change is held in each
//! of its phases.

use std::time::Duration;

use crate::steered::{At, Steered};
use anyhow::{Context, Result};
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, wait};

use At::{Client, Fw1, Server};

const PATIENCE: Duration = Duration::from_secs(60);

/// Each way to end.
const WAYS: [Close; 5] = [
    Close::First(Side::Client),
    Close::First(Side::Server),
    Close::Together,
    Close::Reset(Side::Client),
    Close::Reset(Side::Server),
];

/// Messages that are lost so that the change waits: before the new path is taken, ...
const COMING_BEFORE: [(At, &str); 4] = [
    (Client, "Enlist"),
    (Fw1, "Enlisted"),
    (Client, "Extend"),
    (Server, "Extended"),
];
/// ... the same while the firewall leaves, ...
const LEAVING_BEFORE: [(At, &str); 2] = [(Client, "Extend"), (Server, "Extended")];
/// ... and after the new path is taken.
const AFTER: [(At, &str); 5] = [
    (Client, "Switched"),
    (Server, "Switched"),
    (Server, "Settled"),
    (Client, "Done"),
    (Server, "DoneAck"),
];
/// Messages that only a firewall that leaves sends and receives. The change does not wait long for
/// them.
const LEAVING: [(At, &str); 4] = [
    (Client, "AskDelta"),
    (Fw1, "TellDelta"),
    (Client, "Dismiss"),
    (Fw1, "Dismissed"),
];

fn counter(world: &Steered, at: At, name: &str) -> Result<u64> {
    let status = world.json(at, &["status"])?;
    Ok(status["counters"][name].as_u64().unwrap_or(0))
}

fn open(world: &Steered, chain: &[At]) -> Result<Vec<Group>> {
    let open = |close: &Close| {
        let plan = Plan {
            rate: Some(2_000_000),
            close: *close,
            ..Plan::default()
        };
        let group = world.open(1, &plan)?;
        group.run();
        group.wait_progress(100_000)?;
        if !chain.is_empty() {
            world.update_chain(&world.name(group.locals()[0]), chain)?;
            group.wait_progress(100_000)?;
        }
        Ok(group)
    };
    WAYS.iter().map(open).collect()
}

/// Messages that are lost while the firewall's path is dead, and everything is rolled back.
const BACK: [(At, &str); 4] = [
    (Client, "Cancel"),
    (Server, "CancelAck"),
    (Client, "Dismiss"),
    (Fw1, "Dismissed"),
];

/// Changes sessions from one chain to the other, and ends them while the change waits. `ended` must
/// succeed before the change may continue.
fn end_in(
    world: &Steered,
    [from, to]: [&[At]; 2],
    (at, message): (At, &str),
    ended: impl Fn() -> Result<()>,
) -> Result<()> {
    let groups = open(world, from)?;
    let before = world.lost(at, message)?;
    world.set_faults(at, &format!("lose:{message}"))?;
    let fw = world.ip(Fw1);
    let words = match to {
        [] => vec!["reconfigure", "--through", &fw, "--chain", ""],
        _ => vec!["insert-middlebox", &fw, "--all"],
    };
    world.ctl(Client, &words)?;
    let all = WAYS.len();
    wait::until("all changes to be held", PATIENCE, || {
        let held = counter(world, Client, "changes_under_way").ok()? == all as u64;
        let lost = world.lost(at, message).ok()? >= before + all;
        (held && lost).then_some(())
    })
    .with_context(|| world.logs())?;
    groups.iter().for_each(Group::stop);
    for (group, way) in groups.into_iter().zip(WAYS) {
        let intact = group.finish().and_then(|outcomes| all_intact(&outcomes));
        intact.with_context(|| format!("{way:?}\n{}", world.logs()))?;
    }
    ended()?;
    world.set_faults(at, "")?;
    wait::until("all changes to end", PATIENCE, || {
        let ended = |at: &At| counter(world, *at, "changes_under_way").is_ok_and(|n| n == 0);
        At::ALL.iter().all(ended).then_some(())
    })
    .with_context(|| world.logs())
}

/// Ends sessions in a change that nothing but the session's end may end.
fn closed_in(world: &Steered, chains: [&[At]; 2], held: (At, &str)) -> Result<()> {
    let closed = || counter(world, Client, "changes_not_done_closing");
    let goal = closed()? + WAYS.len() as u64;
    end_in(world, chains, held, || {
        wait::until("changes to end with their sessions", PATIENCE, || {
            (closed().ok()? == goal).then_some(())
        })
        .with_context(|| world.logs())
    })
}

const IN: [&[At]; 2] = [&[], &[Fw1]];
const OUT: [&[At]; 2] = [&[Fw1], &[]];

#[test]
fn while_a_firewall_is_to_come() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    for held in COMING_BEFORE {
        closed_in(&world, IN, held).with_context(|| format!("{held:?}"))?;
    }
    world.finish()
}

/// The end of a session with a chain may be received late, so that the change may end by its
/// time-out.
#[test]
fn while_a_firewall_is_to_leave() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    for held in LEAVING_BEFORE {
        end_in(&world, OUT, held, || Ok(())).with_context(|| format!("{held:?}"))?;
    }
    world.finish()
}

#[test]
fn once_a_firewall_has_come() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    for held in AFTER {
        end_in(&world, IN, held, || Ok(())).with_context(|| format!("{held:?}"))?;
    }
    world.finish()
}

#[test]
fn once_a_firewall_has_left() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    for held in AFTER.iter().chain(&LEAVING) {
        end_in(&world, OUT, *held, || Ok(())).with_context(|| format!("{held:?}"))?;
    }
    world.finish()
}

#[test]
fn while_a_firewall_that_could_not_come_is_taken_back() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    world.lets_no_syn_through(Fw1)?;
    for held in BACK {
        end_in(&world, IN, held, || Ok(())).with_context(|| format!("{held:?}"))?;
    }
    world.wait_forgotten(Fw1)?;
    world.finish()
}
