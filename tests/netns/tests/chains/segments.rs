//! Two segments of one session's chain change at the same time, while data flows in both
//! directions. Each segment has its own anchors, of which one is the host between the segments.

use std::time::Duration;

use crate::steered::policy::rule;
use crate::steered::{At, Steered};
use anyhow::{Context, Result, anyhow, ensure};
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// Opens a session that passes three firewalls and is busy in both directions. Returns the session
/// and its name.
fn through_three(world: &Steered) -> Result<(Group, String)> {
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(world, &group)?;
    let session = world.name(group.locals()[0]);
    world.update_chain(&session, &[At::Fw1, At::Fw2, At::Fw3])?;
    get_on(world, &group)?;
    Ok((group, session))
}

/// Waits until both ends have received data.
fn get_on(world: &Steered, group: &Group) -> Result<()> {
    group.wait_progress(1 << 20).with_context(|| world.logs())
}

/// Change of one host of the chain.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Without(At),
    Replace(At, At),
    Insert(At),
    Become(&'static [At]),
}

fn words(world: &Steered, session: &str, what: Ask) -> Vec<String> {
    let ip = |at| world.ip(at);
    match what {
        Ask::Without(at) => vec![
            "reconfigure".into(),
            session.into(),
            "--without".into(),
            ip(at),
        ],
        Ask::Replace(old, new) => {
            let words = [
                "replace-middlebox",
                &ip(old),
                "--with",
                &ip(new),
                "--session",
                session,
            ];
            words.map(str::to_owned).to_vec()
        }
        Ask::Insert(at) => {
            let words = ["insert-middlebox", &ip(at), "--session", session];
            words.map(str::to_owned).to_vec()
        }
        Ask::Become(chain) => {
            let hosts: Vec<_> = chain.iter().map(|at| ip(*at)).collect();
            let hosts = hosts.join(",");
            vec![
                "reconfigure".into(),
                session.into(),
                "--chain".into(),
                hosts,
            ]
        }
    }
}

/// Makes a request, and waits for its end.
fn ask(world: &Steered, session: &str, what: Ask) -> Result<Value> {
    let words = words(world, session, what);
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--wait"]).collect();
    let done = world.try_json(At::Client, &words)?;
    Ok(done["changes"][0].clone())
}

/// Two operators make requests at the same time.
fn at_once(world: &Steered, session: &str, asked: [Ask; 2]) -> Result<[Value; 2]> {
    let done = std::thread::scope(|scope| {
        let asked = asked.map(|what| scope.spawn(move || ask(world, session, what)));
        asked.map(|one| one.join().map_err(|_| anyhow!("a thread panicked")))
    });
    let [one, two] = done;
    Ok([one??, two??])
}

fn both_win(world: &Steered, session: &str, asked: [Ask; 2], chain: &[At]) -> Result<()> {
    for done in at_once(world, session, asked)? {
        ensure!(
            done["outcome"] == "changed",
            "{asked:?}: {done:#}\n{}",
            world.logs()
        );
    }
    has(world, session, chain)
}

/// There are more sessions than may change at the same time. Those that wait for their turn find a
/// chain that the other request has changed in another place.
#[test]
fn two_requests_for_many_sessions_both_win() -> Result<()> {
    const CHAIN: [At; 3] = [At::Fw1, At::Fw2, At::Fw3];
    const SESSIONS: usize = 48;
    let world = Steered::four_with_policy(Family::V4, &rule(Family::V4, &CHAIN))?;
    world.wait_neighbours(&CHAIN)?;
    let group = world.open(SESSIONS, &Plan::gentle())?;
    group.run();
    get_on(&world, &group)?;
    let [fw1, fw3, fw4] = [At::Fw1, At::Fw3, At::Fw4].map(|at| world.ip(at));
    let asked = [
        &["replace-middlebox", &fw1, "--with", &fw4, "--all", "--wait"][..],
        &["reconfigure", "--all", "--without", &fw3, "--wait"],
    ];
    let done = std::thread::scope(|scope| {
        let asked = asked.map(|words| scope.spawn(|| world.try_json(At::Client, words)));
        asked.map(|one| one.join().map_err(|_| anyhow!("a thread panicked")))
    });
    for done in done {
        let done = done??;
        let changes = done["changes"].as_array().context("no changes")?;
        let others: Vec<_> = changes
            .iter()
            .filter(|c| c["outcome"] != "changed")
            .collect();
        ensure!(
            changes.len() == SESSIONS && others.is_empty(),
            "{others:#?}\n{}",
            world.logs()
        );
    }
    world.wait_only_through(&[At::Fw4, At::Fw2])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Checks that the session has this chain, and that all data takes it.
fn has(world: &Steered, session: &str, chain: &[At]) -> Result<()> {
    let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
    let now = world.chain_of(session)?;
    ensure!(
        now == json!(hosts),
        "{now}, not {hosts:?}\n{}",
        world.logs()
    );
    world.wait_only_through(chain).with_context(|| world.logs())
}

/// Checks that no firewall has seen an unknown packet, and that hosts outside the chain have
/// forgotten the session.
fn nothing_amiss(world: &Steered, chain: &[At]) -> Result<()> {
    nothing_more(world, chain, &[])
}

/// The same check, if firewalls have already refused this number of packets.
fn nothing_more(world: &Steered, chain: &[At], before: &[(At, u64)]) -> Result<()> {
    for fw in world.firewalls() {
        let refused = world.refused(fw)?;
        let known = before.iter().find(|(at, _)| *at == fw);
        let known = known.map_or(0, |(_, packets)| *packets);
        ensure!(
            refused == known,
            "{fw:?} refused {refused}\n{}",
            world.logs()
        );
        if !chain.contains(&fw) {
            world.wait_forgotten_but_own(fw)?;
        }
    }
    Ok(())
}

/// Both sides of the host between the segments change, in all ways.
fn beside_each_other(family: Family) -> Result<()> {
    let world = Steered::of_four(family)?;
    let (group, session) = through_three(&world)?;
    let rounds: [([Ask; 2], &[At]); 4] = [
        (
            [Ask::Replace(At::Fw1, At::Fw4), Ask::Without(At::Fw3)],
            &[At::Fw4, At::Fw2],
        ),
        (
            [Ask::Without(At::Fw4), Ask::Insert(At::Fw3)],
            &[At::Fw2, At::Fw3],
        ),
        (
            [Ask::Replace(At::Fw2, At::Fw1), Ask::Insert(At::Fw4)],
            &[At::Fw1, At::Fw3, At::Fw4],
        ),
        (
            [Ask::Without(At::Fw1), Ask::Replace(At::Fw4, At::Fw2)],
            &[At::Fw3, At::Fw2],
        ),
    ];
    for (asked, chain) in rounds {
        both_win(&world, &session, asked, chain)?;
        get_on(&world, &group)?;
        nothing_amiss(&world, chain)?;
    }
    // A former anchor may leave, and enter again.
    world.update_chain(&session, &[])?;
    nothing_amiss(&world, &[])?;
    world.update_chain(&session, &[At::Fw3, At::Fw2])?;
    has(&world, &session, &[At::Fw3, At::Fw2])?;
    get_on(&world, &group)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn two_segments_change_at_once() -> Result<()> {
    beside_each_other(Family::V4)
}

#[test]
fn two_segments_change_at_once_v6() -> Result<()> {
    beside_each_other(Family::V6)
}

/// One change is held at each of its steps on the server's host, and the other succeeds in the
/// meantime.
#[test]
fn one_does_not_wait_for_the_other() -> Result<()> {
    let world = Steered::of_four(Family::V4)?;
    let (group, session) = through_three(&world)?;
    for message in ["Extended", "Switched", "Settled", "DoneAck"] {
        world.set_faults(At::Server, &format!("lose:{message}"))?;
        let done = std::thread::scope(|scope| {
            let slow = scope.spawn(|| ask(&world, &session, Ask::Replace(At::Fw3, At::Fw4)));
            let quick =
                wait_held(&world).and_then(|()| ask(&world, &session, Ask::Without(At::Fw1)));
            let waits = !slow.is_finished();
            let cleared = world.set_faults(At::Server, "");
            let slow = slow.join().map_err(|_| anyhow!("a thread panicked"))?;
            cleared
                .and_then(|()| Ok([quick?, slow?, json!({"outcome": "changed", "waits": waits})]))
        })?;
        ensure!(
            done.iter().all(|d| d["outcome"] == "changed") && done[2]["waits"] == true,
            "{message}: {done:#?}\n{}",
            world.logs()
        );
        has(&world, &session, &[At::Fw2, At::Fw4])?;
        get_on(&world, &group)?;
        nothing_amiss(&world, &[At::Fw2, At::Fw4])?;
        world.update_chain(&session, &[At::Fw1, At::Fw2, At::Fw3])?;
        get_on(&world, &group)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Waits until a change is in progress.
fn wait_held(world: &Steered) -> Result<()> {
    wait::until("a change to be under way", PATIENCE, || {
        let status = world.json(At::Client, &["status"]).ok()?;
        (status["counters"]["changes_under_way"] != json!(0)).then_some(())
    })
}

/// One change is rolled back after its path has carried the session for seconds, which the
/// firewalls on the old path have not seen. The other change succeeds in the meantime.
#[test]
fn one_is_taken_back_when_the_other_is_done() -> Result<()> {
    let world = Steered::of_four(Family::V4)?;
    let (group, session) = through_three(&world)?;
    world.set_faults(At::Server, "lose:Switched")?;
    let done = std::thread::scope(|scope| {
        let slow = scope.spawn(|| ask(&world, &session, Ask::Replace(At::Fw3, At::Fw4)));
        let quick = wait_held(&world).and_then(|()| ask(&world, &session, Ask::Without(At::Fw1)));
        let slow = slow.join().map_err(|_| anyhow!("a thread panicked"))?;
        anyhow::Ok([quick?, slow?])
    })?;
    world.set_faults(At::Server, "")?;
    let said = done.each_ref().map(|d| &d["outcome"]);
    ensure!(
        said == ["changed", "rolled_back"],
        "{done:#?}\n{}",
        world.logs()
    );
    // These packets were in flight when the session went back, before both ends had shown how far
    // they had sent.
    has(&world, &session, &[At::Fw2, At::Fw3])?;
    get_on(&world, &group)?;
    let known = [(At::Fw3, world.refused(At::Fw3)?)];
    // The anchor of both changes has joined the remaining paths: it may stay.
    for chain in [&[At::Fw1, At::Fw2][..], &[At::Fw2, At::Fw4], &[]] {
        world.update_chain(&session, chain)?;
        has(&world, &session, chain)?;
        get_on(&world, &group)?;
        nothing_more(&world, chain, &known)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A change that shares a hop with a change in progress is refused, and the change in progress
/// succeeds.
#[test]
fn overlapping_ones_are_refused() -> Result<()> {
    let world = Steered::of_four(Family::V4)?;
    let (group, session) = through_three(&world)?;
    let rivals = [
        Ask::Become(&[]),
        Ask::Become(&[At::Fw1, At::Fw4, At::Fw3]),
        Ask::Without(At::Fw3),
        Ask::Insert(At::Fw4),
        // The right anchor of this change would be the host that leaves.
        Ask::Without(At::Fw2),
    ];
    world.set_faults(At::Server, "lose:DoneAck")?;
    let (won, refused) = std::thread::scope(|scope| {
        let slow = scope.spawn(|| ask(&world, &session, Ask::Without(At::Fw3)));
        // The chain is recorded without the host from the time when the change can no longer be
        // rolled back.
        let refused = wait_held(&world).map(|()| rivals.map(|rival| ask(&world, &session, rival)));
        let cleared = world.set_faults(At::Server, "");
        let slow = slow.join().map_err(|_| anyhow!("a thread panicked"));
        cleared.and_then(|()| anyhow::Ok((slow??, refused?)))
    })?;
    ensure!(won["outcome"] == "changed", "{won:#}\n{}", world.logs());
    for (rival, said) in rivals.iter().zip(refused) {
        let said = said?;
        ensure!(said["outcome"] == "refused", "{rival:?}: {said:#}");
    }
    has(&world, &session, &[At::Fw1, At::Fw2])?;
    get_on(&world, &group)?;
    nothing_amiss(&world, &[At::Fw1, At::Fw2])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The daemon of the host between the segments dies in the middle of both changes, and any other
/// daemon in the middle of one. Data continues to flow, and once the daemon runs again both ends
/// agree.
#[test]
fn a_daemon_dies_in_the_middle_of_both() -> Result<()> {
    let deaths = [
        (At::Fw2, "die:Hold"),
        (At::Fw2, "die:Hold:2"),
        (At::Fw2, "die:Opened"),
        (At::Fw2, "die:Cut"),
        (At::Fw2, "die:Cut:2"),
        (At::Fw2, "die:Switched"),
        (At::Fw2, "die:Settled"),
        (At::Fw2, "die:Settled:2"),
        (At::Fw2, "die:Complete"),
        (At::Client, "die:Cut"),
        (At::Client, "die:Splice"),
        (At::Client, "die:Splice:2"),
        (At::Server, "die:Cut"),
        (At::Server, "die:Settled"),
    ];
    let mut world = Steered::of_four(Family::V4)?;
    // Some of these changes are rolled back after both anchors have used the new path. Strict
    // firewalls of the old path drop acknowledgements of data that they have not seen.
    for fw in world.firewalls() {
        let liberal = "net.netfilter.nf_conntrack_tcp_be_liberal";
        world.host(fw).sysctl(liberal, "1")?;
    }
    let (group, session) = through_three(&world)?;
    for (at, fault) in deaths {
        world.set_faults(at, fault)?;
        for what in [Ask::Without(At::Fw1), Ask::Replace(At::Fw3, At::Fw4)] {
            // The daemon that serves the command may die.
            let words = words(&world, &session, what);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            world.try_ctl(At::Client, &words)?;
        }
        world.wait_dead(at).with_context(|| fault.to_owned())?;
        get_on(&world, &group).with_context(|| fault.to_owned())?;
        world.set_faults(at, "")?;
        world.restart(at)?;
        get_on(&world, &group).with_context(|| fault.to_owned())?;
        // The change in progress ends, and all agree: then the session can be given a chain.
        wait::until("the session to be free", PATIENCE, || {
            let done = world.reconfigure(&session, &[], &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", world.logs()))?;
        nothing_amiss(&world, &[]).with_context(|| fault.to_owned())?;
        // A host that was down is refused until another message of it has arrived.
        wait::until("all hosts to answer", PATIENCE, || {
            let chain = [At::Fw1, At::Fw2, At::Fw3];
            let done = world.reconfigure(&session, &chain, &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", world.logs()))?;
        get_on(&world, &group).with_context(|| fault.to_owned())?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A rule gave the session its chain, with its first packet.
#[test]
fn a_session_of_a_rule_has_segments_too() -> Result<()> {
    let chain = [At::Fw1, At::Fw2, At::Fw3].map(|at| at.address(Family::V4).to_string());
    let server = At::Server.address(Family::V4);
    let rule = format!("[[rule]]\nname = \"all\"\ndestination = \"{server}\"\nchain = {chain:?}\n");
    let world = Steered::four_with_policy(Family::V4, &rule)?;
    // Each host has two addresses.
    for (at, least) in [(At::Client, 6), (At::Fw1, 4), (At::Fw2, 4), (At::Fw3, 4)] {
        wait::until("neighbours to have keys", PATIENCE, || {
            let status = world.json(at, &["status"]).ok()?;
            let now = status["counters"]["chain_neighbours"].as_u64()?;
            (now >= least).then_some(())
        })
        .with_context(|| world.logs())?;
    }
    let group = world.open(1, &Plan::gentle())?;
    let session = world.name(group.locals()[0]);
    group.run();
    get_on(&world, &group)?;
    has(&world, &session, &[At::Fw1, At::Fw2, At::Fw3])?;
    let asked = [Ask::Without(At::Fw1), Ask::Replace(At::Fw3, At::Fw4)];
    both_win(&world, &session, asked, &[At::Fw2, At::Fw4])?;
    get_on(&world, &group)?;
    nothing_amiss(&world, &[At::Fw2, At::Fw4])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The session ends, or is reset, while both segments change. Nothing remains in progress.
#[test]
fn it_may_end_in_the_middle_of_both() -> Result<()> {
    let world = Steered::of_four(Family::V4)?;
    for close in [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Reset(Side::Client),
    ] {
        for message in ["Extended", "Settled"] {
            let plan = Plan {
                close,
                ..Plan::default()
            };
            let group = world.open(1, &plan)?;
            group.run();
            get_on(&world, &group)?;
            let session = world.name(group.locals()[0]);
            world.update_chain(&session, &[At::Fw1, At::Fw2, At::Fw3])?;
            // The messages of the host between the segments and of the server's host are lost, so
            // that neither change succeeds.
            for at in [At::Fw2, At::Server] {
                world.set_faults(at, &format!("lose:{message}"))?;
            }
            for what in [Ask::Without(At::Fw1), Ask::Replace(At::Fw3, At::Fw4)] {
                let words = words(&world, &session, what);
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                world.try_ctl(At::Client, &words)?;
            }
            wait_held(&world)?;
            let done = group.finish()?;
            for at in [At::Fw2, At::Server] {
                world.set_faults(at, "")?;
            }
            if close != Close::Reset(Side::Client) {
                all_intact(&done)?;
            }
            wait::until("the changes to end", PATIENCE, || {
                let ended = |at: &At| {
                    let status = world.json(*at, &["status"]).ok()?;
                    Some(status["counters"]["changes_under_way"] == json!(0))
                };
                At::FOUR
                    .iter()
                    .all(|at| ended(at) == Some(true))
                    .then_some(())
            })
            .with_context(|| format!("{close:?} {message}\n{}", world.logs()))?;
        }
    }
    world.finish()
}
