//! Each message of a change of a chain is lost once: the change is done all the same, and
//! every byte arrives.

mod steered;

use std::fs;

use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Group, Plan, all_intact};
use serde_json::Value;
use steered::{At, Steered};

use At::{Client, Fw1, Fw2, Fw3, Fw4, Server};

/// Who says what in a change of the whole chain from the first firewall to the second.
const WHOLE: [(At, &str); 13] = [
    (Client, "Enlist"),
    (Fw2, "Enlisted"),
    (Client, "AskDelta"),
    (Fw1, "TellDelta"),
    (Client, "Extend"),
    (Server, "Extended"),
    (Client, "Switched"),
    (Server, "Switched"),
    (Server, "Settled"),
    (Client, "Done"),
    (Server, "DoneAck"),
    (Client, "Dismiss"),
    (Fw1, "Dismissed"),
];

/// The same of a segment, in which the fourth firewall takes the second's place between
/// the first, the left anchor, and the third.
const SEGMENT: [(At, &str); 20] = [
    (Client, "Lead"),
    (Fw1, "Extended"),
    (Client, "Enlist"),
    (Fw4, "Enlisted"),
    (Client, "AskDelta"),
    (Fw2, "TellDelta"),
    (Client, "Extend"),
    (Fw3, "Extended"),
    (Client, "Open"),
    (Fw1, "Opened"),
    (Client, "Cut"),
    (Fw1, "Switched"),
    (Client, "Switched"),
    (Fw3, "Switched"),
    (Fw3, "Settled"),
    (Client, "Done"),
    (Fw1, "DoneAck"),
    (Fw3, "DoneAck"),
    (Client, "Dismiss"),
    (Fw2, "Dismissed"),
];

/// One session that leaves the processors to the daemons, and its name.
fn gentle(world: &Steered) -> Result<(Group, String)> {
    let plan = Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    };
    let group = world.open(1, &plan)?;
    group.run();
    group.wait_progress(100_000)?;
    let name = world.name(group.locals()[0]);
    Ok((group, name))
}

/// How often a daemon has lost something on purpose.
fn lost(world: &Steered, at: At) -> Result<usize> {
    let log = fs::read_to_string(world.host(at).dir().join("dyscod.log"))?;
    Ok(log.matches("is lost on purpose").count())
}

/// Between two chains, there and back; each message is lost once on the way there.
fn each_is_lost(
    world: &Steered,
    group: &Group,
    said: &[(At, &str)],
    there: impl Fn() -> Result<Value>,
    back: impl Fn() -> Result<()>,
) -> Result<()> {
    for (at, message) in said {
        back()?;
        let before = lost(world, *at)?;
        world.set_faults(*at, &format!("drop:{message}"))?;
        let done = there().with_context(|| format!("{message} of {at:?} was lost"))?;
        world.set_faults(*at, "")?;
        let lost = lost(world, *at)? - before;
        ensure!(lost == 1, "{message} of {at:?} was lost {lost} times");
        ensure!(
            done["outcome"] == "changed",
            "{message} of {at:?} was lost: {done:#}\n{}",
            world.logs()
        );
        group.wait_progress(100_000)?;
    }
    Ok(())
}

#[test]
fn each_message_of_a_whole_chain() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = gentle(&world)?;
    let there = || world.reconfigure(&session, &[Fw2], &[]);
    let back = || world.rechain(&session, &[Fw1]).map(drop);
    each_is_lost(&world, &group, &WHOLE, there, back)?;
    all_intact(&group.finish()?).map(drop)
}

#[test]
fn each_message_of_a_segment() -> Result<()> {
    let world = Steered::of_four(Family::V4)?;
    let (group, session) = gentle(&world)?;
    let [old, new] = [Fw2, Fw4].map(|at| world.ip(at));
    let words = [
        "replace-middlebox",
        &old,
        "--with",
        &new,
        "--session",
        &session,
        "--wait",
    ];
    let there = || {
        let done = world.try_json(Client, &words)?;
        Ok(done["changes"][0].clone())
    };
    let back = || world.rechain(&session, &[Fw1, Fw2, Fw3]).map(drop);
    each_is_lost(&world, &group, &SEGMENT, there, back)?;
    all_intact(&group.finish()?).map(drop)
}
