//! Services at both ends come into a session one by one, and leave it, through two runners.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use dysco_runner::protocol::{End, Reason, Report, Request};

use crate::lab::{Lab, bytes, flood, pair, read, read_to_end};

/// A session through the runners of two hosts, in this process.
struct Two {
    labs: [Lab; 2],
    /// The program of each host.
    ends: [TcpStream; 2],
    /// Duplicates of the runners' sockets, as `dyscod` has them.
    _middle: [[TcpStream; 2]; 2],
}

impl Two {
    fn start(services: &[&str]) -> Two {
        let (opener, first) = pair();
        let (tunnel, beyond) = pair();
        let (last, other) = pair();
        let labs = [Lab::start(), Lab::start()];
        let middle = [[first, tunnel], [beyond, last]];
        for ((lab, middle), end) in labs.iter().zip(&middle).zip([End::Other, End::Opener]) {
            let mut services = services.to_vec();
            if end == End::Opener {
                services.reverse();
            }
            lab.runner.request_half(1, &services, middle, Some(end));
            let (session, result) = (1, Ok(()));
            assert_eq!(lab.runner.report(), Report::Put { session, result });
            lab.runner.send(Request::Open { session });
        }
        Two {
            labs,
            ends: [opener, other],
            _middle: middle,
        }
    }

    fn join(&self, at: usize, begins: bool, services: &[&str]) {
        let mut services: Vec<_> = services.iter().map(|text| text.parse().unwrap()).collect();
        if at == 1 {
            services.reverse();
        }
        self.labs[at].runner.send(Request::Join {
            session: 1,
            secret: [5; 32],
            begins,
            services,
            leaves: Vec::new(),
        });
    }

    /// Tells the runner of a host that the other one takes a service out.
    fn announce(&self, at: usize, service: &str) {
        self.labs[at].runner.send(Request::Join {
            session: 1,
            secret: [5; 32],
            begins: false,
            services: Vec::new(),
            leaves: vec![service.into()],
        });
        self.added(at).unwrap();
    }

    fn added(&self, at: usize) -> Result<(), String> {
        match self.labs[at].runner.report() {
            Report::Added { session: 1, result } => result.map_err(|cause| cause.why),
            other => panic!("{other:?}"),
        }
    }

    /// Puts services in, in order from each program.
    fn put(&self, asks: usize, services: &[&str]) {
        self.join(1 - asks, false, services);
        self.added(1 - asks).unwrap();
        self.join(asks, true, services);
        self.added(asks).unwrap();
        // The first to come in is next to those that are there.
        for service in services.iter().rev() {
            let joined = Report::Joined {
                session: 1,
                service: (*service).into(),
            };
            assert_eq!(self.labs[1 - asks].runner.report(), joined);
        }
    }

    fn part(&self, asks: usize, service: &str) {
        self.announce(1 - asks, service);
        self.labs[asks].runner.send(Request::Part {
            session: 1,
            services: vec![service.into()],
        });
        for lab in &self.labs {
            let parted = Report::Parted {
                session: 1,
                service: service.into(),
            };
            assert_eq!(lab.runner.report(), parted);
        }
    }

    fn services(&self) -> [Vec<String>; 2] {
        let of = |lab: &Lab| lab.runner.state(1).services;
        [of(&self.labs[0]), of(&self.labs[1])]
    }
}

fn pass(two: &Two, bytes: &[u8]) {
    for (from, to) in [(0, 1), (1, 0)] {
        (&two.ends[from]).write_all(bytes).unwrap();
        assert_eq!(read(&two.ends[to], bytes.len()), bytes);
    }
}

#[test]
fn each_host_has_them_at_the_same_place() {
    for asks in [0, 1] {
        let two = Two::start(&["count", "crypt"]);
        pass(&two, b"one");
        two.put(asks, &["compress"]);
        pass(&two, b"two");
        let services = [
            ["count", "compress", "crypt"],
            ["crypt", "compress", "count"],
        ];
        assert_eq!(two.services(), services);
        two.part(1 - asks, "crypt");
        pass(&two, b"three");
        assert_eq!(
            two.services(),
            [["count", "compress"], ["compress", "count"]]
        );
        two.put(asks, &["crypt"]);
        pass(&two, b"four");
        two.part(asks, "compress");
        pass(&two, b"five");
        assert_eq!(two.services(), [["count", "crypt"], ["crypt", "count"]]);
        two.ends[0].shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_to_end(&two.ends[1]), b"");
        two.ends[1].shutdown(Shutdown::Write).unwrap();
        for lab in two.labs {
            let (session, reason) = (1, Reason::Fin);
            assert_eq!(lab.runner.report(), Report::Ended { session, reason });
            lab.finish();
        }
    }
}

/// Services come and go again and again while data flows both ways.
#[test]
fn no_byte_is_lost_while_halves_come_and_go() {
    let two = Two::start(&["crypt"]);
    let part_of_stream = bytes(1, 40_000);
    let [opener, other] = &two.ends;
    let flooded = flood([opener, other], &part_of_stream, || {
        for asks in [0, 1].into_iter().cycle().take(10) {
            two.put(asks, &["compress"]);
            two.part(1 - asks, "crypt");
            two.put(asks, &["crypt"]);
            two.part(asks, "compress");
        }
    });
    for (parts, received) in flooded {
        let sent = std::iter::repeat_n(&part_of_stream, parts).flatten();
        assert!(
            sent.eq(&received),
            "bytes are lost, or come in another order"
        );
    }
    for lab in two.labs {
        let (session, reason) = (1, Reason::Fin);
        assert_eq!(lab.runner.report(), Report::Ended { session, reason });
        lab.finish();
    }
}

/// A refusal changes nothing, and says why.
#[test]
fn halves_that_cannot_come_in_are_refused() {
    let two = Two::start(&["crypt"]);
    let refused = |why: &str, services: &[&str]| {
        two.join(0, true, services);
        let refusal = two.added(0).unwrap_err();
        assert!(refusal.contains(why), "{refusal}");
    };
    refused("no service is named gzip", &["gzip"]);
    refused("more than 16 services", &["compress"; 16]);
    refused("crypt is in it already", &["crypt"]);
    refused("compress is in it already", &["compress", "compress"]);
    refused("count is a service for one end", &["compress", "count"]);
    pass(&two, b"one");
    two.ends[0].shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_to_end(&two.ends[1]), b"");
    refused("the session is closing", &["compress"]);
    two.labs[0].runner.send(Request::Part {
        session: 1,
        services: vec!["crypt".into()],
    });
    assert_eq!(two.added(0), Err("the session is closing".into()));
    assert_eq!(two.services(), [["crypt"], ["crypt"]]);
}

fn fails(two: &Two, at: usize, name: &str, expected: &str) {
    match two.labs[at].runner.report() {
        Report::Ended {
            session: 1,
            reason: Reason::Failed { service, why },
        } => {
            assert_eq!(service, name);
            assert!(why.contains(expected), "{why}");
        }
        other => panic!("{other:?}"),
    }
}

/// The other runner was not told of the service: the two streams no longer fit.
#[test]
fn a_service_that_was_not_announced_ends_the_session() {
    let two = Two::start(&["crypt"]);
    two.join(0, true, &["compress"]);
    fails(&two, 1, "compress", "is not in the session");
}

/// Anybody on the path may forge a mark. It does not take `crypt` out of the session.
#[test]
fn a_mark_alone_takes_no_service_out() {
    let two = Two::start(&["compress", "crypt"]);
    two.labs[0].runner.send(Request::Part {
        session: 1,
        services: vec!["crypt".into()],
    });
    fails(&two, 1, "crypt", "has not announced");
}
