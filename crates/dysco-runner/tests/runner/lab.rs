//! A runner in a thread, and sessions through it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use dysco_runner::protocol::{Client, End, Moved, Pair, Report, Request, State, VERSION};
use dysco_runner::{Error, run_with};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::services;

/// Nothing that a test waits for takes as long.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A runner in a thread of this process.
pub(crate) struct Lab {
    pub runner: Runner,
    thread: JoinHandle<Result<(), Error>>,
}

/// A connection to a runner.
pub(crate) struct Runner {
    pub client: Client,
}

impl Lab {
    pub(crate) fn start() -> Lab {
        Lab::listening(None)
    }

    pub(crate) fn listening(listener: Option<OwnedFd>) -> Lab {
        let (client, other) = Client::pair().unwrap();
        let thread = std::thread::spawn(|| run_with(services::registry(), other, listener));
        Lab {
            runner: Runner::new(client),
            thread,
        }
    }

    /// Closes the connection, and waits for the end of the runner.
    pub(crate) fn finish(self) {
        drop(self.runner);
        self.thread.join().unwrap().unwrap();
    }

    /// Closes the connection only.
    pub(crate) fn abandon(self) -> JoinHandle<Result<(), Error>> {
        drop(self.runner);
        self.thread
    }
}

impl Runner {
    pub(crate) fn new(client: Client) -> Runner {
        let runner = Runner { client };
        assert_eq!(runner.report(), Report::Ready { version: VERSION });
        runner
    }

    pub(crate) fn send(&self, request: Request) {
        self.client.send(&request, &[]).unwrap();
    }

    /// Waits for a report.
    pub(crate) fn report(&self) -> Report {
        loop {
            match self.client.recv() {
                Ok(report) => return report.expect("the runner has ended"),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            let limit = Timespec::try_from(LONG).unwrap();
            let mut fds = [PollFd::new(&self.client, PollFlags::IN)];
            assert_ne!(poll(&mut fds, Some(&limit)).unwrap(), 0, "no report came");
        }
    }

    pub(crate) fn request_put(&self, id: u64, services: &[&str], middle: &[TcpStream]) {
        self.request_half(id, services, middle, None);
    }

    /// Puts one half of services at both ends into a session. `beyond` is the end on the other host.
    pub(crate) fn request_half(
        &self,
        id: u64,
        services: &[&str],
        middle: &[TcpStream],
        beyond: Option<End>,
    ) {
        let pair = beyond.map(|beyond| Pair {
            id: [7; 16],
            peer: [192, 0, 2, 2].into(),
            beyond,
            secret: [9; 32],
        });
        let request = Request::Put {
            session: id,
            opener: ([192, 0, 2, 1], 1).into(),
            other: ([192, 0, 2, 2], 2).into(),
            pair,
            services: services.iter().map(|text| text.parse().unwrap()).collect(),
        };
        let fds: Vec<_> = middle.iter().map(AsFd::as_fd).collect();
        self.client.send(&request, &fds).unwrap();
    }

    /// Puts services into a session, successfully.
    pub(crate) fn put(&self, id: u64, services: &[&str], session: &Session) {
        self.request_put(id, services, &session.middle);
        let put = Report::Put {
            session: id,
            result: Ok(()),
        };
        assert_eq!(self.report(), put);
    }

    pub(crate) fn take(&self, id: u64) -> [i64; 2] {
        self.send(Request::Take { session: id });
        loop {
            match self.report() {
                Report::Parted { session, .. } if session == id => {}
                Report::Left { session, delta } if session == id => return delta,
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn release(&self, id: u64) -> Moved {
        self.send(Request::Release {
            session: id,
            reset: false,
        });
        match self.report() {
            Report::Released { session, moved } if session == id => moved.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn list(&self) -> Vec<State> {
        self.send(Request::List);
        let mut all = Vec::new();
        loop {
            match self.report() {
                Report::Sessions { sessions, more } => {
                    all.extend(sessions);
                    if !more {
                        return all;
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }

    pub(crate) fn state(&self, id: u64) -> State {
        let all = self.list();
        all.into_iter().find(|state| state.session == id).unwrap()
    }
}

/// A session between two ends of this process.
pub(crate) struct Session {
    pub opener: TcpStream,
    pub other: TcpStream,
    /// The sockets towards both, of which the runner gets duplicates.
    pub middle: [TcpStream; 2],
}

impl Session {
    pub(crate) fn open() -> Session {
        let (opener, first) = pair();
        let (second, other) = pair();
        Session {
            opener,
            other,
            middle: [first, second],
        }
    }
}

/// A TCP connection: the end that opened it, and the other.
pub(crate) fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opener = connect(listener.local_addr().unwrap());
    let (other, _) = listener.accept().unwrap();
    other.set_read_timeout(Some(LONG)).unwrap();
    (opener, other)
}

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

/// Reads a number of bytes.
pub(crate) fn read(mut from: &TcpStream, n: usize) -> Vec<u8> {
    let mut bytes = vec![0; n];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

pub(crate) fn read_to_end(mut from: &TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Sends bytes in parts of many sizes, and ends the direction.
pub(crate) fn send(mut to: &TcpStream, bytes: &[u8]) {
    let mut rest = bytes;
    let mut len = 1;
    while !rest.is_empty() {
        let (part, more) = rest.split_at(len.min(rest.len()));
        to.write_all(part).unwrap();
        rest = more;
        len = len * 7 % 99_991;
    }
    to.shutdown(Shutdown::Write).unwrap();
}

/// Bytes without `MARK` that do not repeat soon.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8 & 0x7f
    };
    (0..len).map(|_| next()).collect()
}

/// Lets both ends send a part again and again while something changes. Returns for each direction
/// how often the part was sent, and the bytes that came.
pub(crate) fn flood(
    ends: [&TcpStream; 2],
    part: &[u8],
    changes: impl FnOnce(),
) -> [(usize, Vec<u8>); 2] {
    let done = AtomicBool::new(false);
    let send = |mut end: &TcpStream| {
        let mut parts = 0;
        while !done.load(Ordering::Relaxed) {
            end.write_all(part).unwrap();
            parts += 1;
        }
        end.shutdown(Shutdown::Write).unwrap();
        parts
    };
    std::thread::scope(|scope| {
        let [one, two] = ends;
        let readers = [two, one].map(|end| scope.spawn(move || read_to_end(end)));
        let send = &send;
        let senders = ends.map(|end| scope.spawn(move || send(end)));
        changes();
        done.store(true, Ordering::Relaxed);
        let [first, second] = senders.map(|sender| sender.join().unwrap());
        let [there, back] = readers.map(|reader| reader.join().unwrap());
        [(first, there), (second, back)]
    })
}
