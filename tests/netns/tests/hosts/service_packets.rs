//! Services of the packet plane: eBPF programs run them, and no process.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Program, Ran, Role, wait};
use serde_json::{Value, json};

use crate::first_byte::{give, open, say};
use crate::service_calls::call;
use crate::services::OneEnd;

const PATIENCE: Duration = Duration::from_secs(60);

/// True if the programs are on the interfaces of the client's host.
fn programs_are_there(here: &OneEnd) -> Result<bool> {
    let pins = here
        .lab
        .client
        .output("ls", &["/sys/fs/bpf/dysco/v8"])
        .context("no pins")?;
    let served = pins.lines().filter(|pin| pin.contains("_dysco_serve_"));
    Ok(served.count() > 0)
}

fn come_and_leave(family: Family, name: &str) -> Result<()> {
    let here = OneEnd::new(name, family)?;
    let group = here.open(4, &Plan::gentle())?;
    for service in [
        "+count=plane=packet",
        "+shape=rate=40M,plane=packet",
        "+shape=up=100M,down=off,plane=packet",
    ] {
        here.change(&["put", service], "put", 4)?;
        here.change(&["put", service], "unchanged", 4)?;
        ensure!(programs_are_there(&here)?, "{service}: no program");
        // One session is asked: each has to get on.
        group.wait_progress(50_000)?;
        let listed = here.service(&["list"])?;
        let rows = listed.as_array().context("no list")?;
        let fits = |row: &Value| {
            row["services"] == json!([&service[1..]])
                && row["state"] == "in"
                && row.get("handler").is_none()
        };
        ensure!(rows.len() == 4 && rows.iter().all(fits), "{listed:#}");
        let name = service[1..].split('=').next().unwrap_or_default();
        let read = call(&here, &[name, "read"])?;
        let answer = &read["answer"];
        ensure!(
            answer["up"]["bytes"].as_u64() > Some(10_000)
                && answer["down"]["packets"].as_u64() > Some(10),
            "{read:#}"
        );
        here.change(&["take"], "taken", 4)?;
        ensure!(!programs_are_there(&here)?, "{service}: programs stayed");
    }
    group.wait_more(200_000, PATIENCE)?;
    all_intact(&group.finish()?)?;
    let status = here.fleet.json(&here.lab.client, &["status"])?;
    ensure!(status["counters"]["packets_to_handlers"] == 0, "{status:#}");
    here.finish()
}

#[test]
fn they_come_and_leave_without_a_process() -> Result<()> {
    come_and_leave(Family::V4, "pack4")
}

#[test]
fn they_come_into_ipv6_sessions_and_leave_them() -> Result<()> {
    come_and_leave(Family::V6, "pack6")
}

#[test]
fn a_rate_drops_what_is_beyond_it_and_loses_no_byte() -> Result<()> {
    let here = OneEnd::new("packrate", Family::V4)?;
    let group = here.open(1, &Plan::default())?;
    here.change(&["put", "+shape=rate=1M,plane=packet"], "put", 1)?;
    let drops = || {
        let read = call(&here, &["shape", "read"]).ok()?;
        let [up, down] = ["up", "down"].map(|way| read["answer"][way]["dropped"].as_u64());
        (read["answer"]["drops"] == true && up? > 0 && down? > 0).then_some(())
    };
    wait::until(
        "packets of both directions beyond the rate",
        PATIENCE,
        drops,
    )?;
    let bad = call(&here, &["shape", "rate", "\"fast\""])?;
    ensure!(
        bad["exit"] == 5 && bad.to_string().contains("no rate"),
        "{bad:#}"
    );
    let changed = call(
        &here,
        &["shape", "rate", "{\"up\":\"off\",\"down\":\"1G\"}"],
    )?;
    let answer = &changed["answer"];
    ensure!(
        answer["up"]["rate"] == "off" && answer["down"]["rate"] == "1G",
        "{changed:#}"
    );
    group.wait_more(1_000_000, PATIENCE)?;
    let status = here.fleet.json(&here.lab.client, &["status"])?;
    let dropped = status["counters"]["dropped_over_rate"].as_u64();
    ensure!(dropped > Some(0), "{status:#}");
    here.change(&["take"], "taken", 1)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn the_next_daemon_has_them_and_a_daemon_that_is_away_changes_nothing() -> Result<()> {
    let mut here = OneEnd::new("packnext", Family::V4)?;
    let group = here.open(2, &Plan::gentle())?;
    let words = "+shape=up=200M,down=off,plane=packet";
    here.change(&["put", words, "+count=plane=packet"], "put", 2)?;
    here.next_daemon(|_| group.wait_more(500_000, PATIENCE))?;
    let listed = here.service(&["list"])?;
    ensure!(
        listed[1]["services"] == json!(["count=plane=packet", &words[1..]]),
        "{listed:#}"
    );
    let read = call(&here, &["count", "read"])?;
    ensure!(
        read["answer"]["up"]["bytes"].as_u64() > Some(100_000),
        "{read:#}"
    );
    here.change(&["take"], "taken", 2)?;
    ensure!(!programs_are_there(&here)?, "programs stayed");
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn sessions_that_end_give_their_records_back() -> Result<()> {
    let here = OneEnd::new("packends", Family::V4)?;
    let group = here.open(3, &Plan::gentle())?;
    here.change(&["put", "+count=plane=packet"], "put", 3)?;
    all_intact(&group.finish()?)?;
    let gone = || (!programs_are_there(&here).ok()?).then_some(());
    wait::until("the end of the programs", PATIENCE, gone)?;
    let listed = here.service(&["list"])?;
    ensure!(listed == json!([]), "{listed:#}");
    here.finish()
}

#[test]
fn what_the_packet_plane_cannot_do_says_why() -> Result<()> {
    let here = OneEnd::new("packno", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    for words in [&[][..], &["--dry-run"]] {
        let put = [&["put", "+latency=delay=50ms,plane=packet"], words].concat();
        let refused = here.change(&put, "refused", 1)?;
        let text = refused.to_string();
        ensure!(
            refused["exit"] == 5 && text.contains("its qdisc is not fq"),
            "{refused:#}"
        );
    }
    for (words, why) in [
        (
            &["+crypt=plane=packet"][..],
            "no service of the packet plane",
        ),
        (
            &["+count", "+count=plane=packet"],
            "cannot be put in with others",
        ),
    ] {
        let put = [&["put"], words, &["--filter", "port=9000"]].concat();
        let wrong = here.service(&put)?;
        ensure!(wrong.to_string().contains(why), "{wrong:#}");
    }
    // A session has services of one plane.
    here.change(&["put", "+count=plane=packet"], "put", 1)?;
    let other = here.change(&["put", "+count"], "refused", 1)?;
    ensure!(
        other.to_string().contains("other services are in it"),
        "{other:#}"
    );
    here.change(&["take"], "taken", 1)?;
    here.change(&["put", "+count"], "put", 1)?;
    let other = here.change(&["put", "+count=plane=packet"], "refused", 1)?;
    ensure!(
        other.to_string().contains("other services are in it"),
        "{other:#}"
    );
    here.change(&["take"], "taken", 1)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Counts go on while another service comes in, and leaves.
#[test]
fn services_of_the_packet_plane_come_and_leave_one_by_one() -> Result<()> {
    let here = OneEnd::new("packone", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    let counted = || -> Result<u64> {
        let listed = here.service(&["list"])?;
        let session = listed[0]["session"].as_str().context("no session")?;
        let read = here.service(&["call", session, "count", "read"])?;
        let packets = read["answer"]["down"]["packets"].as_u64();
        packets.with_context(|| format!("{read:#}"))
    };
    here.change(&["put", "+count=plane=packet"], "put", 1)?;
    group.wait_progress(200_000)?;
    let first = counted()?;
    here.change(&["put", "+shape=rate=400M,plane=packet"], "put", 1)?;
    ensure!(counted()? >= first && first > 0, "the counts began anew");
    let twice = here.change(&["put", "+shape=rate=1M,plane=packet"], "refused", 1)?;
    ensure!(
        twice.to_string().contains("shape is in it already"),
        "{twice:#}"
    );
    let listed = here.service(&["list"])?;
    let both = json!(["count=plane=packet", "shape=rate=400M,plane=packet"]);
    ensure!(listed[0]["services"] == both, "{listed:#}");
    here.change(&["take", "+shape"], "taken", 1)?;
    here.change(&["take", "+shape"], "unchanged", 1)?;
    ensure!(counted()? >= first, "the counts began anew");
    here.change(&["take", "+count"], "taken", 1)?;
    let listed = here.service(&["list"])?;
    ensure!(listed == json!([]), "{listed:#}");
    all_intact(&group.finish()?)?;
    here.finish()
}

#[test]
fn a_user_calls_services_of_its_own_sessions_alone() -> Result<()> {
    const USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let extra = "[api]\ngroup = \"nogroup\"\n";
    let here = OneEnd::with(Lab::builder("packuser").build()?, Family::V4, extra)?;
    let group = here.open(1, &Plan::gentle())?;
    here.change(&["put", "+count=plane=packet"], "put", 1)?;
    let at = SocketAddr::new(Role::Server.at(Family::V4, 0).ip(), 7000);
    let listener = here.lab.server.run(move || TcpListener::bind(at))?;
    let connect = format!("exec 3<>/dev/tcp/{}/7000; exec sleep 1000", at.ip());
    let program = Program::new("setpriv").args(USER);
    let program = here
        .lab
        .client
        .spawn(program.args(["bash", "-c", &connect]))?;
    let (connection, _) = listener.accept()?;
    here.service(&["put", "+count=plane=packet", "--filter", "port=7000"])?;
    let dyscoctl = here.fleet.dyscoctl_path().to_string_lossy().into_owned();
    let call = |port: u16| -> Result<Ran> {
        let filter = format!("port={port}");
        let listed = here.service(&["list", "--filter", &filter])?;
        let session = listed[0]["session"].as_str().context("no session")?;
        let words = [&dyscoctl, "service", "call", session, "count", "read"];
        here.lab
            .client
            .ran("setpriv", &[&USER[..], &words].concat())
    };
    // A dry run is about the user's own sessions, too.
    let words = [
        "service",
        "put",
        "+count=plane=packet",
        "--all",
        "--dry-run",
        "-o",
        "json",
    ];
    let words = [&USER[..], &[&dyscoctl], &words].concat();
    let dry = here.lab.client.ran("setpriv", &words)?;
    ensure!(
        dry.stdout.contains("is none of user 65534")
            && dry.stdout.matches("\"outcome\": \"refused\"").count() == 1,
        "{dry:?}"
    );
    let (own, other) = (call(7000)?, call(9000)?);
    ensure!(own.code == Some(0), "{own:?}");
    ensure!(
        other.code != Some(0) && other.stderr.contains("none of user 65534"),
        "{other:?}"
    );
    drop((connection, program));
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Waits until one session has these services, and no other one has any.
fn wait_listed(here: &OneEnd, services: &[&str]) -> Result<()> {
    wait::until("the services", PATIENCE, || {
        let listed = here.service(&["list"]).ok()?;
        let rows = listed.as_array()?;
        (rows.len() == 1 && rows[0]["services"] == json!(services)).then_some(())
    })
}

#[test]
fn a_rule_gives_them_to_new_sessions_once() -> Result<()> {
    const SERVICES: [&str; 2] = ["count=plane=packet", "shape=rate=800M,plane=packet"];
    let mut here = OneEnd::new("packrule", Family::V4)?;
    let chain = SERVICES.map(|service| format!("\"+{service}\""));
    let rule = format!("ports = [9001]\nchain = [{}]", chain.join(", "));
    give(&here.fleet, &here.lab.client, &rule)?;
    let at = Role::Server.at(Family::V4, 9001);
    let (client, server) = open(&here.lab, at)?;
    wait_listed(&here, &SERVICES)?;
    say(&client, &server, "counted")?;
    say(&server, &client, "as well")?;
    let read = call(&here, &["count", "read"])?;
    ensure!(
        read["answer"]["up"]["packets"].as_u64() > Some(0),
        "{read:#}"
    );
    let taken = here.service(&["take", "--filter", "port=9001"])?;
    ensure!(taken.to_string().contains("\"taken\""), "{taken:#}");
    let session = taken["sessions"][0]["session"]
        .as_str()
        .context("no session")?;
    let shown = here
        .fleet
        .json(&here.lab.client, &["sessions", "show", session])?;
    let texts = shown["history"].as_array().context("no history")?;
    let texts: Vec<_> = texts
        .iter()
        .filter_map(|entry| entry["what"].as_str())
        .collect();
    let events = [
        "services put in: +count +shape",
        "services taken out: +count +shape",
    ];
    ensure!(texts.ends_with(&events), "{shown:#}");
    // Those that open while no dyscod runs do not wait for it, and get them later. The other session does
    // not get them back.
    let ends = here.next_daemon(|lab| {
        let (client, server) = open(lab, at)?;
        say(&client, &server, "at once")?;
        Ok((client, server))
    })?;
    wait_listed(&here, &SERVICES)?;
    drop((client, server, ends));
    here.finish()
}

#[test]
fn a_program_runs_with_them_and_without_a_handler() -> Result<()> {
    let here = OneEnd::new("packrun", Family::V4)?;
    let at = Role::Server.at(Family::V4, 9001);
    let listener = here.lab.server.run(move || TcpListener::bind(at))?;
    let connect = format!("exec 3<>/dev/tcp/{}/9001; head -c 4 <&3", at.ip());
    let program = Program::new(here.fleet.dyscoctl_path());
    let words = ["run", "+count=plane=packet", "--", "bash", "-c", &connect];
    let program = here.lab.client.spawn(program.args(words).named("bash"))?;
    let (mut connection, _) = listener.accept()?;
    wait_listed(&here, &["count=plane=packet"])?;
    connection.write_all(b"done")?;
    drop((program, connection));
    let links = here.lab.client.output("ip", &["-brief", "link"])?;
    ensure!(!links.contains("dysco-s"), "a handler runs: {links}");
    here.finish()
}
