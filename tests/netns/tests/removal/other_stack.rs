//! The far end need not be Linux: the client's TCP is a stack in user space, on a TAP behind the
//! client's host, which only forwards.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::world::World;
use anyhow::{Context, Result, ensure};
use dysco_netns::{Builder, Family, Host, Lab, Role, wait};
use dysco_pattern::Pattern;
use sha2::{Digest, Sha256};
use smoltcp::iface::{Config, Interface, SocketSet};
use smoltcp::phy::{Medium, TunTapInterface, wait as wait_for};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::{Duration as Ticks, Instant};
use smoltcp::wire::{EthernetAddress, IpCidr};

/// Port of an echo server behind the proxy.
const ECHO: u16 = 9001;
const ECHO_PROXY: u16 = 8090;
const CONFIG: &str = "[[listener]]\naddress = \":8090\"\ntransparent = true\n";
const SEED: u64 = 0x5eed;
const BUFFER: usize = 256 << 10;
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the addresses of the TAP: the host's end and the stack's end.
fn tap(family: Family) -> [IpAddr; 2] {
    let parse = |text: &str| text.parse().expect("an address");
    match family {
        Family::V4 => ["10.8.0.1", "10.8.0.2"].map(parse),
        Family::V6 => ["fd08::1", "fd08::2"].map(parse),
    }
}

/// Creates the TAP on the client's host, and the routes to it and back.
fn make_tap(lab: &Lab, family: Family) -> Result<()> {
    let [host, _] = tap(family);
    let (net, bits, nodad) = match family {
        Family::V4 => ("10.8.0.0/24", 24, ""),
        Family::V6 => ("fd08::/64", 64, " nodad"),
    };
    let near = format!(
        "tuntap add dev tap0 mode tap\nlink set tap0 up\naddr add {host}/{bits} dev tap0{nodad}\n"
    );
    lab.client.input("ip", &["-batch", "-"], &near)?;
    lab.client.sysctl("net.ipv4.ip_forward", "1")?;
    lab.client.sysctl("net.ipv6.conf.all.forwarding", "1")?;
    let via = Role::Client.address(family);
    let far = format!("route add {net} via {via}\n");
    lab.router.input("ip", &["-batch", "-"], &far).map(drop)
}

/// Controls and measurements of the stack's session.
#[derive(Default)]
struct Gauge {
    received: AtomicU64,
    stop: AtomicBool,
}

impl Gauge {
    /// Waits until this number of further bytes has returned.
    fn wait(&self, bytes: u64) -> Result<()> {
        let at = || self.received.load(Ordering::SeqCst);
        let goal = at() + bytes;
        wait::until("the stack's session to get on", LIMIT, || {
            (at() >= goal).then_some(())
        })
    }
}

/// SHA-256 of the sent data and of the returned data.
type Hashes = [Vec<u8>; 2];

/// Runs the stack, and one session that sends until it is stopped.
fn start(
    host: &Host,
    family: Family,
    to: SocketAddr,
) -> Result<(Arc<Gauge>, JoinHandle<Result<Hashes>>)> {
    let gauge = Arc::<Gauge>::default();
    let shared = gauge.clone();
    let thread = host.thread("stack", move || run(family, to, &shared))?;
    Ok((gauge, thread))
}

fn run(family: Family, to: SocketAddr, gauge: &Gauge) -> Result<Hashes> {
    let [gateway, own] = tap(family);
    let mut device = TunTapInterface::new("tap0", Medium::Ethernet).context("no TAP")?;
    let config = Config::new(EthernetAddress([2, 0, 0, 0, 8, 2]).into());
    let mut stack = Interface::new(config, &mut device, Instant::now());
    let bits = if own.is_ipv4() { 24 } else { 64 };
    let mut room = Ok(());
    stack.update_ip_addrs(|all| room = all.push(IpCidr::new(own.into(), bits)));
    ensure!(room.is_ok(), "the stack takes no address");
    match gateway {
        IpAddr::V4(ip) => stack.routes_mut().add_default_ipv4_route(ip).map(drop),
        IpAddr::V6(ip) => stack.routes_mut().add_default_ipv6_route(ip).map(drop),
    }
    .map_err(|e| anyhow::anyhow!("the stack takes no route: {e:?}"))?;
    let buffer = || SocketBuffer::new(vec![0; BUFFER]);
    let mut sockets = SocketSet::new(vec![]);
    let handle = sockets.add(Socket::new(buffer(), buffer()));
    let socket = sockets.get_mut::<Socket>(handle);
    socket
        .connect(stack.context(), to, 50_000)
        .map_err(|e| anyhow::anyhow!("the stack does not connect: {e:?}"))?;
    let mut session = Session::default();
    loop {
        stack.poll(Instant::now(), &mut device, &mut sockets);
        if session.goes_on(sockets.get_mut::<Socket>(handle), gauge)? {
            return Ok(session.hashes.map(|hash| hash.finalize().to_vec()));
        }
        let due = stack.poll_delay(Instant::now(), &sockets);
        let due = due
            .unwrap_or(Ticks::from_millis(20))
            .min(Ticks::from_millis(20));
        wait_for(device.as_raw_fd(), Some(due)).context("the TAP fails")?;
    }
}

/// Progress of the stack's session.
#[derive(Default)]
struct Session {
    sent: u64,
    hashes: [Sha256; 2],
    closed: bool,
}

impl Session {
    /// Sends and receives as much as possible. Returns true once both ends have closed.
    fn goes_on(&mut self, socket: &mut Socket, gauge: &Gauge) -> Result<bool> {
        let pattern = Pattern::new(SEED);
        let mut bytes = [0; 16 << 10];
        while socket.can_recv() {
            let n = socket
                .recv_slice(&mut bytes)
                .map_err(|e| anyhow::anyhow!("{e:?}"))?;
            let at = gauge.received.fetch_add(n as u64, Ordering::SeqCst);
            let wrong = pattern.first_wrong(at, &bytes[..n]);
            ensure!(wrong.is_none(), "byte {wrong:?} is wrong");
            self.hashes[1].update(&bytes[..n]);
        }
        let stopped = gauge.stop.load(Ordering::SeqCst);
        while socket.can_send() && !stopped {
            pattern.fill(self.sent, &mut bytes);
            let n = socket
                .send_slice(&bytes)
                .map_err(|e| anyhow::anyhow!("{e:?}"))?;
            self.hashes[0].update(&bytes[..n]);
            self.sent += n as u64;
        }
        if stopped && !self.closed {
            socket.close();
            self.closed = true;
        }
        match socket.state() {
            State::TimeWait => Ok(true),
            State::Closed => anyhow::bail!("the stack's session was reset at {}", self.sent),
            _ => Ok(false),
        }
    }
}

/// Echoes the data of one session. Returns its SHA-256.
fn echo(host: &Host, at: SocketAddr) -> Result<JoinHandle<Result<Vec<u8>>>> {
    let listener = host
        .run(move || TcpListener::bind(at))
        .context("no listener")?;
    host.thread("echo", move || {
        let (mut stream, _) = listener.accept()?;
        let (mut hash, mut bytes) = (Sha256::new(), vec![0; 64 << 10]);
        loop {
            match stream.read(&mut bytes)? {
                0 => return Ok(hash.finalize().to_vec()),
                n => {
                    hash.update(&bytes[..n]);
                    stream.write_all(&bytes[..n])?;
                }
            }
        }
    })
}

fn leaves(builder: Builder, family: Family) -> Result<()> {
    let at = |role: Role, port| role.at(family, port);
    let mut w = World::with(builder, family, &[Role::Proxy], CONFIG, |c| {
        c.also("tcp", at(Role::Proxy, ECHO_PROXY), at(Role::Server, ECHO))
    })?;
    w.mode = "local";
    make_tap(&w.lab, family)?;
    let heard = echo(&w.lab.server, at(Role::Server, ECHO))?;
    let (gauge, stack) = start(&w.lab.client, family, at(Role::Proxy, ECHO_PROXY))?;
    gauge.wait(1 << 20)?;
    let done = w.remove(&["--all", "--timeout", "60s"])?;
    ensure!(done["summary"]["removed"] == 1, "{done:#}\n{}", w.state());
    gauge.wait(1 << 20)?;
    drop(w.haproxy.take());
    gauge.wait(4 << 20)?;
    gauge.stop.store(true, Ordering::SeqCst);
    let join = |what: &str| format!("{what} panicked");
    let [sent, back] = stack
        .join()
        .map_err(|_| anyhow::anyhow!(join("the stack")))??;
    let heard = heard
        .join()
        .map_err(|_| anyhow::anyhow!(join("the echo")))??;
    ensure!(
        sent == heard && sent == back,
        "the SHA-256 are not the same"
    );
    w.finish()
}

#[test]
fn a_stack_in_user_space_ipv4() -> Result<()> {
    leaves(Lab::builder("stack4"), Family::V4)
}

#[test]
fn a_stack_in_user_space_ipv6() -> Result<()> {
    leaves(Lab::builder("stack6"), Family::V6)
}

#[test]
fn a_stack_in_user_space_with_loss() -> Result<()> {
    leaves(Lab::builder("stackloss").loss(0.5), Family::V4)
}
