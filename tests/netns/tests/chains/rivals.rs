//! Two operators request other chains of one session. The lock of the first is no reason to refuse
//! the second as long as the first change may be rolled back. Also requests that are refused, with
//! their reason, before anything has changed.

use std::time::Duration;

use crate::steered::{At, Steered};
use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a session that is busy in both directions. Returns the session and its name.
fn busy(world: &Steered, plan: &Plan) -> Result<(Group, String)> {
    let group = world.open(1, plan)?;
    group.run();
    group.wait_progress(1 << 20).with_context(|| world.logs())?;
    let session = world.name(group.locals()[0]);
    Ok((group, session))
}

/// Waits until the client's host has counted this number of changes of this kind.
fn wait_counted(world: &Steered, counter: &str, count: u64) -> Result<()> {
    wait::until(counter, PATIENCE, || {
        let status = world.json(At::Client, &["status"]).ok()?;
        (status["counters"][counter] == json!(count)).then_some(())
    })
    .with_context(|| world.logs())
}

/// Requests the first firewall. While that change is in progress, another request for the second
/// firewall, on any host, waits; then the first change continues. Returns the results of both.
fn in_turn(
    world: &Steered,
    session: &str,
    (at, name): (At, &str),
    go_on: impl FnOnce() -> Result<()>,
) -> Result<[Value; 2]> {
    std::thread::scope(|scope| {
        let first = scope.spawn(|| world.reconfigure(session, &[At::Fw1], &[]));
        let begun = wait_counted(world, "changes_under_way", 1);
        let second = scope.spawn(|| world.reconfigure_on(at, name, &[At::Fw2], &[]));
        let waits = begun.and_then(|()| wait_counted(world, "changes_waiting", 1));
        let gone_on = go_on();
        let done = [first, second].map(|one| one.join().map_err(|_| anyhow!("it panicked")));
        let [first, second] = done;
        waits.and(gone_on)?;
        Ok([first??, second??])
    })
}

fn ended(world: &Steered, done: &Value, outcome: &str, word: &str) -> Result<()> {
    let reason = done["reason"].to_string();
    ensure!(
        done["outcome"] == outcome && reason.contains(word),
        "not {outcome}, {word:?}: {done:#}\n{}",
        world.logs()
    );
    Ok(())
}

/// There are two operators, or two hosts: the second has requested a path that works.
#[test]
fn who_waits_for_a_change_that_is_taken_back_wins() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world, &Plan::default())?;
    let rule = "insert rule inet fw forward tcp flags syn counter name dropped drop";
    let rule: Vec<_> = rule.split(' ').collect();
    world.host(At::Fw1).output("nft", &rule)?;
    let there = format!(
        "{}:{}>{}",
        world.ip(At::Server),
        crate::steered::PORT,
        group.locals()[0]
    );
    for (at, name) in [(At::Client, &session), (At::Server, &there)] {
        // The first change is held until the other one waits.
        world.set_faults(At::Server, "lose:Extended")?;
        let [first, second] = in_turn(&world, &session, (at, name), || {
            world.set_faults(At::Server, "")
        })?;
        ended(&world, &first, "rolled_back", "no answer to a SYN")?;
        ended(&world, &second, "changed", "")?;
        ensure!(world.chain_of(&session)? == json!([world.ip(At::Fw2)]));
        world.wait_only_through(&[At::Fw2])?;
        group.wait_progress(1 << 20).with_context(|| world.logs())?;
        world.update_chain(&session, &[])?;
        world.wait_forgotten(At::Fw2)?;
    }
    ensure!(world.refused(At::Fw2)? == 0, "{}", world.logs());
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The second has requested a chain for a session that now has another one.
#[test]
fn who_waits_for_a_change_that_is_done_is_refused() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    let (group, session) = busy(&world, &Plan::default())?;
    world.set_faults(At::Server, "lose:Extended")?;
    let [first, second] = in_turn(&world, &session, (At::Client, &session), || {
        world.set_faults(At::Server, "")
    })?;
    ended(&world, &first, "changed", "")?;
    ended(
        &world,
        &second,
        "refused",
        "another change has changed its chain",
    )?;
    ensure!(world.chain_of(&session)? == json!([world.ip(At::Fw1)]));
    group.wait_progress(1 << 20).with_context(|| world.logs())?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Each of two hosts holds the session for its own change when it receives the other's: a proxy
/// that leaves the session, and a firewall that enters. One succeeds.
#[test]
fn of_a_proxy_that_leaves_and_a_firewall_that_comes_one_wins() -> Result<()> {
    let world = Steered::with_proxy(Family::V4, &[], "")?;
    let group = world.open_by_proxy(1, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20).with_context(|| world.logs())?;
    let session = format!("{}>{}:8080", group.locals()[0], world.ip(At::Proxy));
    let leave = ["remove-middlebox", "self", "--all", "--mode", "bypass"];
    wait::until("the proxy to be removable", PATIENCE, || {
        let said = world.try_json(At::Proxy, &[&leave[..], &["--dry-run"]].concat());
        (said.ok()?["summary"]["removable"] == 1).then_some(())
    })?;
    world.set_faults(At::Proxy, "lose:Leave")?;
    let (removed, chained) = std::thread::scope(|scope| {
        let words = [&leave[..], &["--wait"]].concat();
        let removal = scope.spawn({
            let world = &world;
            move || world.try_json(At::Proxy, &words)
        });
        let begun = wait::until("the proxy to hold it", PATIENCE, || {
            let status = world.json(At::Proxy, &["status"]).ok()?;
            (status["counters"]["changes_under_way"] == json!(1)).then_some(())
        });
        let chain = scope.spawn(|| world.reconfigure(&session, &[At::Fw1], &[]));
        let waits = begun.and_then(|()| wait_counted(&world, "changes_waiting", 1));
        let cleared = world.set_faults(At::Proxy, "");
        let removal = removal.join().map_err(|_| anyhow!("it panicked"));
        let chain = chain.join().map_err(|_| anyhow!("it panicked"));
        waits.and(cleared)?;
        anyhow::Ok((removal??, chain??))
    })?;
    let won = [
        removed["summary"]["removed"] == 1,
        chained["outcome"] == "changed",
    ];
    ensure!(
        won[0] != won[1],
        "{won:?}: {removed:#} {chained:#}\n{}",
        world.logs()
    );
    group.wait_progress(4 << 20).with_context(|| world.logs())?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// All commands that request a chain of one session.
fn all_ways(world: &Steered, session: &str) -> [Vec<String>; 5] {
    let (fw1, fw2) = (world.ip(At::Fw1), world.ip(At::Fw2));
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    [
        words(&["reconfigure", session, "--chain", &fw2]),
        words(&["reconfigure", session, "--without", &fw1]),
        words(&["insert-middlebox", &fw2, "--session", session]),
        words(&[
            "replace-middlebox",
            &fw1,
            "--with",
            &fw2,
            "--session",
            session,
        ]),
        words(&["remove-middlebox", &fw1, "--session", session]),
    ]
}

/// Checks that each command is refused for this reason, and so is a dry run if it can know the
/// reason.
fn each_is_refused(world: &Steered, session: &str, word: &str, dry: bool) -> Result<()> {
    for words in all_ways(world, session) {
        for how in [Some("--wait"), dry.then_some("--dry-run")] {
            let Some(how) = how else { continue };
            let words: Vec<&str> = words.iter().map(String::as_str).chain([how]).collect();
            let ran = world.try_ctl(At::Client, &words)?;
            let said = format!("{}{}", ran.stdout, ran.stderr);
            ensure!(
                ran.code != Some(0) && said.contains(word),
                "{words:?}: not {word:?}: {ran:?}\n{}",
                world.logs()
            );
        }
    }
    Ok(())
}

/// Both ends have closed, or one has reset the session: its entries stay for late packets.
#[test]
fn a_session_that_is_closing_is_called_so() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    for close in [Close::First(Side::Client), Close::Reset(Side::Client)] {
        let plan = Plan {
            close,
            ..Plan::default()
        };
        let (group, session) = busy(&world, &plan)?;
        world.update_chain(&session, &[At::Fw1])?;
        group.finish()?;
        wait::until("the end to be seen", PATIENCE, || {
            let words = ["reconfigure", &session, "--chain", "", "--dry-run"];
            let done = world.try_json(At::Client, &words).ok()?;
            (done["changes"][0]["outcome"] == "refused").then_some(())
        })?;
        each_is_refused(&world, &session, "the session is closing", true)?;
        // A host that the session passes asks the host that opened it.
        let words = ["remove-middlebox", "self", "--session", &session, "--wait"];
        let ran = world.try_ctl(At::Fw1, &words)?;
        ensure!(ran.stdout.contains("the session is closing"), "{ran:?}");
    }
    world.finish()
}

#[test]
fn one_that_does_not_exist_is_not_found() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let nobody = format!("{}:1>{}:9000", world.ip(At::Client), world.ip(At::Server));
    each_is_refused(&world, &nobody, "this host has no such session", true)?;
    each_is_refused(
        &world,
        "ffffffffffff",
        "this host has no such session",
        true,
    )?;
    world.finish()
}

/// Another change of the session can no longer be rolled back, and is not over.
#[test]
fn one_that_another_has_won_is_locked() -> Result<()> {
    let world = Steered::new(Family::V6)?;
    let (group, session) = busy(&world, &Plan::default())?;
    world.set_faults(At::Server, "lose:DoneAck")?;
    let held = std::thread::scope(|scope| {
        let first = scope.spawn(|| world.reconfigure(&session, &[At::Fw1], &[]));
        let refused = wait::until("the chain to be taken down", PATIENCE, || {
            (world.chain_of(&session).ok()? == json!([world.ip(At::Fw1)])).then_some(())
        })
        .and_then(|()| each_is_refused(&world, &session, "the session is locked by change", false));
        let cleared = world.set_faults(At::Server, "");
        let first = first.join().map_err(|_| anyhow!("it panicked"));
        refused.and(cleared)?;
        first?
    })?;
    ended(&world, &held, "changed", "")?;
    group.wait_progress(1 << 20).with_context(|| world.logs())?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// No session can have such a chain; the dry run reports the same.
#[test]
fn what_no_chain_can_be_is_refused() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, session) = busy(&world, &Plan::default())?;
    let ip = |at| world.ip(at);
    let many: Vec<String> = (1..=9).map(|last| format!("10.8.99.{last}")).collect();
    let table = [
        (many.join(","), "a chain has 8 hosts at most"),
        ([ip(At::Fw1), ip(At::Fw2), ip(At::Fw1)].join(","), "twice"),
        (ip(At::Client), "is an end of it"),
        ([ip(At::Fw1), "self".into()].join(","), "is an end of it"),
        ([ip(At::Fw1), ip(At::Server)].join(","), "is an end of it"),
    ];
    for (chain, word) in &table {
        for how in ["--wait", "--dry-run"] {
            let words = ["reconfigure", &session, "--chain", chain, how];
            let done = world.try_json(At::Client, &words)?;
            ended(&world, &done["changes"][0], "refused", word)?;
        }
    }
    // The same applies to a host that is to enter.
    world.update_chain(&session, &[At::Fw1])?;
    for (host, word) in [(At::Fw1, "twice"), (At::Client, "end"), (At::Server, "end")] {
        for how in ["--wait", "--dry-run"] {
            let words = ["insert-middlebox", &ip(host), "--session", &session, how];
            let done = world.try_json(At::Client, &words)?;
            ended(&world, &done["changes"][0], "refused", word)?;
        }
    }
    ensure!(world.chain_of(&session)? == json!([ip(At::Fw1)]));
    group.wait_progress(1 << 20).with_context(|| world.logs())?;
    all_intact(&group.finish()?)?;
    world.finish()
}
