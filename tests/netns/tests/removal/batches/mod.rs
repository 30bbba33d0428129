//! Batches of removals: their rate, and daemons that die in their midst. Each session is reported
//! once, and truly.

mod memory;
mod mixed;

use std::collections::HashMap;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Lab, Process, Program, Role, wait};
use serde_json::Value;

use crate::world::World;
use crate::world::fates::{Ends, Fate, SETTLED};

use Role::{Client, Proxy};

/// Number of sessions of a batch: `DYSCO_BATCH`, or so many that a test takes seconds.
fn many() -> usize {
    let set = std::env::var("DYSCO_BATCH").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(300)
}

/// Returns a plan for many sessions that leaves the processor to the daemons.
fn slow() -> Plan {
    Plan {
        rate: Some(2_000),
        write: 500,
        after_close: 1_000,
        ..Plan::default()
    }
}

/// Opens sessions with traffic, all of which can be removed.
fn opened(w: &World, count: usize) -> Result<(Group, Vec<Ends>)> {
    let group = w.open(count, &slow())?;
    group.run();
    group.wait_progress(1_000)?;
    let ends = w.ends(&group)?;
    removable(w, count)?;
    Ok((group, ends))
}

/// Waits until the proxy could leave so many sessions.
fn removable(w: &World, count: usize) -> Result<()> {
    let mut said = Value::Null;
    wait::until("all to be removable", SETTLED, || {
        said = w.remove(&["--all", "--dry-run"]).ok()?;
        (said["summary"]["removable"] == count).then_some(())
    })
    .with_context(|| format!("{said:#}"))
}

/// Starts a removal of all sessions and does not wait for its end.
fn begun(w: &World, name: &str) -> Result<Process> {
    begun_of(w, name, &["--all"])
}

/// Starts a removal of these sessions and does not wait for its end.
fn begun_of(w: &World, name: &str, which: &[&str]) -> Result<Process> {
    let words = ["remove-middlebox", "self", "--wait", "--mode", w.mode];
    let program = Program::new(w.fleet.dyscoctl_path())
        .args(words)
        .args(which);
    w.lab.proxy.spawn(program.args(["-o", "json"]).named(name))
}

/// Waits for the end of a removal. Returns what it printed.
fn ended(mut removal: Process) -> Result<Value> {
    wait::until("the end of a removal", SETTLED, || {
        (!removal.runs()).then_some(())
    })?;
    let log = removal.log();
    let json = log.find('{').map_or("", |at| &log[at..]);
    serde_json::from_str(json).with_context(|| format!("no JSON: {log}"))
}

/// Returns the outcomes of a batch by its sessions.
///
/// # Errors
/// If a session was reported twice or not at all, or the summary does not have the same counts.
fn outcomes(done: &Value) -> Result<HashMap<String, String>> {
    let removals = done["removals"].as_array().context("no removals")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all: HashMap<_, _> = removals
        .iter()
        .map(|r| (text(&r["remote"]), text(&r["outcome"])))
        .collect();
    ensure!(all.len() == removals.len(), "reported twice: {done:#}");
    ensure!(done["accepted"] == all.len(), "not all reported: {done:#}");
    for outcome in ["removed", "refused", "rolled_back", "pending", "lost"] {
        let count = all.values().filter(|o| **o == outcome).count();
        ensure!(done["summary"][outcome] == count, "{outcome}: {done:#}");
    }
    Ok(all)
}

/// Checks that these outcomes are what the hosts have.
fn true_of(ends: &[Ends], fates: &[Fate], said: &HashMap<String, String>) -> Result<()> {
    for (ends, fate) in ends.iter().zip(fates) {
        match said.get(&ends.client).map(String::as_str) {
            Some("removed") => ensure!(*fate == Fate::Removed, "{ends:?} has its proxy"),
            Some("refused" | "rolled_back") => {
                ensure!(*fate == Fate::Tracked, "{ends:?} has lost its proxy");
            }
            Some("pending") => {}
            other => anyhow::bail!("{ends:?}: {other:?}"),
        }
    }
    Ok(())
}

/// Ends a test as [`finish_sessions`] does, and checks that no host has sent a reset.
fn finish(w: World, group: Group, ends: &[Ends]) -> Result<()> {
    let w = finish_sessions(w, group, ends)?;
    w.no_resets()?;
    w.finish()
}

/// Removes the proxy from what still has it, and checks every byte.
fn finish_sessions(w: World, group: Group, ends: &[Ends]) -> Result<World> {
    let fates = w.settle(ends)?;
    let rest = fates.iter().filter(|f| **f == Fate::Tracked).count();
    if rest > 0 {
        // The shim may not have connected to the next daemon yet.
        removable(&w, rest)?;
        w.remove_all_of(rest)?;
    }
    let fates = w.settle(ends)?;
    let kept = fates.iter().filter(|f| **f == Fate::Tracked).count();
    ensure!(kept == 0, "{kept} keep their proxy");
    group.wait_progress(1_000)?;
    all_intact(&group.finish()?)?;
    Ok(w)
}

/// The bound is checked by the daemon's own times of the beginnings.
#[test]
fn a_rate_bounds_the_beginnings_in_each_second() -> Result<()> {
    const RATE: usize = 40;
    const SESSIONS: usize = 100;
    let w = World::new(Lab::builder("rate"), Family::V4)?;
    let (group, ends) = opened(&w, SESSIONS)?;
    for bad in ["0", "-1", "fast", "1.5"] {
        for command in [
            ["remove-middlebox", "self", "--all"].as_slice(),
            &["drain", ":8080"],
        ] {
            let words = [command, &["--rate", bad]].concat();
            let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
            let why = format!("'{bad}' is no rate of 1 to 1000000 sessions a second");
            ensure!(ran.code == Some(2) && ran.stderr.contains(&why), "{ran:?}");
        }
    }
    let rate = RATE.to_string();
    let least = 1000 * (SESSIONS - 1) / RATE;
    for which in [["--all"].as_slice(), &["--all", "--listen", ":8080"]] {
        let dry = w.remove(&[which, &["--dry-run", "--rate", &rate]].concat())?;
        ensure!(dry["summary"]["at_least_ms"] == least, "{dry:#}");
    }
    let dry = ["drain", ":8080", "--dry-run", "--rate", &rate];
    let dry = w.fleet.json(&w.lab.proxy, &dry)?;
    ensure!(dry["at_least_ms"] == least, "{dry:#}");

    let done = w.remove(&["--all", "--rate", &rate])?;
    ensure!(
        outcomes(&done)?.values().all(|o| o == "removed"),
        "{done:#}"
    );
    let removals = done["removals"].as_array().context("no removals")?;
    let begun = removals.iter().map(|r| r["accepted_to_begin_us"].as_u64());
    let mut begun: Vec<_> = begun.collect::<Option<_>>().context("no times")?;
    begun.sort_unstable();
    ensure!(begun.len() == SESSIONS, "{begun:?}");
    for (first, next) in begun.iter().zip(&begun[RATE..]) {
        ensure!(
            next - first >= 1_000_000,
            "more than {RATE} from {first} us on"
        );
    }
    finish(w, group, &ends)
}

#[test]
fn a_drain_with_a_rate_ends_as_one_without() -> Result<()> {
    let w = World::new(Lab::builder("ratedrain"), Family::V4)?;
    let (group, ends) = opened(&w, 30)?;
    let words = ["drain", ":8080", "--rate", "25", "-o", "json"];
    let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let fates = w.settle(&ends)?;
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");
    finish(w, group, &ends)
}

/// The daemon of the proxy's host dies at some step of a batch, and the next one takes it up.
fn proxys_daemon_dies(name: &str, step: &str) -> Result<()> {
    let mut w = World::new(Lab::builder(name), Family::V4)?;
    let (group, ends) = opened(&w, many())?;
    w.fault(Proxy, &format!("die:{step}"))?;
    let removal = begun(&w, "batch")?;
    wait::until("the daemon to die", SETTLED, || {
        w.daemon(Proxy).is_ok_and(|d| !d.runs()).then_some(())
    })?;
    // Sessions go on without it.
    group.wait_progress(1_000)?;
    let done = ended(removal)?;
    ensure!(
        done["removals"].is_null(),
        "no end, and yet a report: {done:#}"
    );
    w.fault(Proxy, "")?;
    w.restart(Proxy)?;
    finish(w, group, &ends).with_context(|| step.to_owned())
}

#[test]
fn a_daemon_that_is_killed_in_a_batch_is_taken_up() -> Result<()> {
    proxys_daemon_dies("killed", &format!("Close:{}", many() / 3))
}

#[test]
fn a_daemon_that_has_written_ahead_and_done_nothing_is_taken_up() -> Result<()> {
    proxys_daemon_dies("ahead", "WrittenAhead:4")
}

#[test]
fn a_batch_whose_records_are_not_written_ahead_is_the_same() -> Result<()> {
    let w = World::new(Lab::builder("behind"), Family::V4)?;
    let (group, ends) = opened(&w, many())?;
    for role in Role::ALL {
        w.fault(role, "lose:WriteAhead")?;
    }
    let done = w.remove_all_of(many())?;
    true_of(&ends, &w.settle(&ends)?, &outcomes(&done)?)?;
    ensure!(
        w.lost(Client, "WriteAhead")? > 0,
        "nothing was written ahead"
    );
    finish(w, group, &ends)
}

/// The daemon of a neighbour dies while many of its sessions are changed.
fn neighbours_daemon_dies(name: &str, role: Role, step: &str) -> Result<()> {
    let mut w = World::new(Lab::builder(name), Family::V4)?;
    let (group, ends) = opened(&w, many())?;
    w.fault(role, &format!("die:{step}"))?;
    let removal = begun(&w, "batch")?;
    wait::until("the daemon to die", SETTLED, || {
        w.daemon(role).is_ok_and(|d| !d.runs()).then_some(())
    })?;
    group.wait_progress(1_000)?;
    w.fault(role, "")?;
    w.restart(role)?;
    let said = outcomes(&ended(removal)?)?;
    true_of(&ends, &w.settle(&ends)?, &said)?;
    finish(w, group, &ends).with_context(|| step.to_owned())
}

#[test]
fn a_left_anchors_daemon_dies_in_a_batch() -> Result<()> {
    neighbours_daemon_dies("leftdies", Client, &format!("Cut:{}", many() / 3))
}

#[test]
fn a_right_anchors_daemon_dies_in_a_batch() -> Result<()> {
    neighbours_daemon_dies(
        "rightdies",
        Role::Server,
        &format!("Drained:{}", many() / 3),
    )
}

/// Two operators ask for all sessions at the same time.
#[test]
fn two_batches_that_overlap_report_each_session_once() -> Result<()> {
    let w = World::new(Lab::builder("overlap"), Family::V4)?;
    let (group, ends) = opened(&w, many())?;
    let both = [begun(&w, "one")?, begun(&w, "other")?];
    let both = both.map(ended);
    let fates = w.settle(&ends)?;
    let mut removed = HashMap::new();
    for done in both {
        for (session, outcome) in outcomes(&done?)? {
            match outcome.as_str() {
                "removed" => *removed.entry(session).or_insert(0) += 1,
                // The other batch has it, or had it.
                "refused" => {}
                other => anyhow::bail!("{session}: {other}"),
            }
        }
    }
    ensure!(removed.len() == ends.len(), "{} removed", removed.len());
    ensure!(removed.values().all(|times| *times == 1), "{removed:?}");
    ensure!(fates.iter().all(|f| *f == Fate::Removed), "{fates:?}");
    finish(w, group, &ends)
}
