//! A middlebox that has changed the size of a session's stream leaves it. Its delta then is in the
//! sequence numbers, and the two ends notice nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use crate::steered::policy::rule;
use crate::steered::{At, PORT, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::built;
use dysco_netns::resizer::{Headers, Resizer};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// Rules that pass all packets, and count those that have passed the middlebox.
const OPEN: &str = "
flush ruleset
table inet fw {
  counter dropped { }
  counter invalid { }
  counter passed { }
  chain forward {
    type filter hook forward priority 0
    iifname resizer meta l4proto tcp counter name passed
  }
}
";

/// Sessions that pass a middlebox from their SYN on, which inserts headers.
struct Resized {
    world: Steered,
    middleboxes: Vec<Resizer>,
    group: Group,
    /// Names of the sessions on the client's host and the middlebox's host.
    names: Vec<String>,
}

impl Resized {
    /// Checks every byte, and ends the lab.
    fn finish(self) -> Result<()> {
        all_intact(&self.group.finish()?)?;
        drop(self.middleboxes);
        self.world.finish()
    }
}

/// Returns a busy plan whose rate a middlebox in user space can handle.
fn at_a_rate() -> Plan {
    Plan {
        rate: Some(3_000_000),
        ..Plan::default()
    }
}

/// Opens sessions through a middlebox on the first firewall's host.
fn resized(family: Family, headers: Headers, count: usize, plan: &Plan) -> Result<Resized> {
    resized_by(family, vec![(At::Fw1, headers)], count, plan)
}

/// Opens sessions through these middleboxes, in order.
fn resized_by(
    family: Family,
    boxes: Vec<(At, Headers)>,
    count: usize,
    plan: &Plan,
) -> Result<Resized> {
    let chain: Vec<_> = boxes.iter().map(|(at, _)| *at).collect();
    let world = Steered::with_policy(family, &rule(family, &chain))?;
    world.wait_neighbours(&chain)?;
    let mut middleboxes = Vec::new();
    for (at, headers) in boxes {
        world.host(at).input("nft", &["-f", "-"], OPEN)?;
        middleboxes.push(Resizer::start(world.host(at), PORT, headers)?);
    }
    let group = world.open(count, plan)?;
    group.run();
    get_on(&world, &group, 200_000)?;
    let names = group.locals().iter().map(|l| world.name(*l)).collect();
    Ok(Resized {
        world,
        middleboxes,
        group,
        names,
    })
}

/// Waits until each end of each session has received this many more bytes.
fn get_on(world: &Steered, group: &Group, bytes: u64) -> Result<()> {
    group.wait_progress(bytes).with_context(|| world.logs())
}

/// Reports the middlebox's delta.
fn tell(world: &Steered, session: &str, to_server: i32, to_client: i32) -> Result<Value> {
    tell_at(world, At::Fw1, session, to_server, to_client)
}

fn tell_at(
    world: &Steered,
    at: At,
    session: &str,
    to_server: i32,
    to_client: i32,
) -> Result<Value> {
    let (up, down) = (to_server.to_string(), to_client.to_string());
    let words = ["delta", session, "--to-server", &up, "--to-client", &down];
    world.json(at, &words).with_context(|| world.logs())
}

/// Reports the delta through the C function.
fn tell_in_c(world: &Steered, client: SocketAddr, to_server: i32, to_client: i32) -> Result<()> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/dysco-splice-preload");
    let library = built("libdysco_splice_preload.so")?;
    let folder = library.parent().context("no folder")?.display().to_string();
    let host = world.host(At::Fw1);
    let (source, program) = (own.join("examples/delta.c"), host.dir().join("delta"));
    let [source, program] = [source, program].map(|path| path.display().to_string());
    let (at, run) = (format!("-L{folder}"), format!("-Wl,-rpath,{folder}"));
    let words = ["-o", &program, &source, &at, &run, "-ldysco_splice_preload"];
    host.output("cc", &words)?;
    let (ip, port) = (client.ip().to_string(), client.port().to_string());
    let (server, own) = (world.ip(At::Server), PORT.to_string());
    let (up, down) = (to_server.to_string(), to_client.to_string());
    let words = [&*ip, &*port, &*server, &*own, &*up, &*down];
    host.output(&program, &words)
        .with_context(|| world.logs())
        .map(drop)
}

/// Checks that the change is refused, or rolled back, for one of these reasons, and that data
/// continues as before.
fn refused(r: &Resized, chain: &[At], whys: &[&str]) -> Result<()> {
    let done = r.world.reconfigure(&r.names[0], chain, &[])?;
    let reason = done["reason"].to_string();
    let said = whys.iter().any(|why| reason.contains(why));
    ensure!(
        done["outcome"] != "changed" && said,
        "{whys:?}: {done:#}\n{}",
        r.world.logs()
    );
    ensure!(r.world.chain_of(&r.names[0])? == json!([r.world.ip(At::Fw1)]));
    get_on(&r.world, &r.group, 200_000)
}

/// Makes a change, and repeats it if it is refused because bytes were in flight all the time.
fn update_chain(world: &Steered, session: &str, chain: &[At]) -> Result<()> {
    let mut said = Value::Null;
    wait::until("the chain", PATIENCE, || {
        said = world.reconfigure(session, chain, &[]).ok()?;
        let busy = said["reason"]
            .to_string()
            .contains("cannot be confirmed yet");
        (!busy).then_some(())
    })?;
    ensure!(said["outcome"] == "changed", "{said:#}\n{}", world.logs());
    let hosts: Vec<_> = chain.iter().map(|at| world.ip(*at)).collect();
    ensure!(world.chain_of(session)? == json!(hosts));
    world.wait_only_through(chain).with_context(|| world.logs())
}

/// The middlebox leaves under data in both directions. A strict firewall enters, leaves, and enters
/// again, in the numbers after the middlebox.
fn leaves(family: Family, headers: Headers, plan: &Plan) -> Result<()> {
    let added = [&headers.to_server, &headers.to_client].map(|h| h.len() as i32);
    let mut r = resized(family, headers, 1, plan)?;
    let (world, session) = (&r.world, &r.names[0]);
    tell(world, session, added[0], added[1])?;
    update_chain(world, session, &[])?;
    // The middlebox is no longer needed.
    r.middleboxes.clear();
    world.wait_forgotten(At::Fw1)?;
    for chain in [&[At::Fw2][..], &[], &[At::Fw2]] {
        get_on(world, &r.group, 1 << 20)?;
        update_chain(world, session, chain)?;
    }
    get_on(world, &r.group, 1 << 20)?;
    let refused = world.refused(At::Fw2)?;
    ensure!(refused == 0, "{refused} refused\n{}", world.logs());
    r.finish()
}

#[test]
fn it_has_put_in_a_header_on_the_way_to_the_server() -> Result<()> {
    leaves(Family::V4, Headers::proxy(Some(4), None), &at_a_rate())
}

#[test]
fn it_has_put_in_headers_both_ways() -> Result<()> {
    leaves(Family::V4, Headers::proxy(Some(4), Some(101)), &at_a_rate())
}

#[test]
fn it_has_put_in_headers_both_ways_v6() -> Result<()> {
    leaves(
        Family::V6,
        Headers::proxy(Some(0), Some(1400)),
        &at_a_rate(),
    )
}

/// The rate is the maximum of the middlebox.
#[test]
fn it_leaves_under_full_load() -> Result<()> {
    leaves(
        Family::V4,
        Headers::proxy(Some(4), Some(9)),
        &Plan::default(),
    )
}

/// A strict firewall replaces the middlebox, which has reported its delta through the C function.
#[test]
fn a_firewall_takes_its_place() -> Result<()> {
    let r = resized(
        Family::V4,
        Headers::proxy(Some(4), Some(9)),
        1,
        &at_a_rate(),
    )?;
    tell_in_c(&r.world, r.group.locals()[0], 20, 25)?;
    update_chain(&r.world, &r.names[0], &[At::Fw2])?;
    get_on(&r.world, &r.group, 1 << 20)?;
    update_chain(&r.world, &r.names[0], &[])?;
    get_on(&r.world, &r.group, 1 << 20)?;
    let refused = r.world.refused(At::Fw2)?;
    ensure!(refused == 0, "{refused} refused\n{}", r.world.logs());
    r.finish()
}

/// Each of two middleboxes has changed one direction, and both leave by one change.
#[test]
fn two_of_them_leave_at_once() -> Result<()> {
    let boxes = vec![
        (At::Fw1, Headers::proxy(Some(4), None)),
        (At::Fw2, Headers::proxy(None, Some(9))),
    ];
    let r = resized_by(Family::V4, boxes, 1, &at_a_rate())?;
    let (world, session) = (&r.world, &r.names[0]);
    tell_at(world, At::Fw1, session, 20, 0)?;
    // The delta of the other middlebox is not known.
    let done = world.reconfigure(session, &[], &[])?;
    let reason = done["reason"].to_string();
    ensure!(
        reason.contains("no middlebox has reported a delta"),
        "{done:#}"
    );
    get_on(world, &r.group, 200_000)?;
    tell_at(world, At::Fw2, session, 0, 25)?;
    update_chain(world, session, &[])?;
    get_on(world, &r.group, 1 << 20)?;
    r.finish()
}

/// Segments are retransmitted all the time, on either path, and acknowledged with SACK blocks.
#[test]
fn with_one_percent_loss() -> Result<()> {
    let r = resized(
        Family::V4,
        Headers::proxy(Some(4), Some(9)),
        2,
        &at_a_rate(),
    )?;
    let rules = "table inet lab { chain forward { type filter hook forward priority 0; \
                 meta l4proto tcp numgen random mod 100 < 1 drop; }; }";
    r.world.router.input("nft", &["-f", "-"], rules)?;
    for session in &r.names {
        tell(&r.world, session, 20, 25)?;
        for chain in [&[][..], &[At::Fw2]] {
            // The handshake of a path may be lost each time that it is sent.
            wait::until("the chain", PATIENCE, || {
                let done = r.world.reconfigure(session, chain, &[]).ok()?;
                (done["outcome"] == "changed").then_some(())
            })
            .with_context(|| r.world.logs())?;
            get_on(&r.world, &r.group, 200_000)?;
        }
    }
    r.finish()
}

/// The reported delta is compared with the numbers, by the middlebox's own host when it is reported
/// and again when the middlebox leaves; a delta that is not reported is detected. Nothing changes
/// in these cases.
#[test]
fn what_the_numbers_contradict_is_refused() -> Result<()> {
    let r = resized(
        Family::V4,
        Headers::proxy(Some(4), Some(9)),
        1,
        &at_a_rate(),
    )?;
    let (world, session) = (&r.world, &r.names[0]);
    // No delta has been reported.
    refused(
        &r,
        &[],
        &[
            "no middlebox has reported a delta",
            "cannot be confirmed yet",
        ],
    )?;
    // These deltas exceed all data in flight.
    for (up, down) in [("9000000", "25"), ("20", "-1000000")] {
        let words = ["delta", session, "--to-server", up, "--to-client", down];
        let ran = world.try_ctl(At::Fw1, &words)?;
        let why = "contradicts the sequence numbers";
        ensure!(ran.code == Some(5) && ran.stderr.contains(why), "{ran:?}");
    }
    // These deltas are wrong by a few bytes, which could be in flight or wait in the middlebox; but
    // the middlebox's numbers do not come to rest with them.
    for (up, down) in [("21", "25"), ("20", "26"), ("-1", "25")] {
        let words = ["delta", session, "--to-server", up, "--to-client", down];
        let ran = world.try_ctl(At::Fw1, &words)?;
        if ran.code == Some(0) {
            let whys = [
                "contradicts the sequence numbers",
                "cannot be confirmed yet",
            ];
            refused(&r, &[], &whys)?;
        }
    }
    // The middlebox stays, and another one enters: its numbers would differ on the new path.
    tell(world, session, 20, 25)?;
    let mut said = Value::Null;
    wait::until("the reason that counts", PATIENCE, || {
        said = world.reconfigure(session, &[At::Fw1, At::Fw2], &[]).ok()?;
        let busy = "cannot be confirmed yet";
        (!said["reason"].to_string().contains(busy)).then_some(())
    })?;
    let behind = said["reason"].to_string().contains("stays in the chain");
    ensure!(behind, "{said:#}\n{}", world.logs());
    // A host that does not forward the session knows nothing of it.
    let words = ["delta", session, "--to-server", "20"];
    let ran = world.try_ctl(At::Client, &words)?;
    ensure!(
        ran.code == Some(5) && ran.stderr.contains("in a chain"),
        "{ran:?}"
    );
    // The correct delta is believed.
    update_chain(world, session, &[])?;
    get_on(world, &r.group, 1 << 20)?;
    r.finish()
}

/// The numbers of a middlebox that always holds more bytes than it has added do not contradict that
/// it has added none. It neither leaves nor becomes an anchor of another chain, so that no byte is
/// lost.
#[test]
fn an_unreported_delta_behind_held_bytes_is_not_taken_for_none() -> Result<()> {
    let family = Family::V4;
    let world = Steered::with_policy(family, &rule(family, &[At::Fw1]))?;
    world.wait_neighbours(&[At::Fw1])?;
    let host = world.host(At::Fw1);
    host.input("nft", &["-f", "-"], OPEN)?;
    let headers = Headers::proxy(Some(4), Some(9));
    let holds = Duration::from_millis(20);
    let middleboxes = vec![Resizer::slow(host, PORT, headers, holds)?];
    let group = world.open(1, &at_a_rate())?;
    group.run();
    get_on(&world, &group, 200_000)?;
    let names = group.locals().iter().map(|l| world.name(*l)).collect();
    let r = Resized {
        world,
        middleboxes,
        group,
        names,
    };
    for chain in [&[][..], &[At::Fw1, At::Fw2], &[At::Fw2, At::Fw1]] {
        refused(&r, chain, &["cannot be confirmed yet"])?;
    }
    // It would be the left anchor.
    let fw2 = r.world.ip(At::Fw2);
    let words = [
        "insert-middlebox",
        &fw2,
        "--session",
        &r.names[0],
        "--wait",
        "-o",
        "json",
    ];
    let ran = r.world.try_ctl(At::Client, &words)?;
    ensure!(
        ran.code != Some(0) && ran.stdout.contains("cannot be confirmed yet"),
        "{ran:?}"
    );
    get_on(&r.world, &r.group, 200_000)?;
    r.finish()
}

/// The report outlives the daemon that received it, the chain outlives the daemon that read its
/// rule, and the translation outlives the daemon that made it.
#[test]
fn daemons_die() -> Result<()> {
    let mut r = resized(
        Family::V4,
        Headers::proxy(Some(4), Some(9)),
        1,
        &at_a_rate(),
    )?;
    let session = r.names[0].clone();
    tell(&r.world, &session, 20, 25)?;
    r.world.kill(At::Fw1)?;
    r.world.restart(At::Fw1)?;
    r.world.kill(At::Client)?;
    r.world.write_policy("")?;
    r.world.restart(At::Client)?;
    r.world.set_faults(At::Server, "die:Cut")?;
    // The daemon dies once the change has got this far.
    let mut said = String::new();
    wait::until("dyscod to die", PATIENCE, || {
        let words = ["reconfigure", &session, "--chain", "", "--wait"];
        said = format!("{:?}", r.world.try_ctl(At::Client, &words).ok()?);
        r.world.ctl(At::Server, &["status"]).is_err().then_some(())
    })
    .with_context(|| format!("{said}\n{}", r.world.logs()))?;
    r.world.wait_dead(At::Server)?;
    r.world.set_faults(At::Server, "")?;
    r.world.restart(At::Server)?;
    wait::until("the session to be free", PATIENCE, || {
        let done = r.world.reconfigure(&session, &[], &[]).ok()?;
        (done["outcome"] == "changed").then_some(())
    })
    .with_context(|| r.world.logs())?;
    get_on(&r.world, &r.group, 200_000)?;
    r.world.kill(At::Client)?;
    r.world.restart(At::Client)?;
    update_chain(&r.world, &session, &[At::Fw2])?;
    get_on(&r.world, &r.group, 1 << 20)?;
    ensure!(r.world.refused(At::Fw2)? == 0, "{}", r.world.logs());
    r.finish()
}
