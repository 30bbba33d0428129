//! Services that sessions have from their first byte on, by a rule of the policy.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::Fleet;
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Program, Role, capture, wait};
use nix::unistd::setfsuid;
use serde_json::{Value, json};

use crate::both_ends::BothEnds;
use crate::services::OneEnd;

/// Time within which an end gets what the other one has sent.
const SOON: Duration = Duration::from_secs(20);

/// Puts a policy with one rule in force on a host: these sessions have these services.
pub(crate) fn give(fleet: &Fleet, host: &Host, rule: &str) -> Result<()> {
    let file = host.dir().join("rule.toml");
    let file = file.to_str().context("no path")?;
    fs::write(file, format!("[[rule]]\n{rule}\n"))?;
    fleet.json(host, &["policy", "apply", file])?;
    Ok(())
}

/// Opens a session. Returns the ends of the client and of the server.
pub(crate) fn open(lab: &Lab, at: SocketAddr) -> Result<(TcpStream, TcpStream)> {
    let listener = lab.server.run(move || TcpListener::bind(at))?;
    let client = lab.client.run(move || TcpStream::connect(at))?;
    let (server, _) = listener.accept()?;
    for end in [&client, &server] {
        end.set_read_timeout(Some(SOON))?;
    }
    Ok((client, server))
}

pub(crate) fn say(mut from: &TcpStream, mut to: &TcpStream, word: &str) -> Result<()> {
    from.write_all(word.as_bytes())?;
    let mut got = vec![0; word.len()];
    to.read_exact(&mut got)
        .with_context(|| format!("'{word}'"))?;
    ensure!(got == word.as_bytes(), "{got:?} for '{word}'");
    Ok(())
}

/// Returns the counts of the service `count` of the only session that has services.
pub(crate) fn counts(fleet: &Fleet, host: &Host) -> Result<Value> {
    let listed = fleet.json(host, &["service", "list"])?;
    let session = listed[0]["session"].as_str().context("no session")?;
    let answer = fleet.json(host, &["service", "call", session, "count", "read"])?;
    Ok(answer["answer"].clone())
}

#[test]
fn a_rule_gives_sessions_services_before_the_first_byte() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let here = OneEnd::new(&format!("first{}", family as u8), family)?;
        let (fleet, host) = (&here.fleet, &here.lab.client);
        give(fleet, host, "ports = [9001]\nchain = [\"+count\"]")?;
        let (client, server) = open(&here.lab, Role::Server.at(family, 9001))?;
        // Whichever end begins.
        say(&server, &client, "welcome")?;
        say(&client, &server, "hello")?;
        let counted = counts(fleet, host)?;
        ensure!(counted == json!({"forward": 5, "back": 7}), "{counted}");
        let explained = fleet.json(host, &["policy", "explain", "10.0.0.1", "10.0.0.2:9001"]);
        ensure!(explained?["verdict"] == "services", "no services");
        // Other sessions have none.
        let group = here.open(1, &Plan::gentle())?;
        let listed = here.service(&["list"])?;
        ensure!(
            listed.as_array().is_some_and(|all| all.len() == 1),
            "{listed}"
        );
        all_intact(&group.finish()?)?;
        drop((client, server));
        here.finish()?;
    }
    Ok(())
}

/// Answers a SOCKS5 client as a proxy does that connects to `target` (RFC 1928).
fn serve_socks(mut end: &TcpStream, target: SocketAddr) -> Result<()> {
    let read = |mut end: &TcpStream, len: usize| {
        let mut bytes = vec![0; len];
        end.read_exact(&mut bytes).map(|()| bytes)
    };
    let methods = read(end, 3).context("no greeting")?;
    ensure!(methods == [5, 1, 0], "{methods:?}");
    end.write_all(&[5, 0])?;
    let (kind, address) = match target.ip() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (4, ip.octets().to_vec()),
    };
    let port = target.port().to_be_bytes();
    let expected = [&[5, 1, 0, kind], &address[..], &port].concat();
    let request = read(end, expected.len()).context("no request")?;
    ensure!(request == expected, "{request:?} for {expected:?}");
    end.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0])?;
    Ok(())
}

/// The program knows nothing of the proxy. Once the handshake is over, no handler has the session.
#[test]
fn a_socks_proxy_gets_its_handshake_and_the_service_leaves() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let here = OneEnd::new(&format!("socks{}", family as u8), family)?;
        let target = Role::Server.at(family, 9002);
        let rule = format!("ports = [9001]\nchain = [\"+socks=target={target}\"]");
        give(&here.fleet, &here.lab.client, &rule)?;
        let (client, server) = open(&here.lab, Role::Server.at(family, 9001))?;
        serve_socks(&server, target)?;
        wait::until("the service to leave", SOON, || {
            let listed = here
                .fleet
                .json(&here.lab.client, &["service", "list"])
                .ok()?;
            (listed[0]["state"] == "direct").then_some(())
        })?;
        let listed = here.fleet.json(&here.lab.client, &["service", "list"])?;
        let request = if family == Family::V4 { 10 } else { 22 };
        ensure!(listed[0]["delta"] == json!([3 + request, -12]), "{listed}");
        say(&client, &server, "hello")?;
        say(&server, &client, "welcome")?;
        drop((client, server));
        here.finish()?;
    }
    Ok(())
}

/// A proxy that wants a password is not spoken to any further: neither end takes the session for
/// open.
#[test]
fn a_socks_proxy_that_refuses_ends_the_session() -> Result<()> {
    let here = OneEnd::new("socksno", Family::V4)?;
    let rule = "ports = [9001]\nchain = [\"+socks=target=10.0.3.1:9002\"]";
    give(&here.fleet, &here.lab.client, rule)?;
    let (mut client, mut server) = open(&here.lab, Role::Server.at(Family::V4, 9001))?;
    let mut methods = [0; 3];
    server.read_exact(&mut methods)?;
    server.write_all(&[5, 0xff])?;
    for end in [&mut client, &mut server] {
        let read = end.read(&mut [0; 8]);
        let reset = matches!(&read, Err(error) if error.kind() == ErrorKind::ConnectionReset);
        ensure!(reset, "{read:?}");
    }
    here.finish()
}

/// An open session has no handshake for the proxy any more: its bytes would be taken for the answer.
#[test]
fn a_session_that_is_open_has_no_handshake_for_a_proxy() -> Result<()> {
    let here = OneEnd::new("sockslate", Family::V4)?;
    let group = here.open(1, &Plan::gentle())?;
    for dry in [&["--dry-run"][..], &[]] {
        let put = [&["put", "+socks=target=10.9.9.9:1"], dry].concat();
        let refused = here.change(&put, "refused", 1)?;
        ensure!(refused.to_string().contains("have passed"), "{refused:#}");
    }
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Returns the number of sessions that have services.
fn served(here: &OneEnd) -> Result<usize> {
    let listed = here.service(&["list"])?;
    listed.as_array().map(Vec::len).context("no list")
}

#[test]
fn a_rule_gives_the_sessions_of_a_users_programs_services() -> Result<()> {
    const NOBODY: u32 = 65_534;
    let here = OneEnd::new("firstuser", Family::V4)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    let rule = "user = \"nobody\"\nports = [9001]\nchain = [\"+count\"]";
    give(fleet, host, rule)?;
    let explain = ["policy", "explain", "10.0.1.1", "10.0.3.1:9001"];
    for (user, verdict) in [
        ("nobody", "services"),
        ("65534", "services"),
        ("root", "direct"),
    ] {
        let explained = fleet.json(host, &[&explain[..], &["--user", user]].concat())?;
        ensure!(explained["verdict"] == verdict, "{user}: {explained}");
    }
    let at = Role::Server.at(Family::V4, 9001);
    let of_root = open(&here.lab, at)?;
    say(&of_root.0, &of_root.1, "hello")?;
    ensure!(served(&here)? == 0, "another user's session has services");
    let listener = here.lab.server.run(move || TcpListener::bind(at))?;
    let client = host.run(move || {
        // The user of a socket is that of the file system, of the thread that makes it.
        setfsuid(NOBODY.into());
        let client = TcpStream::connect(at);
        setfsuid(0.into());
        client
    })?;
    let (server, _) = listener.accept()?;
    server.set_read_timeout(Some(SOON))?;
    say(&client, &server, "hello")?;
    ensure!(served(&here)? == 1, "the session has no services");
    let counted = counts(fleet, host)?;
    ensure!(counted == json!({"forward": 5, "back": 0}), "{counted}");
    drop((of_root, client, server));
    here.finish()
}

#[test]
fn a_rule_gives_the_sessions_of_a_control_group_services() -> Result<()> {
    let here = OneEnd::new("firstgroup", Family::V4)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    let name = format!("dysco-test-{}", std::process::id());
    let rule = format!("cgroup = \"{name}\"\nports = [9001]\nchain = [\"+count\"]");
    give(fleet, host, &rule)?;
    let absent = || -> Result<bool> {
        let listed = fleet.json(host, &["policy", "list"])?;
        Ok(listed["rules"][0]["absent"] == true)
    };
    ensure!(absent()?, "there is no such group yet");
    let root = host.dir().join("cgroup");
    let root = root.to_str().context("no path")?;
    let make = format!("mkdir {root} && mount -t cgroup2 none {root} && mkdir -p {root}/{name}/in");
    host.output("sh", &["-c", &make])?;
    wait::until("the group to be found", SOON, || {
        absent().is_ok_and(|absent| !absent).then_some(())
    })?;
    let at = Role::Server.at(Family::V4, 9001);
    let listener = here.lab.server.run(move || TcpListener::bind(at))?;
    let others = host.run(move || TcpStream::connect(at))?;
    let server_of_others = listener.accept()?.0;
    server_of_others.set_read_timeout(Some(SOON))?;
    say(&others, &server_of_others, "hello")?;
    ensure!(served(&here)? == 0, "a session of no group has services");
    let join = format!("echo $$ > {root}/{name}/in/cgroup.procs && exec socat - TCP:{at}");
    let mut program = host.spawn(Program::new("sh").args(["-c", &join]))?;
    let (server, _) = listener.accept()?;
    (&server).write_all(b"welcome")?;
    wait::until("the session to be listed", SOON, || {
        (served(&here).ok()? == 1).then_some(())
    })?;
    drop((server, others, server_of_others));
    wait::until("the program to end", SOON, || {
        (!program.runs()).then_some(())
    })?;
    host.output(
        "sh",
        &[
            "-c",
            &format!("rmdir {root}/{name}/in {root}/{name}; umount {root}"),
        ],
    )?;
    drop(program);
    here.finish()
}

/// A session that opens while a handler runs is held for milliseconds: the ends have said nothing
/// but their handshake.
#[test]
fn sessions_that_open_later_have_them_whichever_end_begins() -> Result<()> {
    let here = OneEnd::new("firstlater", Family::V4)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    let ports = 9001..9017;
    give(fleet, host, "ports = [\"9001-9016\"]\nchain = [\"+count\"]")?;
    let mut all = Vec::new();
    for port in ports {
        let (client, server) = open(&here.lab, Role::Server.at(Family::V4, port))?;
        let (first, second) = match port % 2 {
            0 => (&client, &server),
            _ => (&server, &client),
        };
        say(first, second, "hello").with_context(|| format!("port {port}"))?;
        say(second, first, "welcome").with_context(|| format!("port {port}"))?;
        all.push((client, server));
    }
    let listed = here.service(&["list"])?;
    ensure!(
        listed.as_array().is_some_and(|l| l.len() == all.len()),
        "{listed}"
    );
    drop(all);
    here.finish()
}

#[test]
fn every_byte_of_busy_sessions_passes() -> Result<()> {
    let lab = Lab::builder("firstbusy").loss(1.0).build()?;
    let here = OneEnd::over(lab, Family::V4)?;
    give(
        &here.fleet,
        &here.lab.client,
        "ports = [9000]\nchain = [\"+count\"]",
    )?;
    let group = here.open(20, &Plan::gentle())?;
    let listed = here.service(&["list"])?;
    let rows = listed.as_array().context("no list")?;
    ensure!(
        rows.len() == 20 && rows.iter().all(|row| row["state"] == "in"),
        "{listed:#}"
    );
    here.change(&["take"], "taken", 20)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Not one byte is readable between the hosts, from the first one on.
#[test]
fn no_byte_is_plain_if_a_rule_encrypts() -> Result<()> {
    let both = BothEnds::new("firstplain", Family::V4)?;
    let here = &both.here;
    give(
        &here.fleet,
        &here.lab.client,
        "ports = [9001]\nchain = [\"+crypt\"]",
    )?;
    let capture = capture::start(&here.lab.router, "server")?;
    let (client, server) = open(&here.lab, Role::Server.at(Family::V4, 9001))?;
    say(&server, &client, "a welcome that is secret")?;
    say(&client, &server, "an answer that is secret")?;
    both.wait_there(1)?;
    let filter = ["--filter", "port=9001", "--wait"];
    here.service(&[&["take"][..], &filter].concat())?;
    both.wait_there(0)?;
    say(&client, &server, "the end is plain")?;
    drop((client, server));
    let has = |word| here.has_captured(word);
    let captured = || has("the end is plain").then_some(());
    wait::until("the last word", Duration::from_secs(30), captured)?;
    drop(capture);
    ensure!(!has("that is secret"), "it was readable");
    both.finish()
}

/// Without services the session is not: it is reset, and the program knows.
#[test]
fn a_session_that_cannot_have_them_is_reset_or_goes_direct() -> Result<()> {
    let here = OneEnd::new("firstnone", Family::V4)?;
    let (fleet, host) = (&here.fleet, &here.lab.client);
    give(fleet, host, "ports = [9001]\nchain = [\"+crypt\"]")?;
    let (client, server) = open(&here.lab, Role::Server.at(Family::V4, 9001))?;
    for (end, kind) in [
        (&client, ErrorKind::ConnectionAborted),
        (&server, ErrorKind::ConnectionReset),
    ] {
        let mut end = end;
        let read = end.read(&mut [0]).map_err(|error| error.kind());
        ensure!(read == Err(kind), "{read:?}");
    }
    let rule = "ports = [9002]\nchain = [\"+crypt\"]\notherwise = \"direct\"";
    give(fleet, host, rule)?;
    let (client, server) = open(&here.lab, Role::Server.at(Family::V4, 9002))?;
    say(&client, &server, "without")?;
    say(&server, &client, "them")?;
    here.finish()
}

#[test]
fn the_next_daemon_serves_sessions_that_opened_meanwhile() -> Result<()> {
    let mut here = OneEnd::new("firstdies", Family::V4)?;
    give(
        &here.fleet,
        &here.lab.client,
        "ports = [9001]\nchain = [\"+count\"]",
    )?;
    let (_client, server) = here.next_daemon(|lab| {
        let (client, server) = open(lab, Role::Server.at(Family::V4, 9001))?;
        (&client).write_all(b"patient")?;
        Ok((client, server))
    })?;
    let mut got = [0; 7];
    (&server).read_exact(&mut got)?;
    ensure!(&got == b"patient", "{got:?}");
    let counted = counts(&here.fleet, &here.lab.client)?;
    ensure!(counted == json!({"forward": 7, "back": 0}), "{counted}");
    here.finish()
}

#[test]
fn a_bad_rule_is_refused_with_its_reason() -> Result<()> {
    let here = OneEnd::new("firstbad", Family::V4)?;
    for (chain, why) in [
        ("[\"+nonsense\"]", "nonsense"),
        ("[\"+count=a=b\"]", "count"),
        ("[\"+crypt\", \"10.9.9.9\"]", "past them"),
    ] {
        let refused = give(&here.fleet, &here.lab.client, &format!("chain = {chain}"));
        let refused = refused.err().map(|error| format!("{error:#}"));
        ensure!(
            refused.as_ref().is_some_and(|text| text.contains(why)),
            "{chain}: {refused:?}"
        );
    }
    here.finish()
}
