//! Sessions that their proxy has left, and that its host relays, get firewalls on one side of that
//! host. The firewalls are strict, and see one connection between that host and the session's end.

use crate::steered::beside::{Beside, PATIENCE, Relayed};
use crate::steered::{At, Steered, TO_AND_FRO};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Close, Plan, Side, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

/// Changes chains: one firewall, its replacement, two firewalls, and none. Nothing remains on the
/// hosts that the session has left.
fn to_and_fro(family: Family, beside: Beside, settings: &[(At, &str, &str)]) -> Result<()> {
    let r = Relayed::new(family, beside, settings, (1, &Plan::gentle()))?;
    let session = r.only()?;
    for chain in TO_AND_FRO {
        r.update_chain(&session, chain)?;
        r.takes_only(chain)?;
        r.get_on(4 << 20)?;
        r.nothing_refused()?;
        for fw in chain {
            r.is_known(*fw)?;
        }
        ensure!(r.only()? == session);
    }
    for fw in At::FIREWALLS {
        r.forgotten(fw)?;
    }
    r.finish()
}

#[test]
fn a_firewall_comes_and_goes_beside_the_server() -> Result<()> {
    to_and_fro(Family::V4, Beside::Server, &[])
}

#[test]
fn a_firewall_comes_and_goes_beside_the_server_v6() -> Result<()> {
    to_and_fro(Family::V6, Beside::Server, &[])
}

#[test]
fn a_firewall_comes_and_goes_beside_the_client() -> Result<()> {
    to_and_fro(Family::V4, Beside::Client, &[])
}

#[test]
fn a_firewall_comes_and_goes_beside_the_client_v6() -> Result<()> {
    to_and_fro(Family::V6, Beside::Client, &[])
}

/// The relaying host rescales windows, and has timestamps on one side only.
#[test]
fn only_the_server_has_timestamps() -> Result<()> {
    let settings = [
        (At::Client, "net.ipv4.tcp_timestamps", "0"),
        (At::Server, "net.ipv4.tcp_rmem", "4096 131072 16000000"),
    ];
    to_and_fro(Family::V4, Beside::Server, &settings)
}

/// Each side of the relaying host has a firewall.
#[test]
fn a_firewall_on_each_side() -> Result<()> {
    let mut world = Steered::with_proxy(Family::V4, &[], "")?;
    let (group, names) = world.left("local", 1, &Plan::gentle())?;
    world.update_chain(&names[0], &[At::Fw1])?;
    let r = Relayed {
        world,
        beside: Beside::Server,
        group,
    };
    let session = r.only()?;
    r.update_chain(&session, &[At::Fw2])?;
    r.takes_only(&[At::Fw1, At::Fw2])?;
    r.world.update_chain(&names[0], &[])?;
    r.takes_only(&[At::Fw2])?;
    r.update_chain(&session, &[])?;
    r.takes_only(&[])?;
    r.nothing_refused()?;
    r.finish()
}

/// The entry of connection tracking moves.
#[test]
fn a_firewall_takes_the_place_of_another_with_its_state() -> Result<()> {
    let r = Relayed::new(Family::V4, Beside::Server, &[], (1, &Plan::gentle()))?;
    let session = r.only()?;
    r.update_chain(&session, &[At::Fw1])?;
    r.get_on(4 << 20)?;
    // The other firewall admits no session that it does not know.
    r.world.lets_in_the_known(At::Fw2)?;
    let refused = r.try_update_chain(&session, &[At::Fw2])?;
    ensure!(refused["outcome"] == "rolled_back", "{refused:#}");
    r.get_on(1 << 20)?;
    let before = r.world.refused(At::Fw2)?;
    (r.world).replace_with_state_on(At::Proxy, At::Fw1, At::Fw2)?;
    r.takes_only(&[At::Fw2])?;
    r.is_known(At::Fw2)?;
    r.forgotten(At::Fw1)?;
    ensure!(r.world.refused(At::Fw1)? == 0 && r.world.refused(At::Fw2)? == before);
    r.finish()
}

/// All relayed sessions change at the same time. They are listed and counted as what they are, and
/// can no longer be changed in another way.
#[test]
fn many_at_once() -> Result<()> {
    let plan = Plan {
        rate: Some(2_000_000),
        ..Plan::default()
    };
    let r = Relayed::new(Family::V4, Beside::Server, &[], (8, &plan))?;
    let fw = r.world.ip(At::Fw1);
    let words = ["insert-middlebox", &fw, "--all", "--wait"];
    let done = r.world.try_json(At::Proxy, &words)?;
    let all = done["changes"].as_array().cloned().unwrap_or_default();
    let changed = |c: &Value| c["outcome"] == "changed";
    ensure!(all.len() == 8 && all.iter().all(changed), "{done:#}");
    r.get_on(200_000)?;
    let with_chain = |s: &&Value| s["chain"] == json!([fw]) && s["mode"] == "local";
    let listed = r.world.sessions(At::Proxy)?;
    ensure!(listed.len() == 16, "{listed:#?}");
    ensure!(listed.iter().filter(with_chain).count() == 8, "{listed:#?}");
    let counts = r.world.json(At::Proxy, &["status"])?["sessions"].clone();
    ensure!(counts["local"] == 8, "{counts:#}");
    let words = [
        "remove-middlebox",
        "self",
        "--all",
        "--mode",
        "bypass",
        "--wait",
    ];
    let refused = r.world.try_json(At::Proxy, &words)?;
    ensure!(
        refused["summary"]["refused"] == 8 && refused.to_string().contains("beside the host"),
        "{refused:#}"
    );
    r.nothing_refused()?;
    r.finish()
}

/// No host enters if no end runs a daemon, and the reason names this.
#[test]
fn none_comes_in_where_no_end_runs_an_agent() -> Result<()> {
    let mut r = Relayed::new(Family::V4, Beside::Server, &[], (1, &Plan::gentle()))?;
    let session = r.only()?;
    let client = r.group.locals()[0];
    let near = format!("{}:8080>{client}", r.world.ip(At::Proxy));
    let server = r.world.ip(At::Server);
    r.is_refused(&near, &format!("{server} runs it and"))?;
    r.world.kill(At::Server)?;
    for name in [&session, &near] {
        r.is_refused(name, "neither")?;
    }
    r.get_on(1 << 20)?;
    r.finish()
}

/// The session ends by FINs, and by a reset from either end: the firewall sees it.
#[test]
fn the_end_is_heard_by_the_firewall() -> Result<()> {
    for close in [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
    ] {
        let plan = Plan {
            close,
            ..Plan::default()
        };
        let r = Relayed::new(Family::V4, Beside::Server, &[], (1, &plan))?;
        r.update_chain(&r.only()?, &[At::Fw1])?;
        r.get_on(1 << 20)?;
        let Relayed { world, group, .. } = r;
        all_intact(&group.finish()?)?;
        wait::until("the firewall to hear of the end", PATIENCE, || {
            let all = (world.host(At::Fw1)).output("conntrack", &["-L", "-p", "tcp"]);
            let all = all.ok()?;
            let lives = |l: &str| l.contains("dport=9000") && l.contains("ESTABLISHED");
            (!all.lines().any(lives)).then_some(())
        })
        .with_context(|| format!("{close:?}\n{}", world.logs()))?;
    }
    Ok(())
}

/// Rules that count the packets that show the firewall how far an end has sent.
const COUNT_SHOWN: &str = "add counter inet fw shown
insert rule inet fw forward tcp flags & (fin|syn|rst|psh|ack) == psh|ack \
    tcp window 65535 meta length < 80 counter name shown
";

fn shown(world: &Steered) -> Result<u64> {
    let list = ["list", "counter", "inet", "fw", "shown"];
    let told = world.host(At::Fw1).output("nft", &list)?;
    let mut words = told.split_whitespace().skip_while(|w| *w != "packets");
    let count = words.nth(1).and_then(|w| w.parse().ok());
    count.with_context(|| format!("nft did not say it: {told}"))
}

/// The server's host, which never receives the end of the change, shows firewalls nothing after a
/// reset: the packets would make them keep the connection.
#[test]
fn nothing_is_announced_after_a_reset() -> Result<()> {
    for side in [Side::Client, Side::Server] {
        let plan = Plan {
            close: Close::Reset(side),
            ..Plan::default()
        };
        let r = Relayed::new(Family::V4, Beside::Server, &[], (1, &plan))?;
        r.world.set_faults(At::Proxy, "lose:Done")?;
        let fw = r.world.ip(At::Fw1);
        r.world
            .ctl(At::Proxy, &["insert-middlebox", &fw, "--all"])?;
        wait::until("the change to be all but done", PATIENCE, || {
            (r.world.lost(At::Proxy, "Done").ok()? > 0).then_some(())
        })
        .with_context(|| r.world.logs())?;
        r.get_on(1 << 20)?;
        let Relayed { world, group, .. } = r;
        let fw = world.host(At::Fw1);
        fw.input("nft", &["-f", "-"], COUNT_SHOWN)?;
        wait::until("it to be shown", PATIENCE, || {
            (shown(&world).ok()? > 0).then_some(())
        })?;
        all_intact(&group.finish()?)?;
        let before = shown(&world)?;
        // This takes the server's host some seconds.
        wait::until("the firewall to forget the session", PATIENCE, || {
            let all = (world.host(At::Fw1)).output("conntrack", &["-L", "-p", "tcp"]);
            (!all.ok()?.contains("dport=9000")).then_some(())
        })
        .with_context(|| format!("{side:?}\n{}", world.logs()))?;
        // One such packet may have been in flight.
        let after = shown(&world)?;
        ensure!(after <= before + 1, "{before}, then {after}: {side:?}");
    }
    Ok(())
}

/// A daemon dies in the middle: data continues to flow, and both sides agree.
fn deaths(beside: Beside, deaths: &[(At, &'static str)]) -> Result<()> {
    let mut r = Relayed::new(Family::V4, beside, &[], (1, &Plan::gentle()))?;
    let session = r.only()?;
    let asked = beside.opened().0;
    for (at, fault) in deaths {
        r.world.set_faults(*at, fault)?;
        let fw = r.world.ip(At::Fw1);
        // The daemon that serves the command may die.
        let _ = (r.world).try_ctl(asked, &["reconfigure", &session, "--chain", &fw])?;
        r.world.wait_dead(*at)?;
        r.get_on(1 << 20).context(*fault)?;
        r.world.set_faults(*at, "")?;
        r.world.restart(*at)?;
        r.get_on(1 << 20).context(*fault)?;
        wait::until("the session to be free", PATIENCE, || {
            let done = r.try_update_chain(&session, &[At::Fw2]).ok()?;
            (done["outcome"] == "changed").then_some(())
        })
        .with_context(|| format!("{fault}\n{}", r.world.logs()))?;
        r.get_on(1 << 20).context(*fault)?;
        r.update_chain(&session, &[])?;
    }
    r.finish()
}

#[test]
fn a_daemon_dies_in_the_middle_beside_the_server() -> Result<()> {
    deaths(
        Beside::Server,
        &[
            (At::Proxy, "die:Extend"),
            (At::Proxy, "die:Cut"),
            (At::Proxy, "die:Switched"),
            (At::Proxy, "die:Complete"),
            (At::Server, "die:Extended"),
            (At::Server, "die:Cut"),
            (At::Server, "die:Settled"),
            (At::Fw1, "die:Enlisted"),
        ],
    )
}

#[test]
fn a_daemon_dies_in_the_middle_beside_the_client() -> Result<()> {
    deaths(
        Beside::Client,
        &[
            (At::Client, "die:Cut"),
            (At::Client, "die:Complete"),
            (At::Proxy, "die:Extended"),
            (At::Proxy, "die:Cut"),
            (At::Proxy, "die:Settled"),
        ],
    )
}

/// Sessions end in each way while their change is held: nothing of the change remains.
fn ends_while(beside: Beside, fault: &str) -> Result<()> {
    let ways = [
        Close::First(Side::Client),
        Close::First(Side::Server),
        Close::Reset(Side::Client),
        Close::Reset(Side::Server),
    ];
    let mut world = Steered::with_proxy(Family::V4, &[], "")?;
    world.kill(beside.other_end())?;
    let mut groups = Vec::new();
    for close in ways {
        let plan = Plan {
            close,
            rate: Some(2_000_000),
            ..Plan::default()
        };
        let group = world.open_by_proxy(1, &plan)?;
        group.run();
        group.wait_progress(200_000)?;
        groups.push(group);
    }
    world.leave("local", ways.len())?;
    let at = beside.opened().0;
    world.set_faults(at, fault)?;
    let fw = world.ip(At::Fw1);
    world.ctl(at, &["insert-middlebox", &fw, "--all"])?;
    let under_way = |at| {
        let status = world.json(at, &["status"]).ok()?;
        status["counters"]["changes_under_way"].as_u64()
    };
    let taken = || {
        let all = world.sessions(at).unwrap_or_default();
        let with_chain = |s: &&Value| s["chain"] == json!([fw]);
        all.iter().filter(with_chain).count()
    };
    wait::until("the changes to be held", PATIENCE, || {
        let held = under_way(at)? == ways.len() as u64;
        let opened = fault == "lose:Extend" || taken() == ways.len();
        (held && opened).then_some(())
    })
    .with_context(|| world.logs())?;
    groups.iter().for_each(|group| group.stop());
    for (group, way) in groups.into_iter().zip(ways) {
        let intact = group.finish().and_then(|outcomes| all_intact(&outcomes));
        intact.with_context(|| format!("{fault}, {way:?}\n{}", world.logs()))?;
    }
    world.set_faults(at, "")?;
    wait::until("all changes to end", PATIENCE, || {
        let hosts = [at, beside.accepted(), At::Fw1].into_iter();
        hosts
            .map(under_way)
            .all(|left| left == Some(0))
            .then_some(())
    })
    .with_context(|| world.logs())?;
    world.finish()
}

#[test]
fn they_end_while_a_change_begins() -> Result<()> {
    ends_while(Beside::Server, "lose:Extend")?;
    ends_while(Beside::Client, "lose:Extend")
}

#[test]
fn they_end_while_the_path_is_taken() -> Result<()> {
    ends_while(Beside::Server, "lose:Switched")?;
    ends_while(Beside::Client, "lose:Switched")
}

#[test]
fn they_end_before_the_change_is_done() -> Result<()> {
    ends_while(Beside::Server, "lose:Done")?;
    ends_while(Beside::Client, "lose:Done")
}

/// Segments are retransmitted all the time, on either path.
#[test]
fn with_one_percent_loss() -> Result<()> {
    let r = Relayed::new(Family::V4, Beside::Server, &[], (4, &Plan::default()))?;
    let rules = "table inet lab { chain forward { type filter hook forward priority 0; \
                 meta l4proto tcp numgen random mod 100 < 1 drop; }; }";
    r.world.router.input("nft", &["-f", "-"], rules)?;
    let names = r.names()?;
    for chain in [&[At::Fw1][..], &[At::Fw2], &[]] {
        for session in &names {
            // The handshake of a path may be lost each time that it is sent.
            wait::until("the chain", PATIENCE, || {
                let done = r.try_update_chain(session, chain).ok()?;
                (done["outcome"] == "changed").then_some(())
            })
            .with_context(|| r.world.logs())?;
        }
        r.get_on(200_000)?;
    }
    r.finish()
}
