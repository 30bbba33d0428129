//! A client, a server, and a relay between them that splices like HAProxy.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{IntoRawFd, RawFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time limit of a stream.
const PATIENCE: Duration = Duration::from_secs(60);

/// Behaviour of the two ends and the relay.
#[derive(Default, Clone, Copy)]
pub(super) struct Script {
    /// Number of bytes that the relay itself sends to the server.
    pub greeting: usize,
    /// Number of bytes that each end sends.
    pub bytes: usize,
    /// True if the relay waits inside its splices.
    pub blocking: bool,
    /// True if the client closes its direction at the end.
    pub half_close: bool,
}

/// Descriptors of the relay, and the running threads.
pub(super) struct Relay {
    /// Client's side.
    pub a: RawFd,
    /// Server's side.
    pub b: RawFd,
    /// Read ends of the pipes.
    pub pipes: [RawFd; 2],
    ends: [End; 2],
    movers: Vec<JoinHandle<()>>,
}

struct End {
    threads: Vec<JoinHandle<()>>,
    done: Receiver<()>,
    stream: TcpStream,
}

impl Relay {
    pub(super) fn start(script: Script) -> Relay {
        let (client, a) = connection();
        let (b, server) = connection();
        for s in [&a, &b] {
            s.set_nonblocking(!script.blocking).unwrap();
        }
        // The relay opened the second connection.
        let (a, b) = (a.into_raw_fd(), b.into_raw_fd());
        let greeting = vec![b'g'; script.greeting];
        assert_eq!(
            nix::unistd::write(borrow(b), &greeting).unwrap(),
            script.greeting
        );
        let pipe = || {
            let (r, w) = nix::unistd::pipe().unwrap();
            (r.into_raw_fd(), w.into_raw_fd())
        };
        let (forward, reverse) = (pipe(), pipe());
        let movers = [(a, forward, b), (b, reverse, a)]
            .map(|(from, pipe, to)| std::thread::spawn(move || relay(from, pipe, to)));
        let skip = script.greeting;
        Relay {
            a,
            b,
            pipes: [forward.0, reverse.0],
            ends: [
                End::start(client, script.bytes, 0, script.half_close, false),
                End::start(server, script.bytes, skip, false, script.half_close),
            ],
            movers: movers.into(),
        }
    }

    /// Returns true if one of the two ends is still sending or receiving.
    pub(super) fn running(&self) -> bool {
        self.ends
            .iter()
            .any(|e| e.threads.iter().any(|t| !t.is_finished()))
    }

    /// Waits until both ends have sent and received all bytes (and a half-close has arrived).
    pub(super) fn wait_for_streams(&self) {
        for e in &self.ends {
            // Both threads drop their ends of the channel when they finish.
            let ended = e.done.recv_timeout(PATIENCE);
            assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "a stream hangs");
        }
    }

    /// Waits until everything is acknowledged and no delayed acknowledgement is due: the counter
    /// of sent segments must stay the same for a while.
    pub(super) fn wait_for_quiet(&self) {
        let out = || {
            let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
            let tcp = snmp
                .lines()
                .rfind(|l| l.starts_with("Tcp:"))
                .unwrap()
                .to_owned();
            tcp.split(' ').nth(11).unwrap().parse::<u64>().unwrap()
        };
        let mut last = (out(), std::time::Instant::now());
        while last.1.elapsed().as_millis() < 500 {
            std::thread::yield_now();
            let now = out();
            if now != last.0 {
                last = (now, std::time::Instant::now());
            }
        }
    }

    /// Waits until the relay has noticed that its sockets are closed, and closes its descriptors.
    pub(super) fn proxy_closed(&self) {
        while !self.movers.iter().all(JoinHandle::is_finished) {
            std::thread::yield_now();
        }
        for fd in [self.a, self.b] {
            let _ = nix::unistd::close(fd);
        }
    }

    /// Ends both streams, and requires that every byte has arrived as sent.
    pub(super) fn finish(self) {
        self.wait_for_streams();
        for e in &self.ends {
            drop(e.stream.shutdown(Shutdown::Write));
        }
        for e in self.ends {
            for t in e.threads {
                t.join().unwrap();
            }
        }
        for m in self.movers {
            m.join().unwrap();
        }
        for fd in [self.a, self.b] {
            let _ = nix::unistd::close(fd);
        }
    }
}

fn borrow(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: the relay's descriptors are open until its movers have ended.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}

/// Returns the two ends of a connection: the one that opened it, and the one that accepted it.
fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (opened, listener.accept().unwrap().0)
}

/// Splices once, after waiting for `what` on the socket if it is non-blocking.
fn splice(from: RawFd, to: RawFd, len: usize, socket: RawFd, what: i16) -> isize {
    let none = std::ptr::null_mut();
    loop {
        // SAFETY: null offsets and one local pollfd; the descriptors are open until the mover has
        // ended.
        let n = unsafe { libc::splice(from, none, to, none, len, libc::SPLICE_F_MOVE) };
        if n >= 0 || std::io::Error::last_os_error().kind() != ErrorKind::WouldBlock {
            return n;
        }
        let mut p = libc::pollfd {
            fd: socket,
            events: what,
            revents: 0,
        };
        // SAFETY: one local pollfd; the descriptor is open until the mover has ended.
        unsafe { libc::poll(&raw mut p, 1, -1) };
    }
}

fn relay(from: RawFd, pipe: (RawFd, RawFd), to: RawFd) {
    loop {
        let mut left = splice(from, pipe.1, 1 << 30, from, libc::POLLIN);
        if left <= 0 {
            if left == 0 {
                // SAFETY: no pointers.
                unsafe { libc::shutdown(to, libc::SHUT_WR) };
            }
            return;
        }
        while left > 0 {
            match splice(pipe.0, to, left as usize, to, libc::POLLOUT) {
                n if n > 0 => left -= n,
                _ => return,
            }
        }
    }
}

/// Returns byte `i` of every stream.
fn pattern(i: usize) -> u8 {
    (i.wrapping_mul(31) ^ (i >> 11)) as u8
}

impl End {
    fn start(stream: TcpStream, bytes: usize, skip: usize, close: bool, expect_close: bool) -> End {
        let (tell, done) = channel();
        let (mut tx, mut rx) = (stream.try_clone().unwrap(), stream.try_clone().unwrap());
        let reported = tell.clone();
        let sending = std::thread::spawn(move || {
            send(&mut tx, bytes);
            if close {
                tx.shutdown(Shutdown::Write).unwrap();
            }
            drop(reported);
        });
        let receiving =
            std::thread::spawn(move || receive(&mut rx, bytes, skip, expect_close, tell));
        End {
            threads: vec![sending, receiving],
            done,
            stream,
        }
    }
}

fn send(to: &mut TcpStream, bytes: usize) {
    let mut buf = vec![0; 1 << 16];
    let mut at = 0;
    while at < bytes {
        let n = buf.len().min(bytes - at);
        for (i, b) in buf[..n].iter_mut().enumerate() {
            *b = pattern(at + i);
        }
        to.write_all(&buf[..n]).unwrap();
        at += n;
    }
}

fn receive(
    from: &mut TcpStream,
    bytes: usize,
    skip: usize,
    expect_close: bool,
    reported: Sender<()>,
) {
    from.read_exact(&mut vec![0; skip]).unwrap();
    let mut buf = vec![0; 1 << 16];
    let mut at = 0;
    while at < bytes {
        let n = from.read(&mut buf).unwrap();
        assert!(n > 0, "the stream ended {} bytes early", bytes - at);
        for (i, b) in buf[..n].iter().enumerate() {
            assert_eq!(*b, pattern(at + i), "byte {}", at + i);
        }
        at += n;
    }
    assert_eq!(at, bytes);
    if expect_close {
        assert_eq!(from.read(&mut buf).unwrap(), 0);
    }
    drop(reported);
}
