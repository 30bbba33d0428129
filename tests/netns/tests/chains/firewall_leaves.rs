//! The `dyscod` of a firewall's host dies in each of its phases of a change in which the firewall
//! leaves a session, or hands its place and its state to another firewall: every byte arrives, and
//! nothing stays held.

use std::time::Duration;

use At::{Client, Fw1, Fw2};
use anyhow::{Context, Result};
use dysco_netns::stream::{Group, all_intact};
use dysco_netns::{Family, wait};

use crate::steered::ways::gentle;
use crate::steered::{At, Steered};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until no host has anything left of a change.
fn wait_quiet(world: &Steered) -> Result<()> {
    let quiet = |at: &At| {
        let status = world.json(*at, &["status"]);
        status.is_ok_and(|status| status["counters"]["changes_under_way"] == 0)
    };
    wait::until("all changes to end", PATIENCE, || {
        At::ALL.iter().all(quiet).then_some(())
    })
}

/// The daemon of a host dies at this point while a session that passes the first firewall is to get
/// another chain. Once the daemon runs again, the session can be given any chain.
fn dies(
    world: &mut Steered,
    (group, session): (&Group, &str),
    (at, fault): (At, &str),
    words: &[&str],
) -> Result<()> {
    world.update_chain(session, &[Fw1])?;
    wait_quiet(world)?;
    group.wait_progress(100_000)?;
    world.set_faults(at, fault)?;
    world.ctl(Client, words)?;
    world.wait_dead(at)?;
    group.wait_progress(100_000).context("while it is dead")?;
    world.set_faults(at, "")?;
    world.restart(at)?;
    group.wait_progress(100_000).context("once it is back")?;
    wait_quiet(world)?;
    // The session has one path again, whichever, and nothing holds it.
    for chain in [&[Fw2, Fw1][..], &[]] {
        world.update_chain(session, chain)?;
        group.wait_progress(100_000)?;
    }
    wait_quiet(world)?;
    [Fw1, Fw2]
        .iter()
        .try_for_each(|fw| world.wait_forgotten(*fw))
}

fn each_dies(faults: &[(At, &str)], words: impl Fn(&Steered, &str) -> Vec<String>) -> Result<()> {
    let mut world = Steered::new(Family::V4)?;
    let (group, session) = gentle(&world)?;
    let words = words(&world, &session);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for fault in faults {
        dies(&mut world, (&group, &session), *fault, &words)
            .with_context(|| format!("{fault:?}\n{}", world.logs()))?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn of_a_firewall_that_is_taken_out() -> Result<()> {
    let faults = [
        (Fw1, "die:AskDelta"),
        (Fw1, "die:TellDelta"),
        (Fw1, "die:Forget"),
        (Fw1, "die:Dismissed"),
    ];
    each_dies(&faults, |_, session| {
        ["reconfigure", session, "--chain", ""]
            .map(str::to_owned)
            .into()
    })
}

/// Returns the command by which the second firewall replaces the first, with its state.
fn takes_its_place(world: &Steered, session: &str) -> Vec<String> {
    let [old, new] = [Fw1, Fw2].map(|fw| world.ip(fw));
    let words = ["replace-middlebox", &old, "--with", &new];
    let of = ["--session", session, "--state", "conntrack"];
    [words, of].concat().iter().map(|w| w.to_string()).collect()
}

#[test]
fn of_a_firewall_that_gives_its_state_away() -> Result<()> {
    let faults = [
        (Fw1, "die:AskDelta"),
        (Fw1, "die:Export"),
        (Fw1, "die:Part"),
        (Fw1, "die:Forget"),
        (Fw1, "die:Dismissed"),
    ];
    each_dies(&faults, takes_its_place)
}

#[test]
fn of_a_firewall_that_takes_the_state_of_another() -> Result<()> {
    let faults = [
        (Fw2, "die:Enlist"),
        (Fw2, "die:Enlisted"),
        (Fw2, "die:Expecting"),
        (Fw2, "die:Install"),
        (Fw2, "die:Ended"),
    ];
    each_dies(&faults, takes_its_place)
}
