//! Each message of a change of a chain is lost once: the change succeeds nevertheless, or is rolled
//! back if its path is dead, and every byte arrives.

use At::{Client, Fw1, Fw2, Fw3, Fw4, Server};
use anyhow::{Context, Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::{Group, all_intact};
use serde_json::{Value, json};

use crate::steered::ways::gentle;
use crate::steered::{At, Steered};

/// Messages and their senders in a change of the whole chain from the first firewall to the second.
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

/// Messages and their senders in a change of a segment: the fourth firewall replaces the second
/// between the first, the left anchor, and the third.
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

/// Messages and their senders if the path through the second firewall is dead.
const TAKEN_BACK: [(At, &str); 4] = [
    (Client, "Cancel"),
    (Server, "CancelAck"),
    (Client, "Dismiss"),
    (Fw2, "Dismissed"),
];

/// Messages and their senders if the segment's path through the fourth firewall is dead. The left
/// anchor is notified first, and the right anchor when the left one is back.
const SEGMENT_TAKEN_BACK: [(At, &str); 8] = [
    (Client, "Cancel"),
    (Fw1, "Abandoned"),
    (Client, "Cancel:2"),
    (Fw3, "CancelAck"),
    (Client, "Release"),
    (Fw1, "Released"),
    (Client, "Dismiss"),
    (Fw4, "Dismissed"),
];

/// Messages that move the state of the first firewall to the second.
const STATE: [(At, &str); 5] = [
    (Client, "Expect"),
    (Fw2, "Expecting"),
    (Client, "Give"),
    (Fw1, "Part"),
    (Fw2, "Ended"),
];

/// Messages of a request by the server's host.
const ASKED: [(At, &str); 3] = [(Server, "Ask"), (Client, "Heard"), (Client, "Answer")];

/// Changes between two chains in both directions. Each message is lost once on the way there, and
/// the change ends as expected nevertheless.
fn each_is_lost(
    world: &Steered,
    group: &Group,
    (said, end): (&[(At, &str)], &str),
    there: impl Fn() -> Result<Value>,
    back: impl Fn() -> Result<()>,
) -> Result<()> {
    for (at, message) in said {
        back()?;
        let before = world.lost(*at, message)?;
        world.set_faults(*at, &format!("drop:{message}"))?;
        let done = there().with_context(|| format!("{message} of {at:?} was lost"))?;
        world.set_faults(*at, "")?;
        let lost = world.lost(*at, message)? - before;
        ensure!(lost == 1, "{message} of {at:?} was lost {lost} times");
        ensure!(
            done["outcome"] == end,
            "{message} of {at:?} was lost: {done:#}\n{}",
            world.logs()
        );
        group.wait_progress(100_000)?;
    }
    Ok(())
}

/// Replaces the second firewall by the fourth. Returns the report, for any outcome.
fn replace_second(world: &Steered, session: &str) -> Result<Value> {
    let [old, new] = [Fw2, Fw4].map(|at| world.ip(at));
    let words = ["replace-middlebox", &old, "--with", &new];
    let of = ["--session", session, "--wait"];
    let done = world.try_json(Client, &[&words[..], &of].concat())?;
    Ok(done["changes"][0].clone())
}

/// Checks that the session has its former chain, and that a newcomer has forgotten it.
fn is_as_before(world: &Steered, session: &str, chain: &[At], newcomer: At) -> Result<()> {
    let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
    ensure!(world.chain_of(session)? == json!(hosts));
    world.wait_only_through(chain)?;
    world.wait_forgotten(newcomer)
}

#[test]
fn each_message_of_a_whole_chain() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = gentle(&world)?;
    let there = || world.reconfigure(&session, &[Fw2], &[]);
    let back = || world.update_chain(&session, &[Fw1]).map(drop);
    each_is_lost(&world, &group, (&WHOLE, "changed"), there, back)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn each_message_of_a_segment() -> Result<()> {
    let world = Steered::of_four(Family::V6)?;
    let (group, session) = gentle(&world)?;
    let there = || replace_second(&world, &session);
    let back = || world.update_chain(&session, &[Fw1, Fw2, Fw3]).map(drop);
    each_is_lost(&world, &group, (&SEGMENT, "changed"), there, back)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn each_message_that_takes_a_whole_chain_back() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    let (group, session) = gentle(&world)?;
    world.update_chain(&session, &[Fw1])?;
    world.lets_no_syn_through(Fw2)?;
    let there = || world.reconfigure(&session, &[Fw2], &[]);
    let said = (&TAKEN_BACK[..], "rolled_back");
    each_is_lost(&world, &group, said, there, || world.wait_forgotten(Fw2))?;
    is_as_before(&world, &session, &[Fw1], Fw2)?;
    world.update_chain(&session, &[])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn each_message_that_takes_a_segment_back() -> Result<()> {
    let world = Steered::of_four(Family::V4)?;
    let (group, session) = gentle(&world)?;
    let chain = [Fw1, Fw2, Fw3];
    world.update_chain(&session, &chain)?;
    world.lets_no_syn_through(Fw4)?;
    let there = || replace_second(&world, &session);
    let said = (&SEGMENT_TAKEN_BACK[..], "rolled_back");
    each_is_lost(&world, &group, said, there, || world.wait_forgotten(Fw4))?;
    is_as_before(&world, &session, &chain, Fw4)?;
    world.update_chain(&session, &[Fw1, Fw3])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The path is never opened: both anchors receive nothing, and ask what has become of it.
#[test]
fn questions_of_the_anchors_and_their_answers() -> Result<()> {
    let world = Steered::of_four(Family::V6)?;
    let (group, session) = gentle(&world)?;
    let chain = [Fw1, Fw2, Fw3];
    world.update_chain(&session, &chain)?;
    let faults = [
        (Fw1, "lose:Open,drop:Query"),
        (Fw3, "drop:Query"),
        (Client, "drop:Status,drop:Status:2"),
    ];
    for (at, words) in faults {
        world.set_faults(at, words)?;
    }
    let done = replace_second(&world, &session)?;
    ensure!(done["outcome"] == "rolled_back", "{done:#}");
    for (at, message, times) in [(Fw1, "Query", 1), (Fw3, "Query", 1), (Client, "Status", 2)] {
        let lost = world.lost(at, message)?;
        ensure!(
            lost == times,
            "{message} of {at:?} was lost {lost} times\n{}",
            world.logs()
        );
    }
    for (at, _) in faults {
        world.set_faults(at, "")?;
    }
    is_as_before(&world, &session, &chain, Fw4)?;
    let done = replace_second(&world, &session)?;
    ensure!(done["outcome"] == "changed", "{done:#}\n{}", world.logs());
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn each_message_that_moves_state() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    let (group, session) = gentle(&world)?;
    world.lets_in_the_known(Fw2)?;
    let there = || world.replace_on(Client, Fw1, Fw2, "conntrack");
    let back = || world.update_chain(&session, &[Fw1]).map(drop);
    each_is_lost(&world, &group, (&STATE, "changed"), there, back)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn each_message_between_who_asks_and_who_decides() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = gentle(&world)?;
    let (local, to) = session.split_once('>').context("no session's name")?;
    let there_called = format!("{to}>{local}");
    let there = || world.reconfigure_on(Server, &there_called, &[Fw2], &[]);
    let back = || world.update_chain(&session, &[Fw1]).map(drop);
    each_is_lost(&world, &group, (&ASKED, "changed"), there, back)?;
    all_intact(&group.finish()?)?;
    world.finish()
}
