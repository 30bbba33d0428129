//! Live sessions get other chains while data flows in both directions, through firewalls that drop
//! every packet without an opening that they have seen.

use std::time::Duration;

use crate::steered::policy::rule;
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

fn names(world: &Steered, group: &Group) -> Vec<String> {
    group.locals().iter().map(|l| world.name(*l)).collect()
}

/// Waits until each end of each session has received this many more bytes.
fn get_on(world: &Steered, group: &Group, bytes: u64) -> Result<()> {
    group.wait_progress(bytes).with_context(|| world.logs())
}

/// A firewall enters a busy session that had no chain.
fn insert(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let group = world.open(1, &Plan::default())?;
    group.run();
    get_on(&world, &group, 4 << 20)?;
    let session = &names(&world, &group)[0];
    world.update_chain(session, &[At::Fw1])?;
    world.wait_only_through(&[At::Fw1])?;
    get_on(&world, &group, 16 << 20)?;
    ensure!(
        world.refused(At::Fw1)? == 0,
        "{} refused",
        world.refused(At::Fw1)?
    );
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_strict_firewall_comes_into_a_busy_session() -> Result<()> {
    insert(Family::V4)
}

#[test]
fn a_strict_firewall_comes_into_a_busy_session_v6() -> Result<()> {
    insert(Family::V6)
}

/// A firewall enters, leaves, and enters again. Nothing remains on hosts that the session has left.
fn to_and_fro(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(&world, &group, 4 << 20)?;
    let session = &names(&world, &group)[0];
    let chains = [&[At::Fw1][..], &[At::Fw2], &[], &[At::Fw2, At::Fw1], &[]];
    for chain in chains {
        world.update_chain(session, chain)?;
        let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
        ensure!(world.chain_of(session)? == json!(hosts));
        world.wait_only_through(chain)?;
        get_on(&world, &group, 4 << 20)?;
    }
    for fw in At::FIREWALLS {
        world.wait_forgotten(fw)?;
        ensure!(world.refused(fw)? == 0, "{fw:?}: {}", world.refused(fw)?);
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn chains_follow_each_other() -> Result<()> {
    to_and_fro(Family::V4)
}

#[test]
fn chains_follow_each_other_v6() -> Result<()> {
    to_and_fro(Family::V6)
}

/// The entry of connection tracking is a different one, and the state of the old one is kept.
#[test]
fn a_firewall_takes_the_place_of_another_with_its_state() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(&world, &group, 4 << 20)?;
    let session = &names(&world, &group)[0];
    world.update_chain(session, &[At::Fw1])?;
    get_on(&world, &group, 4 << 20)?;
    // The other firewall would admit no session that it does not know.
    world.lets_in_the_known(At::Fw2)?;
    let refused = world.reconfigure(session, &[At::Fw2], &[])?;
    ensure!(refused["outcome"] == "rolled_back", "{refused:#}");
    get_on(&world, &group, 4 << 20)?;
    let before = world.refused(At::Fw2)?;
    world.replace_with_state(At::Fw1, At::Fw2)?;
    world.wait_only_through(&[At::Fw2])?;
    get_on(&world, &group, 16 << 20)?;
    world.wait_forgotten(At::Fw1)?;
    judges(&world, At::Fw2, session)?;
    get_on(&world, &group, 16 << 20)?;
    ensure!(world.refused(At::Fw1)? == 0 && world.refused(At::Fw2)? == before);
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Waits until a firewall's entry checks the windows of both ends, as any other does.
fn judges(world: &Steered, fw: At, session: &str) -> Result<()> {
    let mut listed = String::new();
    wait::until("the entry to judge", PATIENCE, || {
        listed = world.ctl(fw, &["state", "export", session]).ok()?;
        let documents: Value = serde_json::from_str(&listed).ok()?;
        let tcp = &documents[0]["state"]["tcp"];
        let strict = |end: &str| tcp[end]["liberal"] == json!(false);
        let settled = strict("original") && strict("reply") && tcp.get("unsettled").is_none();
        settled.then_some(())
    })
    .with_context(|| listed.clone())
}

/// Elements of sets stay where they are unless they are requested.
#[test]
fn only_state_of_the_named_kinds_moves() -> Result<()> {
    const SEEN: &str = "add set inet fw seen { type ipv4_addr . inet_service; flags dynamic, timeout; timeout 10m; }\n";
    const ADDS: &str =
        "insert rule inet fw forward ct state new add @seen { ip saddr . tcp sport }\n";
    let world = Steered::new(Family::V4)?;
    let rules = [(At::Fw1, [SEEN, ADDS].concat()), (At::Fw2, SEEN.to_owned())];
    for (fw, rules) in rules {
        world.host(fw).input("nft", &["-f", "-"], &rules)?;
    }
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(&world, &group, 1 << 20)?;
    let (local, session) = (group.locals()[0], &names(&world, &group)[0]);
    let element = format!("{} . {}", local.ip(), local.port());
    for (kinds, there) in [("conntrack", false), ("conntrack,set_element", true)] {
        world.update_chain(session, &[At::Fw1])?;
        get_on(&world, &group, 1 << 20)?;
        let done = world.replace_on(At::Client, At::Fw1, At::Fw2, kinds)?;
        ensure!(done["outcome"] == "changed", "{done:#}\n{}", world.logs());
        let words = ["list", "set", "inet", "fw", "seen"];
        let listed = world.host(At::Fw2).output("nft", &words)?;
        ensure!(listed.contains(&element) == there, "{kinds}: {listed}");
        get_on(&world, &group, 1 << 20)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A request for state requires it: without the state, the session stays on its path.
#[test]
fn a_host_without_the_named_state_is_not_replaced() -> Result<()> {
    const NONE: &str = "flush ruleset
table inet raw {
  chain pre {
    type filter hook prerouting priority -300
    notrack
  }
}\n";
    let world = Steered::new(Family::V4)?;
    world.host(At::Fw1).input("nft", &["-f", "-"], NONE)?;
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(&world, &group, 1 << 20)?;
    let session = &names(&world, &group)[0];
    world.update_chain(session, &[At::Fw1])?;
    get_on(&world, &group, 1 << 20)?;
    let done = world.replace_on(At::Client, At::Fw1, At::Fw2, "conntrack")?;
    let why = done["reason"].to_string();
    let told = why.contains("conntrack state") && why.contains("there is none");
    ensure!(done["outcome"] == "rolled_back" && told, "{done:#}");
    ensure!(world.chain_of(session)? == json!([world.ip(At::Fw1)]));
    get_on(&world, &group, 1 << 20)?;
    world.wait_forgotten(At::Fw2)?;
    world.update_chain(session, &[At::Fw2])?;
    get_on(&world, &group, 1 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

fn ten_changes(family: Family) -> Result<()> {
    let world = Steered::new(family)?;
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(&world, &group, 1 << 20)?;
    let session = &names(&world, &group)[0];
    for round in 0..10 {
        let chain = [&[At::Fw1][..], &[At::Fw2], &[]][round % 3];
        world.update_chain(session, chain)?;
        get_on(&world, &group, 1 << 20)?;
    }
    for fw in At::FIREWALLS {
        ensure!(world.refused(fw)? == 0, "{fw:?}: {}", world.refused(fw)?);
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn ten_changes_of_one_session() -> Result<()> {
    ten_changes(Family::V4)
}

#[test]
fn ten_changes_of_one_session_v6() -> Result<()> {
    ten_changes(Family::V6)
}

/// One firewall drops SYNs, and one host does not forward: the session stays on its path, and
/// nothing remains there.
#[test]
fn a_dead_path_is_not_taken() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(&world, &group, 1 << 20)?;
    let session = &names(&world, &group)[0];
    let rule = "insert rule inet fw forward tcp flags syn counter name dropped drop";
    world
        .host(At::Fw1)
        .output("nft", &rule.split(' ').collect::<Vec<_>>())?;
    let told = |done: &Value, word: &str| -> Result<()> {
        let reason = done["reason"].to_string();
        ensure!(
            done["outcome"] == "rolled_back" && reason.contains(word),
            "{done:#}"
        );
        Ok(())
    };
    told(
        &world.reconfigure(session, &[At::Fw1], &[])?,
        "no answer to a SYN",
    )?;
    world.host(At::Fw2).sysctl("net.ipv4.ip_forward", "0")?;
    told(
        &world.reconfigure(session, &[At::Fw2], &[])?,
        "net.ipv4.ip_forward",
    )?;
    group.wait_progress(4 << 20).with_context(|| world.logs())?;
    for fw in At::FIREWALLS {
        world.wait_forgotten(fw)?;
    }
    // The session is as free as before.
    world.host(At::Fw2).sysctl("net.ipv4.ip_forward", "1")?;
    world.update_chain(session, &[At::Fw2])?;
    get_on(&world, &group, 4 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_hundred_sessions_at_once() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let group = world.open(120, &Plan::default())?;
    group.run();
    get_on(&world, &group, 100_000)?;
    let fw = world.ip(At::Fw1);
    let done = world.json(At::Client, &["insert-middlebox", &fw, "--all", "--wait"])?;
    let changes = done["changes"].as_array().context("no changes")?;
    ensure!(changes.len() == 120);
    let other = changes.iter().find(|c| c["outcome"] != "changed");
    ensure!(other.is_none(), "{other:#?}\n{}", world.logs());
    world.wait_only_through(&[At::Fw1])?;
    get_on(&world, &group, 100_000)?;
    ensure!(
        world.refused(At::Fw1)? == 0,
        "in: {} {}",
        world.counted(At::Fw1, "dropped")?,
        world.counted(At::Fw1, "invalid")?
    );
    let words = ["reconfigure", "--through", &fw, "--chain", "", "--wait"];
    let done = world.json(At::Client, &words)?;
    let back = done["changes"].as_array().map_or(0, Vec::len);
    ensure!(back == 120, "{back}");
    world.wait_forgotten(At::Fw1)?;
    get_on(&world, &group, 100_000)?;
    ensure!(
        world.refused(At::Fw1)? == 0,
        "out: {} {}",
        world.counted(At::Fw1, "dropped")?,
        world.counted(At::Fw1, "invalid")?
    );
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Impossible requests are refused before anything changes, with the reason.
#[test]
fn what_cannot_be_is_refused() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    let session = &names(&world, &group)[0];
    let (fw, server) = (world.ip(At::Fw1), world.ip(At::Server));
    let dry = |chain: &str, word: &str, outcome: &str| -> Result<()> {
        let words = ["reconfigure", session, "--chain", chain, "--dry-run"];
        let done = world.try_json(At::Client, &words)?;
        let change = &done["changes"][0];
        let reason = change["reason"].to_string();
        ensure!(
            change["outcome"] == outcome && reason.contains(word),
            "{chain}: {done:#}"
        );
        Ok(())
    };
    dry(&fw, "", "changeable")?;
    dry("", "it has that chain", "refused")?;
    dry(&format!("{fw},{fw}"), "twice", "refused")?;
    dry(&server, "an end of it", "refused")?;
    dry("fd08:3::1", "address family", "refused")?;
    ensure!(
        world.chain_of(session)? == json!([]),
        "a dry run changed it"
    );
    // The other end's host asks, and receives the same answer.
    let local = group.locals()[0];
    let there = format!("{server}:{}>{local}", crate::steered::PORT);
    let ran = world.try_json(
        At::Server,
        &["reconfigure", &there, "--chain", "fd08:3::1", "--wait"],
    )?;
    let reason = ran["changes"][0]["reason"].to_string();
    ensure!(reason.contains("address family"), "{ran:#}");
    // No host answers at this address.
    let nobody = world.try_json(
        At::Client,
        &["reconfigure", session, "--chain", "10.8.4.77", "--wait"],
    )?;
    ensure!(
        nobody["changes"][0]["outcome"] == "rolled_back",
        "{nobody:#}"
    );
    get_on(&world, &group, 1 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Of two requests for other chains of one session, one succeeds.
#[test]
fn of_two_requests_one_wins() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let group = world.open(1, &Plan::gentle())?;
    group.run();
    get_on(&world, &group, 1 << 20)?;
    let session = &names(&world, &group)[0];
    let both = std::thread::scope(|scope| {
        let asked = At::FIREWALLS.map(|fw| {
            let world = &world;
            scope.spawn(move || world.reconfigure(session, &[fw], &[]))
        });
        asked.map(|asked| {
            asked
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))
        })
    });
    let both: Vec<Value> = both.into_iter().map(|one| one?).collect::<Result<_>>()?;
    let won: Vec<_> = both.iter().filter(|c| c["outcome"] == "changed").collect();
    // A request that begins after the other has ended is not a rival.
    let one = won.len() == 1;
    let both_in_turn = won.len() == 2
        && (won[0]["before"] == won[1]["after"] || won[1]["before"] == won[0]["after"]);
    ensure!(one || both_in_turn, "{both:#?}");
    get_on(&world, &group, 4 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Nothing remains of the sessions after they have ended.
#[test]
fn ends_are_seen() -> Result<()> {
    let world = Steered::new(Family::V4)?;
    let group = world.open(3, &Plan::default())?;
    group.run();
    get_on(&world, &group, 1 << 20)?;
    let fw = world.ip(At::Fw1);
    world.json(At::Client, &["insert-middlebox", &fw, "--all", "--wait"])?;
    all_intact(&group.finish()?)?;
    for at in [At::Client, At::Server] {
        wait::until("the end to be seen", PATIENCE, || {
            let text = world.ctl(at, &["sessions", "-o", "json"]).ok()?;
            let all: Value = serde_json::from_str(&text).ok()?;
            let ended = |s: &Value| s["history"].to_string().contains("has ended");
            let all = all.as_array()?;
            (!all.is_empty() && all.iter().all(ended)).then_some(())
        })?;
    }
    world.finish()
}

/// Rules of policies that are no longer in force gave the chains, and the daemon that read them is
/// dead.
#[test]
fn chains_of_rules_are_known_to_a_daemon_that_is_started_anew() -> Result<()> {
    let family = Family::V4;
    let [one, two] = At::FIREWALLS;
    let mut world = Steered::with_policy(family, &rule(family, &[one]))?;
    let mut opened = Vec::new();
    for chain in [&[one][..], &[two, one]] {
        world.apply_policy(&rule(family, chain))?;
        world.wait_neighbours(chain)?;
        let group = world.open(1, &Plan::gentle())?;
        group.run();
        get_on(&world, &group, 1 << 20)?;
        let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
        opened.push((names(&world, &group)[0].clone(), json!(hosts), group));
    }
    let known = |world: &Steered| -> Result<()> {
        for (session, chain, _) in &opened {
            let now = world.chain_of(session)?;
            ensure!(now == *chain, "{session}: {now}\n{}", world.logs());
        }
        Ok(())
    };
    known(&world)?;
    // The policy is written while the daemon runs, and while it does not. The second session's
    // chain comes from a policy that is still in force when its daemon dies.
    for text in ["", &rule(family, &[two]), ""] {
        world.kill(At::Client)?;
        world.write_policy(text)?;
        world.restart(At::Client)?;
        known(&world)?;
        world.apply_policy(&rule(family, &[]))?;
        known(&world)?;
    }

    let [fw1, fw2] = At::FIREWALLS.map(|fw| world.ip(fw));
    let changes = |words: &[&str]| -> Result<Vec<Value>> {
        let done = world.json(At::Client, words)?;
        let all = done["changes"].as_array().cloned().unwrap_or_default();
        let changed = all.iter().all(|c| c["outcome"] == "changed");
        ensure!(changed, "{done:#}\n{}", world.logs());
        Ok(all)
    };
    let through = |fw| ["reconfigure", "--through", fw, "--chain", "", "--wait"];
    let of_two = changes(&through(&fw2))?;
    ensure!(of_two.len() == 1 && of_two[0]["before"] == json!([fw2, fw1]));
    let replaced = changes(&["replace-middlebox", &fw1, "--with", &fw2, "--wait"])?;
    ensure!(replaced.len() == 1 && replaced[0]["before"] == json!([fw1]));
    changes(&through(&fw2))?;
    world.wait_only_through(&[])?;
    for fw in At::FIREWALLS {
        world.wait_forgotten(fw)?;
        ensure!(world.refused(fw)? == 0, "{fw:?}: {}", world.refused(fw)?);
    }
    for (_, _, group) in opened {
        get_on(&world, &group, 4 << 20)?;
        all_intact(&group.finish()?)?;
    }
    world.finish()
}
