mod restore;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::*;

/// A connection of this process to itself.
struct Connection {
    opened: OwnedFd,
    key: FlowKey,
    _accepted: TcpStream,
}

impl Connection {
    fn open() -> Connection {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Connection {
            key: FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap()),
            _accepted: listener.accept().unwrap().0,
            opened: opened.into(),
        }
    }

    fn text(&self, option: SocketOption) -> String {
        Value::read(&self.opened, option).unwrap().text(option)
    }

    fn plan(&self, wish: Wish) -> Result<Plan, TuneError> {
        plan(&[(self.key, wish)], None).unwrap().remove(0)
    }

    fn set(&self, options: TuneOptions) -> (u64, Vec<Tuned>) {
        let plan = self.plan(Wish::Set(options)).unwrap();
        let set = done(&plan).into_iter().map(Tuned::from);
        (plan.socket.cookie, set.collect())
    }
}

/// Carries out a plan of which nothing fails.
fn done(plan: &Plan) -> Vec<Change> {
    let carried = carry_out(plan).unwrap();
    assert!(carried.failed.is_empty(), "{carried:?}");
    carried.changes
}

/// Waits until the socket is refused for the right reason. The kernel replaces a closed socket by a
/// smaller one, and its list may lack both for a moment.
fn refused(key: FlowKey, right: impl Fn(&TuneError) -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = plan(&[(key, Wish::Set(options()))], None)
            .unwrap()
            .remove(0);
        match answer {
            Err(error) if right(&error) => return,
            other => assert!(Instant::now() < end, "{other:?}"),
        }
        thread::yield_now();
    }
}

const ALL: [SocketOption; 7] = [
    SocketOption::Congestion,
    SocketOption::Rate,
    SocketOption::Keepalive,
    SocketOption::KeepaliveIdle,
    SocketOption::KeepaliveInterval,
    SocketOption::UserTimeout,
    SocketOption::Nodelay,
];

/// Returns options that differ from the kernel's defaults. Every kernel has reno.
fn options() -> TuneOptions {
    TuneOptions {
        congestion: Some("reno".parse().unwrap()),
        rate: Some("20M".parse().unwrap()),
        keepalive: Some("30s".parse().unwrap()),
        user_timeout: Some("1500ms".parse().unwrap()),
        nodelay: Some(true),
    }
}

#[test]
fn every_option_is_set_and_put_back() {
    let connection = Connection::open();
    // The program has its own values.
    let own = [
        (SocketOption::Keepalive, 1),
        (SocketOption::KeepaliveIdle, 1234),
        (SocketOption::UserTimeout, 77_777),
        (SocketOption::Rate, 1_234_567),
    ];
    for (option, value) in own {
        Value::Number(value)
            .set(&connection.opened, option)
            .unwrap();
    }
    let all = || ALL.map(|option| connection.text(option));
    let before = all();
    let (cookie, set) = connection.set(options());
    let expected = ["reno", "20M", "on", "30s", "10s", "1500ms", "on"];
    assert_eq!(all(), expected);
    // Nothing is left to be done.
    let again = connection.plan(Wish::Set(options())).unwrap();
    assert!(again.changes.is_empty(), "{again:?}");
    let back = connection.plan(Wish::Restore { cookie, set }).unwrap();
    assert!(back.own.is_empty());
    done(&back);
    assert_eq!(all(), before);
    assert_eq!(before[3], "1234s");
}

#[test]
fn a_rate_without_a_limit_is_put_back_as_such() {
    let connection = Connection::open();
    let rate = || connection.text(SocketOption::Rate);
    assert_eq!(rate(), "off");
    let limit = |rate: &str| TuneOptions {
        rate: Some(rate.parse().unwrap()),
        ..TuneOptions::default()
    };
    let (cookie, set) = connection.set(limit("8M"));
    assert_eq!(rate(), "8M");
    let set = Wish::Restore { cookie, set };
    done(&connection.plan(set).unwrap());
    assert_eq!(rate(), "off");
    connection.set(limit("1.5G"));
    assert_eq!(rate(), "1500M");
    connection.set(limit("off"));
    assert_eq!(rate(), "off");
}

#[test]
fn what_the_program_sets_itself_since_stays() {
    let connection = Connection::open();
    let (cookie, set) = connection.set(options());
    let own = Value::Number(99_000);
    own.set(&connection.opened, SocketOption::UserTimeout)
        .unwrap();
    let back = connection.plan(Wish::Restore { cookie, set }).unwrap();
    assert_eq!(back.own, [(SocketOption::UserTimeout, own)]);
    done(&back);
    assert_eq!(connection.text(SocketOption::UserTimeout), "99s");
    assert_eq!(connection.text(SocketOption::Rate), "off");
}

#[test]
fn another_socket_with_the_same_addresses_is_left_alone() {
    let connection = Connection::open();
    let (cookie, set) = connection.set(options());
    let wish = Wish::Restore {
        cookie: cookie + 1,
        set,
    };
    let error = connection.plan(wish).unwrap_err();
    assert!(matches!(error, TuneError::Replaced), "{error}");
    assert!(error.is_over());
    assert_eq!(connection.text(SocketOption::Rate), "20M");
}

#[test]
fn a_value_that_the_kernel_refuses_leaves_all_as_it_was() {
    let connection = Connection::open();
    let mut plan = connection.plan(Wish::Set(options())).unwrap();
    let before = ALL.map(|option| connection.text(option));
    plan.changes.push(Change {
        option: SocketOption::KeepaliveIdle,
        from: Value::Number(30),
        to: Value::Number(40_000),
    });
    let carried = carry_out(&plan).unwrap();
    let option = SocketOption::KeepaliveIdle;
    assert!(carried.changes.is_empty(), "{carried:?}");
    assert!(
        matches!(&carried.failed[..], [(o, TuneError::Set { .. })] if *o == option),
        "{carried:?}"
    );
    assert_eq!(ALL.map(|option| connection.text(option)), before);
}

#[test]
fn a_socket_that_is_gone_is_distinguished() {
    let connection = Connection::open();
    let planned = connection.plan(Wish::Set(options())).unwrap();
    let (key, name) = (connection.key, &planned.socket.owner.name);
    assert!(!name.is_empty());
    drop(connection);
    let error = carry_out(&planned).unwrap_err();
    assert!(matches!(error, TuneError::Gone { .. }), "{error}");
    // This end was closed last, or is in TIME_WAIT.
    refused(key, |error| {
        matches!(
            error,
            TuneError::NoSocket | TuneError::Over | TuneError::NoProcess
        )
    });
}

#[test]
fn a_half_closed_socket_without_a_process_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let _accepted = listener.accept().unwrap();
    // The kernel keeps the socket, in FIN_WAIT2, for the other end.
    drop(opened);
    refused(key, |error| matches!(error, TuneError::NoProcess));
}

#[test]
fn an_unknown_congestion_control_is_refused_with_those_that_are_known() {
    let named = |name: &str| TuneOptions {
        congestion: Some(name.parse().unwrap()),
        ..TuneOptions::default()
    };
    check(&named("reno")).unwrap();
    check(&TuneOptions::default()).unwrap();
    let cause = check(&named("nosuch")).unwrap_err().cause();
    assert!(cause.why.contains("reno"), "{cause}");
    let hint = cause.hint.unwrap();
    assert!(hint.contains("modprobe tcp_nosuch"), "{hint}");
}

#[test]
fn a_socket_of_mptcp_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
    let socket = socket.expect("the kernel has no MPTCP");
    socket.connect(&at.into()).unwrap();
    let local = socket.local_addr().unwrap().as_socket().unwrap();
    let wishes = [(FlowKey::new(local, at), Wish::Set(options()))];
    let error = plan(&wishes, None).unwrap().remove(0).unwrap_err();
    assert!(matches!(error, TuneError::Multipath { .. }), "{error}");
}

#[test]
fn only_ones_own_sockets_are_shown() {
    let connection = Connection::open();
    let other = nix::unistd::geteuid().as_raw() + 1;
    let wishes = [(connection.key, Wish::Set(options()))];
    let error = plan(&wishes, Some(other)).unwrap().remove(0).unwrap_err();
    assert!(matches!(error, TuneError::NotAllowed { .. }), "{error}");
}

#[test]
fn values_are_the_words_of_the_command_line() {
    for (option, value, text) in [
        (SocketOption::Rate, u64::MAX, "off"),
        (SocketOption::Rate, 2_500_000, "20M"),
        (SocketOption::Rate, u64::MAX - 1, "18446744073709551615"),
        (SocketOption::UserTimeout, 0, "off"),
        (SocketOption::KeepaliveIdle, 7200, "7200s"),
        (SocketOption::Keepalive, 0, "off"),
        (SocketOption::Nodelay, 1, "on"),
    ] {
        assert_eq!(Value::Number(value).text(option), text);
    }
}

/// The interval follows the silence, and neither exceeds what the kernel takes.
#[test]
fn probes_come_three_times_as_often_as_the_silence_allows() {
    for (silence, interval) in [(1, 1), (2, 1), (30, 10), (225, 75), (32_767, 75)] {
        let options = TuneOptions {
            keepalive: Some(format!("{silence}s").parse().unwrap()),
            ..TuneOptions::default()
        };
        let wanted = value::wanted(&options);
        let expected = [
            (SocketOption::KeepaliveIdle, Value::Number(silence)),
            (SocketOption::KeepaliveInterval, Value::Number(interval)),
            (SocketOption::Keepalive, Value::Number(1)),
        ];
        assert_eq!(wanted, expected);
    }
    let off = TuneOptions {
        keepalive: Some("off".parse().unwrap()),
        ..TuneOptions::default()
    };
    let expected = [(SocketOption::Keepalive, Value::Number(0))];
    assert_eq!(value::wanted(&off), expected);
}

/// Ends of the connection of [`in_own_network`].
const OWN: [(Ipv4Addr, u16); 2] = [(Ipv4Addr::LOCALHOST, 40_001), (Ipv4Addr::LOCALHOST, 40_000)];

/// Starts a program in a network namespace of its own, with a connection there.
fn in_own_network() -> io::Result<Child> {
    let mut sleep = Command::new("sleep");
    sleep.arg("600").stdin(Stdio::null());
    // SAFETY: the closure makes system calls, and touches no data of this process.
    unsafe {
        sleep.pre_exec(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
            // The program inherits these sockets, since they are not closed at its start.
            let [own, other] = OWN.map(|end| SocketAddr::from(end).into());
            let new = || Socket::new_raw(Domain::IPV4, Type::STREAM, None);
            let (listener, opened) = (new()?, new()?);
            loopback_up(&listener)?;
            listener.bind(&other)?;
            listener.listen(1)?;
            opened.bind(&own)?;
            opened.connect(&other)?;
            std::mem::forget((listener, opened));
            Ok(())
        });
    }
    sleep.spawn()
}

fn loopback_up(socket: &Socket) -> io::Result<()> {
    // SAFETY: an all-zero request is valid, and outlives the call.
    let done = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = from.cast_signed();
        }
        request.ifr_ifru.ifru_flags = libc::IFF_UP as i16;
        libc::ioctl(
            socket.as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[test]
fn a_socket_of_another_network_namespace_is_reported_with_its_process() {
    let mut child = in_own_network().unwrap();
    let [local, remote] = OWN.map(SocketAddr::from);
    let wishes = [(FlowKey::new(local, remote), Wish::Set(options()))];
    let error = plan(&wishes, None).unwrap().remove(0).unwrap_err();
    let pid = child.id().cast_signed();
    child.kill().unwrap();
    child.wait().unwrap();
    match error {
        TuneError::Elsewhere(found) => assert_eq!((found.pid, found.name.as_str()), (pid, "sleep")),
        other => panic!("{other}"),
    }
}
