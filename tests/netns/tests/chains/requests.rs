//! Any host of a session requests another chain, and a middlebox's host requests to leave it. The
//! host that opened the session carries out the request.

use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

fn busy(world: &Steered, count: usize) -> Result<(Group, Vec<String>)> {
    let plan = Plan {
        rate: (count > 1).then_some(2_000_000),
        ..Plan::default()
    };
    let group = world.open(count, &plan)?;
    group.run();
    group.wait_progress(200_000)?;
    let names = { group.locals() }
        .iter()
        .map(|local| world.name(*local))
        .collect();
    Ok((group, names))
}

fn asks(world: &Steered, at: At, words: &[&str]) -> Result<Vec<Value>> {
    let done = world.try_json(at, &[words, &["--wait"]].concat())?;
    let all = done["changes"].as_array().cloned();
    all.with_context(|| format!("{words:?}: {done:#}\n{}", world.logs()))
}

fn is_changed(world: &Steered, done: &[Value], count: usize) -> Result<()> {
    let changed = |c: &&Value| c["outcome"] == "changed";
    ensure!(
        done.len() == count && done.iter().filter(changed).count() == count,
        "{done:#?}\n{}",
        world.logs()
    );
    Ok(())
}

/// Checks that a dry run reports the change as possible.
fn is_changeable(world: &Steered, done: &[Value], count: usize) -> Result<()> {
    let changeable = |c: &&Value| c["outcome"] == "changeable";
    ensure!(
        done.len() == count && done.iter().filter(changeable).count() == count,
        "{done:#?}\n{}",
        world.logs()
    );
    Ok(())
}

/// Numbers of changes by outcome on this host: done, rolled back and refused.
fn ended(world: &Steered, at: At) -> Result<[u64; 3]> {
    let status = world.json(at, &["status"])?;
    let count = |end| status["counters"][format!("changes_{end}")].as_u64();
    let all = ["done", "rolled_back", "refused"].map(|end| count(end).context("a counter"));
    let [done, back, refused] = all;
    Ok([done?, back?, refused?])
}

/// Checks that exactly these additional changes are counted on this host.
fn counts(world: &Steered, at: At, before: [u64; 3], more: [u64; 3]) -> Result<()> {
    let now = ended(world, at)?;
    let expected: [u64; 3] = std::array::from_fn(|end| before[end] + more[end]);
    ensure!(now == expected, "{now:?} and not {expected:?}");
    Ok(())
}

/// A middlebox's host leaves all its sessions by one command. A dry run announces it, and changes
/// nothing.
fn leaves(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let (group, names) = busy(&world, 8)?;
    for name in &names {
        world.update_chain(name, &[At::Fw1, At::Fw2])?;
    }
    let words = ["reconfigure", "--through", "self", "--without", "self"];
    let tried = asks(&world, At::Fw2, &[&words[..], &["--dry-run"]].concat())?;
    is_changeable(&world, &tried, 8)?;
    world.wait_only_through(&[At::Fw1, At::Fw2])?;
    for session in world.sessions(At::Client)? {
        let said = session["removable"].to_string();
        ensure!(said.contains("change its chain from here"), "{session:#}");
    }
    let done = asks(&world, At::Fw2, &words)?;
    is_changed(&world, &done, 8)?;
    let both = [At::Fw1, At::Fw2].map(|at| world.ip(at));
    for change in &done {
        ensure!(
            change["before"] == json!(both) && change["after"] == json!(both[..1]),
            "{change:#}"
        );
    }
    world.wait_only_through(&[At::Fw1])?;
    world.wait_forgotten(At::Fw2)?;
    // No proxy was involved.
    for session in world.sessions(At::Fw2)? {
        let said = session["removable"].to_string();
        ensure!(
            said.contains("the session has left this host"),
            "{session:#}"
        );
    }
    is_changed(&world, &asks(&world, At::Fw1, &words)?, 8)?;
    world.wait_only_through(&[])?;
    world.wait_forgotten_but_own(At::Fw1)?;
    for fw in At::FIREWALLS {
        ensure!(world.refused(fw)? == 0, "{}", world.logs());
    }
    // There is no session left to leave.
    is_changed(&world, &asks(&world, At::Fw1, &words)?, 0)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_middlebox_asks_to_leave() -> Result<()> {
    leaves(Family::V4)
}

#[test]
fn a_middlebox_asks_to_leave_v6() -> Result<()> {
    leaves(Family::V6)
}

/// Only sessions that match a filter are changed.
#[test]
fn a_filter_says_which_sessions() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 4)?;
    let fw = world.ip(At::Fw1);
    let port = format!("port={}", group.locals()[2].port());
    let chains = |world: &Steered| -> Result<Vec<Value>> {
        let each = names.iter().map(|name| world.chain_of(name));
        each.collect()
    };
    let (with, without) = (json!([fw]), json!([]));
    let one = [&without, &without, &with, &without].map(Value::clone);

    let insert = |filter: &str| {
        let words = ["insert-middlebox", &fw, "--filter", filter];
        asks(&world, At::Client, &words)
    };
    is_changed(&world, &insert("port=1")?, 0)?;
    is_changed(&world, &insert(&format!("host=10.8.9.9,{port}"))?, 0)?;
    let done = insert(&format!("host={},{port}", world.ip(At::Server)))?;
    is_changed(&world, &done, 1)?;
    ensure!(chains(&world)? == one, "{:?}", chains(&world)?);
    // These sessions have no chain yet.
    is_changed(&world, &insert("state=tracked")?, 3)?;
    ensure!(chains(&world)? == vec![with; 4], "{:?}", chains(&world)?);
    let words = ["reconfigure", "--filter", &port, "--chain", ""];
    is_changed(&world, &asks(&world, At::Client, &words)?, 1)?;
    ensure!(world.chain_of(&names[2])? == without);
    let words = ["remove-middlebox", &fw, "--filter", "port=1", "--wait"];
    let ran = world.try_ctl(At::Client, &words)?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure!(chains(&world)?[0] == json!([fw]), "it has left: {ran:?}");
    let port = format!("port={}", group.locals()[0].port());
    let words = ["remove-middlebox", &fw, "--filter", &port, "--wait"];
    let ran = world.try_ctl(At::Client, &words)?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let rest = [&without, &json!([fw]), &without, &json!([fw])].map(Value::clone);
    ensure!(chains(&world)? == rest, "{:?}", chains(&world)?);
    let words = ["reconfigure", "--filter", "state=chained", "--without", &fw];
    is_changed(&world, &asks(&world, At::Client, &words)?, 2)?;
    ensure!(chains(&world)? == vec![without; 4], "{:?}", chains(&world)?);

    let words = ["insert-middlebox", &fw, "--filter", "colour=red", "--wait"];
    let ran = world.try_ctl(At::Client, &words)?;
    ensure!(
        ran.code == Some(2) && ran.stderr.contains("filters nothing"),
        "{ran:?}"
    );
    group.wait_progress(200_000)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A removal of the host reports the same on the host that opened the sessions, on the server's
/// host, and on the host itself.
#[test]
fn a_host_of_the_chain_is_removed() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 8)?;
    let [fw1, fw2] = At::FIREWALLS.map(|at| world.ip(at));
    let removes = |at, words: &[&str]| -> Result<(Vec<Value>, Value)> {
        let done = world.try_json(at, &[&["remove-middlebox"], words].concat())?;
        let all = done["removals"].as_array().cloned();
        let all = all.with_context(|| format!("{words:?}: {done:#}\n{}", world.logs()))?;
        let word = if done["dry_run"] == true {
            "removable"
        } else {
            "removed"
        };
        Ok((all, done["summary"][word].clone()))
    };
    for name in &names {
        world.update_chain(name, &[At::Fw1, At::Fw2])?;
    }
    // A dry run changes nothing, and a mode applies only to proxies.
    ensure!(removes(At::Client, &[&fw1, "--all", "--dry-run"])?.1 == 8);
    let (none, _) = removes(At::Fw1, &["self", "--all", "--mode", "bypass", "--wait"])?;
    ensure!(none.is_empty(), "{none:#?}");
    world.wait_only_through(&[At::Fw1, At::Fw2])?;
    let (one, removed) = removes(At::Client, &[&fw1, "--session", &names[0], "--wait"])?;
    ensure!(removed == 1, "{one:#?}\n{}", world.logs());
    ensure!(world.chain_of(&names[0])? == json!([fw2]));
    ensure!(world.chain_of(&names[1])? == json!([fw1, fw2]));
    let (rest, removed) = removes(At::Client, &[&fw1, "--all", "--wait"])?;
    ensure!(
        removed == 7 && rest.len() == 7,
        "{rest:#?}\n{}",
        world.logs()
    );
    world.wait_only_through(&[At::Fw2])?;

    let before = ended(&world, At::Server)?;
    let there = |at: usize| format!("{}:9000>{}", world.ip(At::Server), group.locals()[at]);
    let (one, removed) = removes(At::Server, &[&fw2, "--session", &there(0), "--wait"])?;
    ensure!(removed == 1, "{one:#?}\n{}", world.logs());
    ensure!(world.chain_of(&names[0])? == json!([]));
    let (gone, _) = removes(At::Server, &[&fw2, "--session", &there(0), "--wait"])?;
    ensure!(
        gone[0]["outcome"] == "refused",
        "it has left already: {gone:#?}"
    );
    // Requests of the server's host are counted there once, although it is an anchor.
    counts(&world, At::Server, before, [1, 0, 1])?;
    let before = ended(&world, At::Fw2)?;
    let (rest, removed) = removes(At::Fw2, &["self", "--all", "--wait"])?;
    ensure!(
        removed == 7 && rest.len() == 7,
        "{rest:#?}\n{}",
        world.logs()
    );
    counts(&world, At::Fw2, before, [7, 0, 0])?;
    world.wait_only_through(&[])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// An unknown host was probably misspelt: the command must not report that all have left it.
#[test]
fn a_host_that_nobody_knows_is_reported() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let [fw1, fw2] = At::FIREWALLS.map(|at| world.ip(at));
    let (group, names) = busy(&world, 1)?;
    world.update_chain(&names[0], &[At::Fw1])?;
    let nobody = "10.99.0.9";
    for words in [
        &["replace-middlebox", nobody, "--with", &fw2][..],
        &["reconfigure", "--through", nobody, "--chain", &fw2],
        &["reconfigure", "--without", nobody, "--all"],
    ] {
        let ran = world.try_ctl(At::Client, words)?;
        ensure!(ran.code == Some(5), "{words:?}: {ran:?}");
        ensure!(ran.stderr.contains(nobody), "{words:?}: {ran:?}");
    }
    // This host is known, and no session passes it.
    world.update_chain(&names[0], &[])?;
    let words = ["replace-middlebox", &fw1, "--with", &fw2];
    let ran = world.try_ctl(At::Client, &words)?;
    ensure!(ran.code == Some(0), "{ran:?}");
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Without a selection the command applies to all sessions that pass the host, as with `--all`.
#[test]
fn a_middlebox_has_itself_replaced() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 4)?;
    for name in &names {
        world.update_chain(name, &[At::Fw1])?;
    }
    let other = world.ip(At::Fw2);
    let words = ["replace-middlebox", "self", "--with", &other];
    for (which, meant) in [
        (&["--all"][..], 4),
        (&["--filter", "port=9000"], 4),
        (&["--filter", "port=9"], 0),
    ] {
        let dry = [&words[..], which, &["--dry-run"]].concat();
        let changes = asks(&world, At::Fw1, &dry)?;
        ensure!(changes.len() == meant, "{which:?}: {changes:#?}");
    }
    is_changed(&world, &asks(&world, At::Fw1, &words)?, 4)?;
    world.wait_only_through(&[At::Fw2])?;
    // On the host that opened the sessions a filter selects those for which the change is possible,
    // as `--all` does.
    let [fw1, fw2] = At::FIREWALLS.map(|at| world.ip(at));
    world.update_chain(&names[0], &[At::Fw1, At::Fw2])?;
    for (words, meant) in [
        (&["insert-middlebox", &fw1][..], 3),
        (&["reconfigure", "--without", &fw1], 1),
        (&["reconfigure", "--chain", &fw2], 1),
    ] {
        for which in [&["--all"][..], &["--filter", "port=9000"]] {
            let changes = asks(&world, At::Client, &[words, which, &["--dry-run"]].concat())?;
            is_changeable(&world, &changes, meant)?;
        }
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The server's host requests that one firewall replaces another, with its state.
#[test]
fn the_servers_host_asks() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 1)?;
    let client = group.locals()[0];
    let name = format!("{}:9000>{client}", world.ip(At::Server));
    let [fw1, fw2] = At::FIREWALLS.map(|at| world.ip(at));
    let done = asks(&world, At::Server, &["reconfigure", &name, "--chain", &fw1])?;
    is_changed(&world, &done, 1)?;
    world.wait_only_through(&[At::Fw1])?;
    world.lets_in_the_known(At::Fw2)?;
    let words = [
        "replace-middlebox",
        &fw1,
        "--with",
        &fw2,
        "--session",
        &name,
        "--state",
        "conntrack",
    ];
    is_changed(&world, &asks(&world, At::Server, &words)?, 1)?;
    world.wait_only_through(&[At::Fw2])?;
    ensure!(world.chain_of(&names[0])? == json!([fw2]));
    // Impossible requests are refused with the reason of the deciding host.
    let own = world.ip(At::Server);
    let refused = asks(&world, At::Server, &["reconfigure", &name, "--chain", &own])?;
    ensure!(
        refused[0]["outcome"] == "refused"
            && refused[0]["reason"].to_string().contains("is an end"),
        "{refused:#?}"
    );
    for at in [At::Client, At::Server] {
        counts(&world, at, [0; 3], [2, 0, 1])?;
    }
    let counters = &world.json(At::Client, &["status"])?["counters"];
    ensure!(
        counters["changes_not_done_no_such_chain"] == 1,
        "{counters:#}"
    );
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Never do both succeed as rivals, and never does neither succeed.
#[test]
fn two_hosts_ask_at_once() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 1)?;
    let client = group.locals()[0];
    let there = format!("{}:9000>{client}", world.ip(At::Server));
    for _ in 0..4 {
        let done = std::thread::scope(|scope| {
            let ask = |at, name, chain: At| {
                let (world, chain) = (&world, world.ip(chain));
                scope.spawn(move || asks(world, at, &["reconfigure", name, "--chain", &chain]))
            };
            let both = [
                ask(At::Client, &names[0], At::Fw1),
                ask(At::Server, &there, At::Fw2),
            ];
            both.map(|one| {
                one.join()
                    .unwrap_or_else(|_| anyhow::bail!("a thread panicked"))
            })
        });
        let [one, two] = done;
        let all = [one?, two?].concat();
        let won: Vec<_> = all.iter().filter(|c| c["outcome"] == "changed").collect();
        // Both may succeed in sequence: then the chain is the later one's.
        let now = world.chain_of(&names[0])?;
        ensure!(
            (1..=2).contains(&won.len()) && won.iter().any(|c| c["after"] == now),
            "{now}: {all:#?}\n{}",
            world.logs()
        );
        group.wait_progress(1 << 20)?;
        world.update_chain(&names[0], &[])?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The deciding host is down: the reason names it, and nothing has changed.
#[test]
fn nobody_answers() -> Result<()> {
    let mut world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 1)?;
    world.update_chain(&names[0], &[At::Fw1])?;
    world.kill(At::Client)?;
    let words = ["reconfigure", "--through", "self", "--without", "self"];
    let done = asks(&world, At::Fw1, &words)?;
    let client = world.ip(At::Client);
    ensure!(
        done[0]["outcome"] == "refused"
            && done[0]["timed_out"] == true
            && done[0]["reason"]
                .to_string()
                .contains(&format!("no answer of {client}")),
        "{done:#?}"
    );
    world.restart(At::Client)?;
    wait::until("the middlebox to leave", PATIENCE, || {
        let done = asks(&world, At::Fw1, &words).ok()?;
        (done[0]["outcome"] == "changed").then_some(())
    })?;
    world.wait_only_through(&[])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The daemon of the deciding host dies in the middle: the requesting host is notified, and asks
/// again.
#[test]
fn the_host_that_decides_dies() -> Result<()> {
    let mut world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 1)?;
    world.update_chain(&names[0], &[At::Fw1])?;
    world.set_faults(At::Client, "die:Switched")?;
    let words = ["reconfigure", "--through", "self", "--without", "self"];
    // The command has no --wait, because the daemon that is to answer dies.
    world.ctl(At::Fw1, &words)?;
    world.wait_dead(At::Client)?;
    world.set_faults(At::Client, "")?;
    world.restart(At::Client)?;
    group.wait_progress(1 << 20)?;
    wait::until("the middlebox to leave", PATIENCE, || {
        let done = asks(&world, At::Fw1, &words).ok()?;
        (done[0]["outcome"] == "changed").then_some(())
    })
    .with_context(|| world.logs())?;
    world.wait_only_through(&[])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A host that was to enter does not answer: the requester is notified that it was a time-out.
#[test]
fn a_host_that_does_not_answer_is_distinguished() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let (group, names) = busy(&world, 1)?;
    world.update_chain(&names[0], &[At::Fw1])?;
    let fw2 = world.ip(At::Fw2);
    let words = ["replace-middlebox", "self", "--with", &fw2, "--wait"];
    world.set_faults(At::Fw2, "lose:Enlisted")?;
    for at in [At::Fw1, At::Client] {
        let words = match at {
            At::Fw1 => &words[..],
            _ => &[
                "replace-middlebox",
                &world.ip(At::Fw1),
                "--with",
                &fw2,
                "--wait",
            ],
        };
        let ran = world.try_ctl(at, words)?;
        ensure!(ran.code == Some(6), "{at:?}: {ran:?}");
        ensure!(ran.stdout.contains(&fw2), "{at:?}: {ran:?}");
    }
    world.wait_only_through(&[At::Fw1])?;
    all_intact(&group.finish()?)?;
    world.finish()
}
