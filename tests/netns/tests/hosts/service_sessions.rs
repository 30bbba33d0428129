//! Sessions of special kinds that get services, or the reason why they cannot; and the events of
//! these changes.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Process, Role, echo, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

use crate::services::OneEnd;

const LIMIT: Duration = Duration::from_secs(60);

/// The sessions were open before `dyscod` started.
#[test]
fn services_come_into_adopted_sessions() -> Result<()> {
    let lab = Lab::builder("svcadopt").build()?;
    let (here, group) = OneEnd::late(lab, Family::V4, 3, &Plan::gentle())?;
    let adopted = || {
        let status = here.fleet.json(&here.lab.client, &["status"]).ok()?;
        (status["sessions"]["adopted"] == 3).then_some(())
    };
    wait::until("the sessions to be adopted", LIMIT, adopted)?;
    group.wait_progress(200_000)?;
    for service in ["+count", "+null"] {
        here.change(&["put", service], "put", 3)?;
        group.wait_more(200_000, LIMIT)?;
        here.change(&["take"], "taken", 3)?;
        group.wait_more(200_000, LIMIT)?;
    }
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Opens a session between sockets that are made alike, given the role of the other end.
fn opened(
    here: &OneEnd,
    make: impl Fn(Role) -> io::Result<Socket> + Copy + Send + 'static,
) -> Result<[TcpStream; 2]> {
    let at = Role::Server.at(Family::V4, 9001);
    let listener = here.lab.server.run(move || -> io::Result<_> {
        let socket = make(Role::Client)?;
        socket.set_reuse_address(true)?;
        socket.bind(&at.into())?;
        socket.listen(1)?;
        Ok(TcpListener::from(socket))
    })?;
    let opened = here.lab.client.run(move || -> io::Result<_> {
        let socket = make(Role::Server)?;
        socket.connect_timeout(&at.into(), LIMIT)?;
        Ok(TcpStream::from(socket))
    })?;
    Ok([opened, listener.accept()?.0])
}

/// Checks that a session gets no service for this reason, and goes on.
fn is_refused(
    name: &str,
    make: impl Fn(Role) -> io::Result<Socket> + Copy + Send + 'static,
    reason: &str,
) -> Result<()> {
    let here = OneEnd::new(name, Family::V4)?;
    let [mut opened, mut accepted] = opened(&here, make)?;
    let filter = ["--filter", "port=9001", "--wait"];
    let done = here.service(&[&["put", "+count"], &filter[..]].concat())?;
    let one = &done["sessions"][0];
    ensure!(done["exit"] == 5 && one["outcome"] == "refused", "{done:#}");
    let why = one["reason"]["why"].to_string();
    ensure!(why.contains(reason), "{why}");
    opened.write_all(b"goes on")?;
    let mut heard = [0; 7];
    accepted.set_read_timeout(Some(LIMIT))?;
    accepted.read_exact(&mut heard)?;
    ensure!(&heard == b"goes on");
    drop((opened, accepted));
    here.finish()
}

#[test]
fn a_session_of_mptcp_has_no_services() -> Result<()> {
    let make = |_| Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    is_refused("svcmptcp", make, "MPTCP")
}

#[test]
fn a_session_that_is_signed_has_no_services() -> Result<()> {
    let make = |peer: Role| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        echo::sign(&socket, peer.at(Family::V4, 0))?;
        Ok(socket)
    };
    is_refused("svcmd5", make, "TCP-MD5")
}

/// Waits for so many events of a kind.
fn hear(monitor: &Process, kind: &str, count: usize) -> Result<Vec<Value>> {
    let mut heard = Vec::new();
    wait::until("the events", LIMIT, || {
        let log = monitor.log();
        let events = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        heard = events.filter(|e: &Value| e["kind"] == kind).collect();
        (heard.len() >= count).then_some(())
    })
    .with_context(|| format!("{kind}: {}", monitor.log()))?;
    ensure!(heard.len() == count, "{kind}: {heard:#?}");
    Ok(heard)
}

#[test]
fn each_change_is_an_event() -> Result<()> {
    let here = OneEnd::new("svcevent", Family::V4)?;
    let mut monitor = here.fleet.monitor(&here.lab.client)?;
    let group = here.open(2, &Plan::gentle())?;
    here.change(&["put", "+count"], "put", 2)?;
    let put = hear(&monitor, "services-put", 2)?;
    ensure!(
        put.iter().all(|e| {
            let text = e["text"].as_str().unwrap_or_default();
            e["session"].is_string() && text.starts_with("+count; by root")
        }),
        "{put:#?}"
    );
    here.change(&["take"], "taken", 2)?;
    hear(&monitor, "services-taken", 2)?;
    here.change(&["put", "+count"], "put", 2)?;
    let listed = here.service(&["list"])?;
    let handler = listed[0]["handler"].as_i64().context("no handler")?;
    kill(Pid::from_raw(handler as i32), Signal::SIGKILL)?;
    hear(&monitor, "service-failed", 2)?;
    monitor.stop()?;
    drop(group);
    here.finish()
}
