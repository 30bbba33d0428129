//! Tests of the kernel's counts against claims, and of closing without a packet.

use std::os::fd::{FromRawFd, OwnedFd};

use super::*;

/// Capture of the frames on the loopback interface from its start on.
pub(super) struct Capture(OwnedFd);

impl Capture {
    pub(super) fn start() -> Capture {
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: no pointers; this value alone owns the descriptor.
        let fd = unsafe {
            let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
            let fd = libc::socket(libc::AF_PACKET, kind, i32::from(all));
            assert!(fd >= 0, "{}", std::io::Error::last_os_error());
            OwnedFd::from_raw_fd(fd)
        };
        Capture(fd)
    }

    /// Returns the number of TCP segments that were sent meanwhile. Sends a datagram after them,
    /// to ensure that the capture works and has seen all segments.
    pub(super) fn segments(&self) -> usize {
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        udp.send_to(b"last", udp.local_addr().unwrap()).unwrap();
        let (mut tcp, mut last) = (0, false);
        let mut frame = [0u8; 256];
        while let Ok(n) = nix::unistd::read(&self.0, &mut frame) {
            assert!(n > 24);
            // The protocol byte follows 14 bytes of Ethernet.
            let protocol = match frame[12..14] {
                [0x86, 0xdd] => frame[20],
                _ => frame[23],
            };
            tcp += usize::from(protocol == 6);
            last |= protocol == 17;
        }
        assert!(last, "the capture saw not even its own datagram");
        tcp
    }
}

#[test]
fn a_true_claim_is_confirmed_at_full_speed_both_ways() {
    in_network(async || {
        let relay = Relay::start(Script {
            greeting: 28,
            bytes: 1 << 28,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 28).await;
        assert!(!pair.a.opened_here && pair.b.opened_here);
        assert_eq!(side.side.find(&pair.a.key), Some(pair));
        let mut while_running = 0;
        for _ in 0..20 {
            let m = side.side.measure(&pair).await.unwrap();
            assert_eq!((m.delta_forward, m.delta_reverse), (28, 0));
            while_running += usize::from(relay.running());
        }
        assert!(
            while_running > 0,
            "the streams ended before a measurement did"
        );
        relay.finish();
    });
}

#[test]
fn a_claim_of_too_little_is_a_lie_also_at_full_speed() {
    in_network(async || {
        let relay = Relay::start(Script {
            greeting: 28,
            bytes: 1 << 28,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        for claim in [27, 0, -1] {
            let pair = side.pair(&relay, claim).await;
            let (claimed, seen) = loop {
                match side.side.measure(&pair).await {
                    // Bytes were in transit at each reading. None are once the streams have
                    // ended.
                    Err(MeasureError::NeverStill { .. }) => {}
                    Err(MeasureError::DeltaMismatch {
                        direction: "forward",
                        claimed,
                        seen,
                        ..
                    }) => break (claimed, seen),
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(claimed, claim);
            assert!(seen > claim && seen <= 28, "seen {seen}");
        }
        relay.finish();
    });
}

#[test]
fn a_claim_of_too_much_is_never_confirmed() {
    in_network(async || {
        let relay = Relay::start(Script {
            greeting: 28,
            bytes: 1 << 20,
            ..Script::default()
        });
        let mut side = Side::start(|c| c.still_limit = Duration::from_millis(50));
        let pair = side.pair(&relay, 29).await;
        relay.wait_for_streams();
        match side.side.measure(&pair).await {
            Err(MeasureError::NeverStill {
                direction: "forward",
                claimed: 29,
                seen,
                ..
            }) => {
                assert_eq!(seen, Some(28));
            }
            other => panic!("{other:?}"),
        }
        relay.finish();
    });
}

#[test]
fn a_proxy_that_waits_in_its_splices_is_measured_too() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            blocking: true,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        // Both movers hold their pipe's lock while they wait for data.
        let m = side.side.measure(&pair).await.unwrap();
        assert_eq!((m.delta_forward, m.delta_reverse), (0, 0));
        relay.finish();
    });
}

/// Starts a thread that sleeps inside a splice from a pipe with contents, because its output is
/// not read. The thread holds the pipe's lock until the reader is dropped.
fn keep_a_pipe() -> (std::net::TcpStream, std::thread::JoinHandle<()>) {
    use std::io::{ErrorKind, Write};
    use std::os::fd::AsRawFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut writer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let reader = listener.accept().unwrap().0;
    writer.set_nonblocking(true).unwrap();
    let full = loop {
        if let Err(e) = writer.write(&[0; 1 << 16]) {
            break e;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    writer.set_nonblocking(false).unwrap();
    let (out, into) = nix::unistd::pipe().unwrap();
    nix::unistd::write(&into, b"x").unwrap();
    let inode = pipes::inode(&out).unwrap();
    let thread = std::thread::spawn(move || {
        let (from, to) = (out.as_raw_fd(), writer.as_raw_fd());
        let none = std::ptr::null_mut();
        // SAFETY: null offsets; both descriptors are this thread's.
        unsafe { libc::splice(from, none, to, none, 1 << 20, 0) };
        drop(into);
    });
    while !pipes::kept(std::process::id() as i32).contains(&inode) {
        std::thread::yield_now();
    }
    (reader, thread)
}

#[test]
fn a_pipe_that_a_splice_waits_in_is_not_asked() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            ..Script::default()
        });
        let (reader, keeper) = keep_a_pipe();
        let mut side = Side::start(|c| c.still_limit = Duration::from_millis(50));
        // One byte is missing, which is the number of bytes in that pipe, so that all pipes are
        // examined.
        let pair = side.pair(&relay, 1).await;
        relay.wait_for_streams();
        let answer = side.side.measure(&pair).await;
        assert!(
            matches!(answer, Err(MeasureError::NeverStill { .. })),
            "{answer:?}"
        );
        drop(reader);
        keeper.join().unwrap();
        relay.finish();
    });
}

/// The process has read a full buffer and cannot write it. The counts differ by its size at each
/// moment, for as long as the server does not read.
#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn what_may_be_a_full_buffer_is_no_constant() {
    use std::io::{Read, Write};
    in_network(async || {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connection = || {
            let opened = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (opened, listener.accept().unwrap().0)
        };
        let (mut client, mut a) = connection();
        let (mut b, mut server) = connection();
        b.set_nonblocking(true).unwrap();
        let mut buffer = vec![0; 16 << 10];
        let mut sent = 0;
        while let Ok(n) = b.write(&buffer) {
            sent += n;
        }
        client.write_all(&buffer).unwrap();
        a.read_exact(&mut buffer).unwrap();

        let end = |of: &std::net::TcpStream, opened_here| {
            let fd: OwnedFd = of.try_clone().unwrap().into();
            End {
                key: sys::key(&fd).unwrap(),
                cookie: sys::cookie(&fd).unwrap(),
                opened_here,
            }
        };
        let way = |delta, endless| Direction {
            endless,
            declared: false,
            delta,
            pipe: None,
        };
        let pair = |held: usize, witness| Pair {
            id: PairId {
                pid: std::process::id() as i32,
                fd_a: a.as_raw_fd(),
                fd_b: b.as_raw_fd(),
            },
            a: end(&a, false),
            b: end(&b, true),
            forward: way((sent - held) as i64, witness == Witness::Counts),
            reverse: way(0, true),
            witness,
        };
        let full = Side::start(|c| c.still_limit = Duration::from_millis(300));
        full.side
            .registry()
            .observe(pair(16 << 10, Witness::Counts));
        for witness in [Witness::Counts, Witness::Shim] {
            let pair = pair(16 << 10, witness);
            if witness == Witness::Shim {
                full.side.registry().claim(pair, 0, false).unwrap();
            }
            let measured = full.side.measure(&pair).await;
            assert!(
                matches!(
                    measured,
                    Err(MeasureError::MayHold {
                        direction: "forward",
                        ..
                    })
                ),
                "{measured:?}"
            );
        }

        server.read_exact(&mut vec![0; sent]).unwrap();
        b.set_nonblocking(false).unwrap();
        (&b).write_all(&buffer).unwrap();
        server.read_exact(&mut buffer).unwrap();
        let empty = Side::start(|_| {});
        let pair = pair(0, Witness::Counts);
        empty.side.registry().observe(pair);
        let measured = empty.side.measure(&pair).await.unwrap();
        assert_eq!(measured.delta_forward, sent as i64);
    });
}

#[test]
fn a_fin_is_no_byte() {
    in_network(async || {
        // The client's FIN has passed both sockets, the server's has not.
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            half_close: true,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        let m = side.side.measure(&pair).await.unwrap();
        assert_eq!((m.delta_forward, m.delta_reverse), (0, 0));
        relay.finish();
    });
}

#[test]
fn a_silent_close_sends_nothing_and_can_be_repeated() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        relay.wait_for_quiet();
        let capture = Capture::start();
        assert_eq!(side.close(&pair).await.unwrap(), Closed::Now);
        assert!(matches!(side.event().await, PairEvent::Gone(_)));
        assert_eq!(side.close(&pair).await.unwrap(), Closed::Already);
        relay.proxy_closed();
        assert_eq!(
            capture.segments(),
            0,
            "the proxy's close was seen on the wire"
        );
        assert_eq!(side.close(&pair).await.unwrap(), Closed::Already);
        assert!(matches!(
            side.side.measure(&pair).await,
            Err(MeasureError::Gone(_))
        ));
    });
}

#[test]
fn one_look_is_enough_for_silent_pairs_and_for_no_others() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 20,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        relay.wait_for_quiet();
        std::thread::sleep(std::time::Duration::from_millis(50));
        let mut gone = pair;
        gone.id.fd_a = 1 << 20;
        let seen = side.side.measure_many(vec![pair, gone, pair]).await;
        let [Some(Ok(one)), None, Some(Ok(again))] = &seen[..] else {
            panic!("{seen:?}");
        };
        let alone = side.side.measure(&pair).await.unwrap();
        for measured in [one, again] {
            assert_eq!(
                (measured.delta_forward, measured.delta_reverse),
                (alone.delta_forward, alone.delta_reverse)
            );
            assert_eq!(
                (measured.options_a, measured.options_b),
                (alone.options_a, alone.options_b)
            );
        }
    });
}

#[test]
fn other_sockets_on_the_same_descriptors_are_left_alone() {
    in_network(async || {
        let relay = Relay::start(Script {
            bytes: 1 << 10,
            ..Script::default()
        });
        let mut side = Side::start(|_| {});
        let mut pair = side.pair(&relay, 0).await;
        relay.wait_for_streams();
        pair.a.cookie += 1_000_000;
        assert!(matches!(
            side.close(&pair).await,
            Err(CloseError::Changed(_))
        ));
        assert_eq!(
            side.side.transparent(&pair, false),
            Err(NotTransparent::Gone(pair.id))
        );
        assert!(matches!(
            side.side.measure(&pair).await,
            Err(MeasureError::Gone(_))
        ));
        relay.finish();
    });
}
