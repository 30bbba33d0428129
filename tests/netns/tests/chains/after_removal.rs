//! Sessions that their proxy has left get firewalls. The firewalls are strict, and see one
//! connection from host to host, in the numbers of the wire.

use std::time::Duration;

use crate::steered::{At, DEATHS, Steered, TO_AND_FRO};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until each end of each session has received this many more bytes.
fn get_on(world: &Steered, group: &Group, bytes: u64) -> Result<()> {
    group.wait_progress(bytes).with_context(|| world.logs())
}

fn nothing_refused(world: &Steered) -> Result<()> {
    for fw in At::FIREWALLS {
        let refused = world.refused(fw)?;
        ensure!(refused == 0, "{fw:?} refused {refused}\n{}", world.logs());
    }
    Ok(())
}

/// Checks that a firewall has one connection, between the client's host and the server's.
fn is_known(world: &Steered, fw: At) -> Result<()> {
    let all = world.host(fw).output("conntrack", &["-L", "-p", "tcp"])?;
    let ours: Vec<_> = all.lines().filter(|l| l.contains("dport=9000")).collect();
    let ends = [At::Client, At::Server].map(|at| world.ip(at));
    let opened = format!("src={} dst={} ", ends[0], ends[1]);
    let right = |line: &&str| {
        let words = ["ESTABLISHED", opened.as_str(), "ASSURED"];
        words.iter().all(|word| line.contains(word)) && !line.contains("UNREPLIED")
    };
    ensure!(ours.len() == 1 && ours.iter().all(right), "{all}");
    Ok(())
}

/// Changes chains: one firewall, its replacement, two firewalls, and none. Nothing remains on the
/// hosts that the session has left.
fn to_and_fro(family: Family, settings: &[(At, &str, &str)], words: &str) -> Result<()> {
    to_and_fro_at(None, family, settings, words)
}

/// Changes chains at a rate, in bytes per second.
fn to_and_fro_at(
    rate: Option<u64>,
    family: Family,
    settings: &[(At, &str, &str)],
    words: &str,
) -> Result<()> {
    let plan = Plan {
        rate,
        ..Plan::default()
    };
    let mut world = Steered::with_proxy(family, settings, words)?;
    let (group, names) = world.left("bypass", 1, &plan)?;
    get_on(&world, &group, 1 << 20)?;
    let session = &names[0];
    for chain in TO_AND_FRO {
        world.update_chain(session, chain)?;
        let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
        ensure!(world.chain_of(session)? == json!(hosts));
        world.wait_only_through(chain)?;
        get_on(&world, &group, 4 << 20)?;
        nothing_refused(&world)?;
        for fw in chain {
            is_known(&world, *fw)?;
        }
    }
    for fw in At::FIREWALLS {
        world.wait_forgotten(fw)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

#[test]
fn a_firewall_comes_and_goes_where_the_proxy_was() -> Result<()> {
    to_and_fro(Family::V4, &[], "")
}

#[test]
fn a_firewall_comes_and_goes_where_the_proxy_was_v6() -> Result<()> {
    to_and_fro(Family::V6, &[], "")
}

/// The entry of connection tracking moves. Both firewalls have the same name for it.
#[test]
fn a_firewall_takes_the_place_of_another_with_its_state() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "send-proxy-v2")?;
    let (group, names) = world.left("bypass", 1, &Plan::gentle())?;
    world.update_chain(&names[0], &[At::Fw1])?;
    get_on(&world, &group, 4 << 20)?;
    // The other firewall admits no session that it does not know.
    world.lets_in_the_known(At::Fw2)?;
    let refused = world.reconfigure(&names[0], &[At::Fw2], &[])?;
    ensure!(refused["outcome"] == "rolled_back", "{refused:#}");
    get_on(&world, &group, 1 << 20)?;
    let (old, new) = (world.ip(At::Fw1), world.ip(At::Fw2));
    // The session can be named in either way.
    let words = [
        "state",
        "move",
        &names[0],
        "--from",
        &old,
        "--to",
        &new,
        "--dry-run",
    ];
    world.ctl(At::Client, &words)?;
    let before = world.refused(At::Fw2)?;
    world.replace_with_state(At::Fw1, At::Fw2)?;
    world.wait_only_through(&[At::Fw2])?;
    get_on(&world, &group, 4 << 20)?;
    is_known(&world, At::Fw2)?;
    world.wait_forgotten(At::Fw1)?;
    ensure!(world.refused(At::Fw1)? == 0 && world.refused(At::Fw2)? == before);
    all_intact(&group.finish()?)?;
    world.finish()
}

/// Many sessions change at the same time, selected in every way.
#[test]
fn thirty_sessions_at_once() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "")?;
    // The cost of as many sessions at full speed on two processors is not the subject.
    let plan = Plan {
        rate: Some(4_000_000),
        ..Plan::default()
    };
    let (group, names) = world.left("bypass", 30, &plan)?;
    let fw = world.ip(At::Fw1);
    let insert = ["insert-middlebox", &fw, "--all", "--wait"];
    let take_out = ["reconfigure", "--through", &fw, "--chain", "", "--wait"];
    for (words, passes) in [(&insert[..], 30), (&take_out, 0), (&insert, 30)] {
        let ran = world.try_ctl(At::Client, words)?;
        ensure!(ran.code == Some(0), "{ran:?}\n{}", world.logs());
        let through = |s: &&Value| s["chain"] == json!([fw]);
        let all = world.sessions(At::Client)?;
        ensure!(
            all.len() == names.len() && all.iter().filter(through).count() == passes,
            "{all:#?}"
        );
        get_on(&world, &group, 100_000)?;
    }
    nothing_refused(&world)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The options that the two ends have agreed on with the proxy differ, and the proxy has inserted a
/// header before the client's bytes.
#[test]
fn numbers_and_windows_differ_at_the_two_ends() -> Result<()> {
    let settings = [
        (At::Client, "net.ipv4.tcp_rmem", "4096 16384 400000"),
        (At::Server, "net.ipv4.tcp_rmem", "4096 131072 16000000"),
    ];
    to_and_fro(Family::V4, &settings, "send-proxy-v2")
}

#[test]
fn only_the_server_has_timestamps_and_scales_windows() -> Result<()> {
    let settings = [
        (At::Client, "net.ipv4.tcp_timestamps", "0"),
        (At::Client, "net.ipv4.tcp_window_scaling", "0"),
    ];
    to_and_fro_at(Some(2_000_000), Family::V4, &settings, "")
}

#[test]
fn only_the_client_has_timestamps_and_scales_windows() -> Result<()> {
    let settings = [
        (At::Server, "net.ipv4.tcp_timestamps", "0"),
        (At::Server, "net.ipv4.tcp_window_scaling", "0"),
    ];
    // The firewalls let numbers advance by 64 KiB only.
    to_and_fro_at(Some(2_000_000), Family::V6, &settings, "send-proxy-v2")
}

/// Segments are retransmitted all the time, on either path.
#[test]
fn with_one_percent_loss() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "send-proxy-v2")?;
    let (group, names) = world.left("bypass", 4, &Plan::default())?;
    let rules = "table inet lab { chain forward { type filter hook forward priority 0; \
                 meta l4proto tcp numgen random mod 100 < 1 drop; }; }";
    world.router.input("nft", &["-f", "-"], rules)?;
    for chain in [&[At::Fw1][..], &[At::Fw2], &[]] {
        for session in &names {
            // The handshake of a path may be lost each time that it is sent.
            wait::until("the chain", PATIENCE, || {
                let done = world.reconfigure(session, chain, &[]).ok()?;
                (done["outcome"] == "changed").then_some(())
            })
            .with_context(|| world.logs())?;
        }
        get_on(&world, &group, 200_000)?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}

/// One firewall drops SYNs, and another passes only the handshake. The session stays on its path,
/// and may get another chain.
#[test]
fn a_dead_firewall_is_not_taken() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "send-proxy-v2")?;
    let (group, names) = world.left("bypass", 1, &Plan::gentle())?;
    for (fw, what, why) in [
        (At::Fw1, "tcp flags syn", "no answer to a SYN"),
        (At::Fw2, "tcp flags & syn == 0x0", "no answer to a SYN"),
    ] {
        let rule = format!("insert rule inet fw forward {what} drop");
        let words: Vec<_> = rule.split(' ').collect();
        world.host(fw).output("nft", &words)?;
        let tried = world.reconfigure(&names[0], &[fw], &[])?;
        let reason = tried["reason"].to_string();
        ensure!(
            tried["outcome"] == "rolled_back" && reason.contains(why),
            "{tried:#}"
        );
        get_on(&world, &group, 4 << 20)?;
        world.wait_forgotten(fw)?;
        let rules = ["flush", "chain", "inet", "fw", "forward"];
        world.host(fw).output("nft", &rules)?;
        world.host(fw).output(
            "nft",
            &[
                "add", "rule", "inet", "fw", "forward", "counter", "name", "passed", "accept",
            ],
        )?;
    }
    world.update_chain(&names[0], &[At::Fw2, At::Fw1])?;
    get_on(&world, &group, 4 << 20)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// The session is listed and counted as what it is, also by the next process.
#[test]
fn it_is_listed_with_its_history_and_counted() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "")?;
    let plan = Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    };
    let (group, names) = world.left("bypass", 2, &plan)?;
    let fw = world.ip(At::Fw1);
    // The server's host knows the session by another five-tuple, and may ask too.
    let server = &world.sessions(At::Server)?[0];
    let there = format!(
        "{}>{}",
        server["local"].as_str().unwrap_or_default(),
        server["remote"].as_str().unwrap_or_default()
    );
    for chain in [fw.as_str(), ""] {
        let words = ["reconfigure", &there, "--chain", chain, "--wait"];
        let done = world.try_json(At::Server, &words)?;
        let changed = &done["changes"][0]["outcome"];
        ensure!(changed == "changed", "{done:#}\n{}", world.logs());
    }
    let words = [
        "reconfigure",
        &names[0],
        "--chain",
        &world.ip(At::Server),
        "--dry-run",
    ];
    let refused = world.try_json(At::Client, &words)?["changes"][0]["reason"].to_string();
    ensure!(refused.contains("an end of it"), "{refused}");
    let done = world.json(At::Client, &["insert-middlebox", &fw, "--all", "--wait"])?;
    let changes = done["changes"].as_array().map_or(0, Vec::len);
    ensure!(changes == 2, "{done:#}\n{}", world.logs());
    for restarted in [false, true] {
        if restarted {
            world.set_faults(At::Client, "")?;
            world.kill(At::Client)?;
            world.restart(At::Client)?;
        }
        for session in world.sessions(At::Client)? {
            ensure!(session["mode"] == "bypass", "{session:#}");
            ensure!(session["chain"] == json!([fw]), "{session:#}");
            ensure!(
                session["history"].to_string().contains("bypass"),
                "{session:#}"
            );
        }
        // Both are counted shortly afterwards.
        wait::until("both to be counted", PATIENCE, || {
            let counts = world.json(At::Client, &["status"]).ok()?["sessions"].clone();
            let right = ["removed", "bypass", "chained"];
            right.iter().all(|name| counts[*name] == 2).then_some(())
        })?;
    }
    world.update_chain(&names[0], &[At::Fw2, At::Fw1])?;
    get_on(&world, &group, 100_000)?;
    all_intact(&group.finish()?)?;
    world.finish()
}

/// A daemon dies in the middle, on either host: data continues to flow, and both ends agree.
#[test]
fn a_daemon_dies_in_the_middle() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "send-proxy-v2")?;
    let (group, names) = world.left("bypass", 1, &Plan::gentle())?;
    let session = &names[0];
    for (at, fault) in DEATHS {
        world.set_faults(at, fault)?;
        let fw = world.ip(At::Fw1);
        // The daemon that serves the command may die.
        let _ = world.try_ctl(At::Client, &["reconfigure", session, "--chain", &fw])?;
        world.wait_dead(at)?;
        get_on(&world, &group, 1 << 20).with_context(|| fault.to_owned())?;
        world.set_faults(at, "")?;
        world.restart(at)?;
        get_on(&world, &group, 1 << 20).with_context(|| fault.to_owned())?;
        wait::until("the session to be free", PATIENCE, || {
            let done: Value = world.reconfigure(session, &[At::Fw2], &[]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", world.logs()))?;
        get_on(&world, &group, 1 << 20).with_context(|| fault.to_owned())?;
        world.update_chain(session, &[])?;
    }
    all_intact(&group.finish()?)?;
    world.finish()
}
