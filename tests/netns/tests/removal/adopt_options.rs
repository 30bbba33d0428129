//! Sessions that are older than `dyscod` and were opened in special ways: with data in the SYN,
//! with signatures, or as a subflow of an MPTCP connection.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::world::World;
use anyhow::{Context, Result, ensure};
use dysco_netns::{Family, Lab, Role, counters, echo, wait};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};

const LIMIT: Duration = Duration::from_secs(60);
const PATIENCE: Duration = Duration::from_secs(30);
const PROXY: u16 = 8090;
const SERVER: u16 = 9001;
const DECLARED: &str = "[[listener]]\naddress = \":8090\"\ntransparent = true\n";

fn proxy() -> SocketAddr {
    Role::Proxy.at(Family::V4, PROXY)
}

fn server() -> SocketAddr {
    Role::Server.at(Family::V4, SERVER)
}

fn adopted(w: &World) -> Result<u64> {
    let status = w.fleet.json(&w.lab.proxy, &["status"])?;
    let count = status["sessions"]["adopted"].as_u64();
    count.context("no count of adopted sessions")
}

#[test]
fn a_session_with_data_in_its_syn_leaves_its_proxy() -> Result<()> {
    let fast = |mode: &'static str| {
        move |h: dysco_netns::HostOptions| h.sysctl("net.ipv4.tcp_fastopen", mode)
    };
    // No cookies are needed, on all listening sockets.
    let lab = Lab::builder("adoptfast")
        .host(Role::Client, fast("5"))
        .host(Role::Proxy, fast("1538"));
    let mut w = World::with(lab, Family::V4, &[], "", |c| {
        c.also("tcp", proxy(), server())
    })?;
    w.mode = "local";
    echo::serve(&w.lab.server, server())?;
    let mut stream = echo::connect_with_data(&w.lab.client, proxy())?;
    echo::talk(&mut stream, 1, 50)?;
    let taken = counters::tcp(&w.lab.proxy)?;
    ensure!(
        taken.get("TcpExt.TCPFastOpenPassive") == Some(&1),
        "{taken:?}"
    );

    let daemon = w.fleet.start(&w.lab, Role::Proxy, DECLARED)?;
    w.daemons.push((Role::Proxy, daemon));
    wait::until("both sides to be adopted", LIMIT, || {
        (adopted(&w).ok()? == 2).then_some(())
    })
    .with_context(|| w.state())?;
    let mut said = 2;
    wait::until("the proxy to be able to leave", LIMIT, || {
        echo::talk(&mut stream, said, 10).ok()?;
        said = said.wrapping_add(1);
        let dry = w.remove(&["--all", "--dry-run"]).ok()?;
        (dry["summary"]["removable"] == 1).then_some(())
    })
    .with_context(|| w.state())?;
    let done = w.remove(&["--all"])?;
    ensure!(done["summary"]["removed"] == 1, "{done:#}\n{}", w.state());
    drop(w.haproxy.take());
    echo::talk(&mut stream, 100, 50)?;
    drop(stream);
    w.finish()
}

/// Options that both ends of a session have before it opens.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Plain,
    Signed,
    Multipath,
}

impl Kind {
    fn socket(self, peer: Role) -> io::Result<Socket> {
        let protocol = (self == Kind::Multipath).then_some(Protocol::MPTCP);
        let socket = Socket::new(Domain::IPV4, Type::STREAM, protocol)?;
        socket.set_reuse_address(true)?;
        if self == Kind::Signed {
            echo::sign(&socket, peer.at(Family::V4, 0))?;
        }
        Ok(socket)
    }
}

/// Starts a relay in this process, on the proxy's host, and opens a session through it.
fn relayed(w: &World, kind: Kind) -> Result<TcpStream> {
    echo::serve(&w.lab.server, server())?;
    let listener = w.lab.proxy.run(move || {
        let socket = kind.socket(Role::Client)?;
        socket.bind(&proxy().into())?;
        socket.listen(16)?;
        Ok::<_, io::Error>(std::net::TcpListener::from(socket))
    })?;
    let relaying = w.lab.proxy.thread("relay", move || {
        let Ok((client, _)) = listener.accept() else {
            return;
        };
        let Ok(server) = TcpStream::connect(server()) else {
            return;
        };
        // Each socket has only one descriptor: a socket that is open twice is refused.
        std::thread::scope(|scope| {
            scope.spawn(|| copy(&server, &client));
            copy(&client, &server);
        });
    });
    drop(relaying);
    let stream = w.lab.client.run(move || {
        let socket = kind.socket(Role::Proxy)?;
        socket.connect_timeout(&proxy().into(), PATIENCE)?;
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok::<_, io::Error>(stream)
    })?;
    Ok(stream)
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = io::copy(&mut from, &mut to);
    let _ = to
        .flush()
        .and_then(|()| to.shutdown(std::net::Shutdown::Both));
}

/// Result of a removal by the operator's word, for a busy session of this kind.
fn asked(name: &str, kind: Kind) -> Result<(World, TcpStream, Value)> {
    let mut w = World::with(Lab::builder(name), Family::V4, &[], "", |c| c)?;
    w.mode = "local";
    let mut stream = relayed(&w, kind)?;
    echo::talk(&mut stream, 0, 50)?;
    let daemon = w.fleet.start(&w.lab, Role::Proxy, DECLARED)?;
    w.daemons.push((Role::Proxy, daemon));
    let least = if kind == Kind::Multipath { 1 } else { 2 };
    wait::until("sessions to be adopted", LIMIT, || {
        (adopted(&w).ok()? >= least).then_some(())
    })
    .with_context(|| w.state())?;
    let done = std::thread::scope(|scope| {
        let (ended, until) = std::sync::mpsc::channel::<()>();
        let stream = &mut stream;
        let talking = scope.spawn(move || {
            let mut said = 0_u8;
            while until.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                echo::talk(stream, said, 10)?;
                said = said.wrapping_add(13);
            }
            Ok::<_, anyhow::Error>(())
        });
        let done = w.remove(&["--listen", ":8090", "--all", "--timeout", "30s"]);
        drop(ended);
        talking
            .join()
            .map_err(|_| anyhow::anyhow!("who talks panicked"))??;
        done
    })?;
    echo::talk(&mut stream, 200, 50).with_context(|| format!("{done:#}"))?;
    Ok((w, stream, done))
}

/// This relay can leave a session without options: the following removals are refused because of
/// the session's options.
#[test]
fn a_plain_session_leaves_such_a_relay() -> Result<()> {
    let (w, stream, done) = asked("adoptplain", Kind::Plain)?;
    ensure!(done["summary"]["removed"] == 1, "{done:#}\n{}", w.state());
    drop(stream);
    w.finish()
}

#[test]
fn a_signed_session_is_refused() -> Result<()> {
    let (w, stream, done) = asked("adoptmd5", Kind::Signed)?;
    ensure!(done["summary"]["refused"] == 1, "{done:#}\n{}", w.state());
    let why = done["removals"][0]["reason"].to_string();
    ensure!(why.contains("MD5"), "{why}");
    drop(stream);
    w.finish()
}

#[test]
fn an_mptcp_connection_is_refused() -> Result<()> {
    let (w, stream, done) = asked("adoptmptcp", Kind::Multipath)?;
    ensure!(done["summary"]["refused"] == 1, "{done:#}\n{}", w.state());
    let why = done["removals"][0]["reason"].to_string();
    ensure!(why.contains("MPTCP"), "{why}");
    drop(stream);
    w.finish()
}
