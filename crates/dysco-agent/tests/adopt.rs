//! Sessions of real sockets, adopted, and compared with the entries that their SYNs made in
//! another data plane on the same interface.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dysco_agent::common::adopt::NotAdopted;
use dysco_agent::common::rule::Rule;
use dysco_agent::common::session::offer;
use dysco_agent::common::{FlowKey, Session, State};
use dysco_agent::{Agent, AgentConfig, Attach, Events};
use plane::{alone, ip};

/// A data plane on the loopback interface of this thread's network namespace.
struct Plane {
    agent: Agent,
    _events: Events,
}

impl Plane {
    fn start(name: &str, change: impl FnOnce(&mut AgentConfig)) -> Plane {
        let (agent, events) = plane::start(name, change);
        Plane {
            agent,
            _events: events,
        }
    }

    fn session(&self, key: &FlowKey) -> Option<Session> {
        self.agent.find(key).map(|slot| self.agent.session(slot))
    }
}

fn sysctl(name: &str, value: &str) {
    std::fs::write(format!("/proc/sys/net/ipv4/{name}"), value).unwrap();
}

/// The two ends of a session.
struct Pair {
    opened: TcpStream,
    accepted: TcpStream,
    _listener: TcpListener,
}

impl Pair {
    fn open(at: &str, to: &str) -> Pair {
        let listener = TcpListener::bind(at).unwrap();
        let port = listener.local_addr().unwrap().port();
        let opened = TcpStream::connect((to, port)).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        Pair {
            opened,
            accepted,
            _listener: listener,
        }
    }

    /// Sends `bytes` bytes from the opening end, and twice as many back.
    fn talk(&mut self, bytes: usize) {
        carry(&mut self.opened, &mut self.accepted, bytes);
        carry(&mut self.accepted, &mut self.opened, 2 * bytes);
    }

    fn keys(&self) -> [FlowKey; 2] {
        [&self.opened, &self.accepted].map(|end| {
            let (local, remote) = (end.local_addr().unwrap(), end.peer_addr().unwrap());
            FlowKey::new(local, remote)
        })
    }
}

fn carry(from: &mut TcpStream, to: &mut TcpStream, bytes: usize) {
    let data = vec![7; bytes.min(10_000)];
    let mut got = vec![0; data.len()];
    for _ in 0..bytes.div_ceil(10_000) {
        from.write_all(&data).unwrap();
        to.read_exact(&mut got).unwrap();
    }
}

/// Facts that must be equal on both planes.
fn facts(s: &Session) -> impl PartialEq + std::fmt::Debug {
    let both = s.local.flags & s.remote.flags;
    let scale = |o: u8| if both & offer::WSCALE != 0 { o } else { 0 };
    (
        [s.local.isn, s.remote.isn],
        [s.local.mss, s.remote.mss],
        [scale(s.local.wscale), scale(s.remote.wscale)],
        both,
        [s.snd_max, s.snd_ack, s.rcv_max, s.rcv_ack],
        [s.bytes_in, s.bytes_out],
        (
            [s.life.opened_here, s.life.v6, s.life.fin_out, s.life.fin_in],
            s.key,
        ),
    )
}

/// Waits, since delayed acknowledgements may be on their way.
fn until_same(key: &FlowKey, taught: &Plane, adopted: &Plane) -> [Session; 2] {
    let begun = Instant::now();
    loop {
        let both = [taught, adopted].map(|p| p.session(key).expect("it is known"));
        if facts(&both[0]) == facts(&both[1]) {
            return both;
        }
        if begun.elapsed() > Duration::from_secs(10) {
            let [a, b] = &both;
            assert_eq!(format!("{:?}", facts(a)), format!("{:?}", facts(b)));
        }
        std::thread::yield_now();
    }
}

/// Compares the clocks of an adopted entry with those that packets have taught another: never ahead
/// of the next timestamp sent, and not far behind the last one.
fn clocks_agree(taught: &Session, adopted: &Session) {
    let ticks = |from: u32, to: u32| to.wrapping_sub(from) as i32;
    if taught.local.flags & taught.remote.flags & offer::TIMESTAMPS == 0 {
        assert_eq!((adopted.tsval_in, adopted.tsval_out), (0, 0));
        return;
    }
    let behind = ticks(adopted.tsval_in, taught.tsval_in);
    assert!((0..60_000).contains(&behind), "{adopted:?}");
    let behind = ticks(adopted.tsval_out, taught.tsval_out);
    assert!(behind.abs() < 60_000, "{adopted:?}");
}

#[tokio::test]
async fn an_adopted_session_is_known_as_if_its_syns_had_been_seen() {
    alone();
    let taught = Plane::start("taught", |_| {});
    let mut pairs = Vec::new();
    let options = [
        "tcp_sack",
        "tcp_timestamps",
        "tcp_window_scaling",
        "tcp_ecn",
    ];
    for option in [None].into_iter().chain(options.map(Some)) {
        if let Some(option) = option {
            sysctl(option, if option == "tcp_ecn" { "1" } else { "0" });
        }
        for (at, to) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::1]:0", "::1"),
            // An IPv6 socket that speaks IPv4.
            ("[::]:0", "127.0.0.1"),
        ] {
            let mut pair = Pair::open(at, to);
            pair.talk(200_000);
            pairs.push(pair);
        }
    }
    // Nothing sent yet; one end closed; some bytes that nobody has read.
    pairs.push(Pair::open("127.0.0.1:0", "127.0.0.1"));
    let mut half = Pair::open("127.0.0.1:0", "127.0.0.1");
    half.talk(10);
    half.opened.shutdown(Shutdown::Write).unwrap();
    assert_eq!(half.accepted.read(&mut [0; 1]).unwrap(), 0);
    let mut unread = Pair::open("127.0.0.1:0", "127.0.0.1");
    unread.opened.write_all(&[1; 30_000]).unwrap();
    pairs.extend([half, unread]);

    // With TCX, the second plane's programs would not run after the first plane's.
    let adopted = Plane::start("adopted", |c| c.attach = Attach::Clsact);
    let done = adopted.agent.adopt().unwrap();
    assert_eq!(done.adopted.len(), 2 * pairs.len(), "{done:?}");
    assert_eq!((done.known, done.no_room), (0, 0));
    for pair in &mut pairs {
        for key in pair.keys() {
            let [t, a] = until_same(&key, &taught, &adopted);
            assert!(a.is_adopted() && !t.is_adopted());
            clocks_agree(&t, &a);
        }
    }
    // A known session is not entered twice.
    let again = adopted.agent.adopt().unwrap();
    assert_eq!((again.adopted.len(), again.known), (0, 2 * pairs.len()));

    // Once packets of both ends have passed, the session is tracked, and continues like the
    // other.
    let quiet = adopted.agent.find(&pairs[1].keys()[0]).unwrap();
    pairs[0].talk(50_000);
    for key in pairs[0].keys() {
        let slot = adopted.agent.find(&key).unwrap();
        assert!(adopted.agent.confirm(slot));
        let [t, a] = until_same(&key, &taught, &adopted);
        assert_eq!([t.state, a.state], [State::Tracked as u32; 2]);
        assert!(a.is_adopted());
        assert!((a.tsval_out.wrapping_sub(t.tsval_out) as i32) <= 0);
    }
    assert!(!adopted.agent.confirm(quiet), "nobody has heard it");
}

#[tokio::test]
async fn what_is_not_wanted_or_passes_by_is_left() {
    alone();
    ip("link add other type veth peer name another");
    let wanted = Pair::open("127.0.0.1:0", "127.0.0.1");
    let _unwanted = Pair::open("127.0.0.1:0", "127.0.0.1");
    let port = wanted.accepted.local_addr().unwrap().port();
    let rule = Rule {
        first_port: port,
        last_port: port,
        ..Rule::default()
    };
    // Packets of these sessions pass the loopback interface, and no interface of the data plane.
    let elsewhere = Plane::start("elsewhere", |c| {
        c.interfaces = vec!["other".into()];
        c.rules = vec![rule];
    });
    let done = elsewhere.agent.adopt().unwrap();
    assert!(done.adopted.is_empty());
    assert_eq!(done.left[&NotAdopted::Interface], 2);

    let here = Plane::start("here", |c| c.rules = vec![rule]);
    let done = here.agent.adopt().unwrap();
    let mut found: Vec<_> = done
        .adopted
        .iter()
        .map(|s| here.agent.session(*s).key)
        .collect();
    let mut keys = wanted.keys().to_vec();
    let by_port = |k: &FlowKey| k.local_port;
    found.sort_by_key(by_port);
    keys.sort_by_key(by_port);
    assert_eq!(found, keys);
}

#[tokio::test]
async fn a_full_table_takes_what_it_can() {
    alone();
    let pairs: Vec<_> = (0..20)
        .map(|_| Pair::open("127.0.0.1:0", "127.0.0.1"))
        .collect();
    let plane = Plane::start("full", |c| c.max_sessions = 16);
    let done = plane.agent.adopt().unwrap();
    assert_eq!((done.adopted.len(), done.no_room), (16, 24));
    // Once there is room again, the sessions that found none are taken.
    for slot in &done.adopted[..6] {
        plane.agent.collect(*slot);
    }
    // A program may still use a slot at the first release.
    plane.agent.release_quarantine();
    assert_eq!(plane.agent.adopt().unwrap().adopted.len(), 0);
    plane.agent.release_quarantine();
    let done = plane.agent.adopt().unwrap();
    assert_eq!((done.adopted.len(), done.known), (6, 10));
    drop(pairs);
}

#[tokio::test]
async fn slots_outlive_who_collected_them() {
    alone();
    let pairs: Vec<_> = (0..8)
        .map(|_| Pair::open("127.0.0.1:0", "127.0.0.1"))
        .collect();
    let plane = Plane::start("killed", |c| c.max_sessions = 16);
    let done = plane.agent.adopt().unwrap();
    assert_eq!(done.adopted.len(), 16);
    done.adopted[..6]
        .iter()
        .for_each(|s| plane.agent.collect(*s));
    // Killed before it has given the slots back.
    drop(plane);
    let plane = Plane::start("killed", |c| c.max_sessions = 16);
    assert_eq!(plane.agent.sessions().len(), 10);
    plane.agent.release_quarantine();
    let done = plane.agent.adopt().unwrap();
    assert_eq!((done.adopted.len(), done.known), (6, 10));
    drop(pairs);
}
