//! A host of the chain translates addresses. Sessions nevertheless get other chains: with hosts
//! before it or after it, without it, and with it if they had none.

use crate::steered::policy::rule;
use crate::steered::ways::{busy, get_on};
use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Rules that translate sessions that pass a host to its own address, and to a port that none of
/// them has. The host's own packets are not translated.
const NAT: &str = "
table inet translate {
  chain post {
    type nat hook postrouting priority 100;
    iifname eth0 tcp dport 9000 masquerade to :20000-29999
  }
}
";

/// Builds four firewalls, of which `nats` translate, and a policy that leads sessions through
/// `chain` from their SYN on.
fn world(family: Family, nats: &[At], chain: &[At]) -> Result<Steered> {
    let policy = match chain {
        [] => String::new(),
        chain => rule(family, chain),
    };
    let world = Steered::four_with_policy(family, &policy)?;
    for nat in nats {
        world.host(*nat).input("nft", &["-f", "-"], NAT)?;
    }
    if !chain.is_empty() {
        world.wait_neighbours(chain)?;
    }
    Ok(world)
}

/// Returns the only session of a host, as the host lists it.
fn only(world: &Steered, at: At) -> Result<Value> {
    let all = world.sessions(at)?;
    ensure!(all.len() == 1, "{all:#?}\n{}", world.logs());
    Ok(all[0].clone())
}

/// Returns the client's address as the server sees it, and the original address that the server's
/// host knows.
fn client_of(world: &Steered) -> Result<(String, Value)> {
    let session = only(world, At::Server)?;
    let remote = session["remote"].as_str().unwrap_or_default().to_owned();
    Ok((remote, session["opened_as"]["remote"].clone()))
}

/// Checks that data takes the chain, that firewalls have seen nothing invalid, and that the other
/// hosts have forgotten the session.
fn is_on(world: &Steered, group: &Group, session: &str, chain: &[At]) -> Result<()> {
    let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
    ensure!(world.chain_of(session)? == json!(hosts), "{}", world.logs());
    world
        .wait_only_through(chain)
        .with_context(|| world.logs())?;
    get_on(world, group)?;
    for fw in world.firewalls() {
        let refused = world.refused(fw)?;
        ensure!(refused == 0, "{fw:?} refused {refused}\n{}", world.logs());
        if !chain.contains(&fw) {
            world.wait_forgotten_but_own(fw)?;
            forgotten_by_name(world, fw)?;
        }
    }
    Ok(())
}

/// Waits until the translated form of the session has been forgotten too.
fn forgotten_by_name(world: &Steered, fw: At) -> Result<()> {
    wait::until("what a NAT made of it to be forgotten", PATIENCE, || {
        let all = world.host(fw).output("conntrack", &["-L", "-p", "tcp"]);
        let all = all.ok()?;
        let ours = |l: &str| l.contains("dport=9000") && l.contains(" ESTABLISHED ");
        let own = format!(" src={} ", world.ip(fw));
        (!all.lines().any(|l| ours(l) && !l.contains(&own))).then_some(())
    })
    .with_context(|| world.logs())
}

fn takes(world: &Steered, group: &Group, session: &str, chain: &[At]) -> Result<()> {
    world.update_chain(session, chain)?;
    is_on(world, group, session, chain).with_context(|| format!("{chain:?}"))
}

/// Others enter before the NAT and after it; the NAT leaves, and enters again.
fn around(family: Family) -> Result<()> {
    let world = world(family, &[At::Fw1], &[At::Fw1])?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let known = client_of(&world)?;
    let opener = group.locals()[0].to_string();
    ensure!(
        known.0.starts_with(&host(&world, At::Fw1)) && known.1 == json!(opener),
        "{known:?}"
    );
    let chains: [&[At]; 8] = [
        &[At::Fw1, At::Fw2],
        &[At::Fw3, At::Fw1, At::Fw2],
        &[At::Fw3, At::Fw1],
        &[At::Fw3],
        &[],
        &[At::Fw1],
        &[At::Fw1, At::Fw4],
        &[At::Fw2, At::Fw3],
    ];
    for chain in chains {
        takes(&world, &group, &session, chain)?;
        ensure!(client_of(&world)? == known, "{chain:?}: another client");
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Returns the beginning of an address with a port.
fn host(world: &Steered, at: At) -> String {
    match world.family {
        Family::V4 => format!("{}:", world.ip(at)),
        Family::V6 => format!("[{}]:", world.ip(at)),
    }
}

#[test]
fn chains_change_around_a_nat() -> Result<()> {
    around(Family::V4)
}

#[test]
fn chains_change_around_a_nat_v6() -> Result<()> {
    around(Family::V6)
}

/// A session that was opened without a NAT gets one: the server notices nothing.
#[test]
fn a_nat_comes_and_goes() -> Result<()> {
    let world = world(Family::V4, &[At::Fw1, At::Fw3], &[])?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let known = client_of(&world)?;
    ensure!(
        known == (group.locals()[0].to_string(), Value::Null),
        "{known:?}"
    );
    let chains: [&[At]; 6] = [
        &[At::Fw1],
        &[At::Fw1, At::Fw2],
        &[At::Fw3],
        &[At::Fw2, At::Fw1],
        &[At::Fw4],
        &[],
    ];
    for chain in chains {
        takes(&world, &group, &session, chain)?;
        ensure!(client_of(&world)? == known, "{chain:?}: another client");
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

fn ask(world: &Steered, session: &str, words: &[&str]) -> Result<()> {
    let named = match words[0] {
        "reconfigure" => [&words[..1], &[session], &words[1..]].concat(),
        _ => [words, &["--session", session]].concat(),
    };
    let done = world.try_json(At::Client, &[&named[..], &["--wait"]].concat())?;
    ensure!(
        done["changes"][0]["outcome"] == "changed",
        "{words:?}: {done:#}\n{}",
        world.logs()
    );
    Ok(())
}

/// One host changes at a time: the NAT's host, and the hosts after it, are anchors.
fn segments(family: Family) -> Result<()> {
    let world = world(family, &[At::Fw1], &[At::Fw1])?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let [fw1, fw2, fw3, fw4] = [At::Fw1, At::Fw2, At::Fw3, At::Fw4].map(|at| world.ip(at));
    let known = client_of(&world)?;
    let steps: [(&[&str], &[At]); 6] = [
        (&["insert-middlebox", &fw2], &[At::Fw1, At::Fw2]),
        (&["insert-middlebox", &fw3], &[At::Fw1, At::Fw2, At::Fw3]),
        (
            &["replace-middlebox", &fw2, "--with", &fw4],
            &[At::Fw1, At::Fw4, At::Fw3],
        ),
        // A host that stays keeps the connection that the NAT has made.
        (&["reconfigure", "--without", &fw1], &[At::Fw4, At::Fw3]),
        (
            &["replace-middlebox", &fw4, "--with", &fw1],
            &[At::Fw1, At::Fw3],
        ),
        (&["reconfigure", "--without", &fw3], &[At::Fw1]),
    ];
    for (words, chain) in steps {
        ask(&world, &session, words)?;
        is_on(&world, &group, &session, chain).with_context(|| format!("{words:?}"))?;
        ensure!(client_of(&world)? == known, "{words:?}: another client");
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn segments_change_around_a_nat() -> Result<()> {
    segments(Family::V4)
}

#[test]
fn segments_change_around_a_nat_v6() -> Result<()> {
    segments(Family::V6)
}

/// Both sides of the NAT's host change at the same time. The host has the session by two
/// five-tuples.
#[test]
fn both_sides_of_a_nat_change_at_once() -> Result<()> {
    let world = world(Family::V4, &[At::Fw2], &[])?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let [fw1, fw2, fw3, fw4] = [At::Fw1, At::Fw2, At::Fw3, At::Fw4].map(|at| world.ip(at));
    let three = [fw1.as_str(), &fw2, &fw3].join(",");
    for _ in 0..3 {
        ask(&world, &session, &["reconfigure", "--chain", &three])?;
        is_on(&world, &group, &session, &[At::Fw1, At::Fw2, At::Fw3])?;
        std::thread::scope(|scope| -> Result<()> {
            let world = &world;
            let session = &session;
            let replace = ["replace-middlebox", &fw1, "--with", &fw4];
            let without = ["reconfigure", "--without", &fw3];
            let left = scope.spawn(move || ask(world, session, &replace));
            let right = scope.spawn(move || ask(world, session, &without));
            for one in [left, right] {
                one.join()
                    .unwrap_or_else(|_| anyhow::bail!("a thread panicked"))?;
            }
            Ok(())
        })?;
        is_on(&world, &group, &session, &[At::Fw4, At::Fw2])?;
        ask(&world, &session, &["reconfigure", "--chain", ""])?;
        is_on(&world, &group, &session, &[])?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A host that stays knows the session by one five-tuple. No NAT enters before it as long as the
/// chain changes as a whole, and none leaves there.
#[test]
fn what_would_rename_it_for_a_host_that_stays_is_taken_back() -> Result<()> {
    let world = world(Family::V4, &[At::Fw1], &[])?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    for (has, asked) in [
        (&[At::Fw2][..], &[At::Fw1, At::Fw2][..]),
        (&[At::Fw1, At::Fw2], &[At::Fw2]),
        (&[At::Fw1, At::Fw2], &[At::Fw2, At::Fw1]),
    ] {
        let hosts: Vec<_> = has.iter().map(|at| world.ip(*at)).collect();
        let now = world.chain_of(&session)?;
        if now != json!([]) && now != json!(hosts) {
            world.update_chain(&session, &[])?;
        }
        if now != json!(hosts) {
            takes(&world, &group, &session, has)?;
        }
        let tried = world.reconfigure(&session, asked, &[])?;
        ensure!(
            tried["outcome"] == "rolled_back",
            "{asked:?}: {tried:#}\n{}",
            world.logs()
        );
        is_on(&world, &group, &session, has).with_context(|| format!("{asked:?}"))?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The entry of connection tracking contains the translation, and moves to another host.
#[test]
fn a_nat_takes_the_place_of_another_with_its_state() -> Result<()> {
    let world = world(Family::V4, &[At::Fw1, At::Fw2], &[At::Fw1])?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let known = client_of(&world)?;
    world.replace_with_state(At::Fw1, At::Fw2)?;
    is_on(&world, &group, &session, &[At::Fw2])?;
    ensure!(client_of(&world)? == known);
    let entries = world
        .host(At::Fw2)
        .output("conntrack", &["-L", "-p", "tcp"])?;
    let translated = format!("dst={} ", world.ip(At::Fw1));
    ensure!(
        entries
            .lines()
            .any(|l| l.contains("dport=9000") && l.contains(&translated)),
        "{entries}"
    );
    // After the NAT the session has another name, for which the new host expects no state.
    takes(&world, &group, &session, &[At::Fw2, At::Fw3])?;
    let [fw3, fw4] = [At::Fw3, At::Fw4].map(|at| world.ip(at));
    let words = [
        "replace-middlebox",
        &fw3,
        "--with",
        &fw4,
        "--state",
        "conntrack",
        "--wait",
    ];
    let done = world.try_json(At::Client, &words)?;
    let done = &done["changes"][0];
    ensure!(
        done["outcome"] == "rolled_back" && done["reason"].to_string().contains("has passed a NAT"),
        "{done:#}"
    );
    is_on(&world, &group, &session, &[At::Fw2, At::Fw3])?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A daemon dies in the middle: a session through a NAT continues, and is free again.
#[test]
fn a_daemon_dies_in_the_middle() -> Result<()> {
    let mut world = world(Family::V4, &[At::Fw1], &[At::Fw1])?;
    let (group, session) = busy(&world, &Plan::gentle())?;
    let deaths = [
        (At::Client, "die:Switched"),
        (At::Server, "die:Cut"),
        (At::Fw1, "die:Enlisted"),
        (At::Fw1, "die:Dismissed"),
        (At::Fw2, "die:Enlisted"),
    ];
    for (at, fault) in deaths {
        world.set_faults(at, fault)?;
        let _ = world.reconfigure(&session, &[At::Fw1, At::Fw2], &[]);
        world.wait_dead(at)?;
        world.set_faults(at, "")?;
        world.restart(at)?;
        get_on(&world, &group).context(fault)?;
        wait::until("the session to be free", PATIENCE, || {
            let done = world.reconfigure(&session, &[At::Fw3, At::Fw1], &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", world.logs()))?;
        get_on(&world, &group).context(fault)?;
        world.update_chain(&session, &[At::Fw1])?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}
