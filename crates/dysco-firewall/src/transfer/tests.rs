//! Three hosts, and messages that are lost, repeated and forged.

use dysco_proto::marked::Marked as _;

use super::receiving::{EARLY, MAX_PARTS, MOST_EARLY};
use super::*;
use crate::tests::plain;

const TRANSFER: TransferId = TransferId([7; 16]);
const OLD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1));
const NEW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 2));
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn anchor() -> IpAddr {
    plain().session.source.ip()
}

/// The three hosts, and the outcome of the transfer.
struct World {
    hosts: HashMap<IpAddr, Transfers>,
    documents: Vec<u8>,
    installed: Vec<Vec<u8>>,
    ended: Vec<Result<Moved, Explanation>>,
    /// Number of messages still to be lost.
    lose: usize,
    twice: bool,
}

impl World {
    fn new(documents: usize) -> World {
        let hosts = [anchor(), OLD, NEW].map(|host| (host, Transfers::default()));
        World {
            hosts: HashMap::from(hosts),
            documents: (0..documents).map(|i| i as u8).collect(),
            installed: Vec::new(),
            ended: Vec::new(),
            lose: 0,
            twice: false,
        }
    }

    fn host(&mut self, host: IpAddr) -> &mut Transfers {
        self.hosts.get_mut(&host).expect("one of the three")
    }

    fn begin(&mut self) {
        let order = Order {
            session: plain().session,
            from: OLD,
            to: NEW,
            kinds: Vec::new(),
            dry_run: false,
        };
        let actions = self.host(anchor()).begin(Duration::ZERO, TRANSFER, order);
        self.carry_out(anchor(), actions);
    }

    fn carry_out(&mut self, host: IpAddr, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Transmit(to, message) => self.deliver(host, to, message),
                Action::Export { give, .. } => {
                    let documents = self.documents.clone();
                    let next = self.host(host).exported(give, Ok(documents));
                    self.carry_out(host, next);
                }
                Action::Install {
                    transfer,
                    documents,
                    ..
                } => {
                    assert_eq!(host, NEW);
                    self.installed.push(documents);
                    let next =
                        self.host(host)
                            .installed(Duration::ZERO, transfer, Ok(Moved::default()));
                    self.carry_out(host, next);
                }
                Action::Ended { result, .. } => self.ended.push(result),
            }
        }
    }

    fn deliver(&mut self, from: IpAddr, to: IpAddr, message: Message) {
        if self.lose > 0 {
            self.lose -= 1;
            return;
        }
        let bytes = message.encode().expect("it encodes");
        assert!(bytes.len() <= dysco_control::MAX_MESSAGE && Message::is_one(&bytes));
        for _ in 0..=usize::from(self.twice) {
            let message = Message::decode(&bytes).expect("it decodes");
            let next = self.host(to).handle(Duration::ZERO, &[from], message);
            self.carry_out(to, next);
        }
    }

    fn tick(&mut self, seconds: u64) {
        for host in [anchor(), OLD, NEW] {
            let actions = self.host(host).tick(Duration::from_secs(seconds));
            self.carry_out(host, actions);
        }
    }
}

#[test]
fn documents_of_any_length_arrive() {
    for length in [2, PART, PART + 1, MAX_BYTES] {
        let mut world = World::new(length);
        world.begin();
        assert_eq!(world.installed, [world.documents.clone()], "{length}");
        assert_eq!(world.ended, [Ok(Moved::default())]);
    }
    let mut world = World::new(MAX_BYTES + 1);
    world.begin();
    assert!(world.installed.is_empty() && world.ended[0].is_err());
}

#[test]
fn whatever_is_lost_is_said_again() {
    // This many of Expect, Give, Expecting, three parts and Ended are lost.
    for lose in 1..8 {
        let mut world = World::new(3 * PART);
        world.lose = lose;
        world.begin();
        for seconds in 1..9 {
            world.tick(seconds);
        }
        assert_eq!(world.ended, [Ok(Moved::default())], "{lose} lost");
        assert!(world.installed.iter().all(|d| *d == world.documents));
    }
}

#[test]
fn what_is_said_twice_ends_once() {
    let mut world = World::new(2 * PART);
    world.twice = true;
    world.begin();
    assert_eq!(world.ended.len(), 1);
    assert!(world.installed.iter().all(|d| *d == world.documents));
}

/// The old host may be nearer than the anchor.
#[test]
fn parts_may_overtake_the_word_that_they_are_expected() {
    let mut new = Transfers::default();
    assert_eq!(at(&mut new, STRANGER, part(1)), []);
    assert_eq!(at(&mut new, OLD, part(1)), []);
    let then = at(&mut new, anchor(), expect());
    let [Action::Transmit(..), Action::Install { documents, .. }] = &then[..] else {
        panic!("{then:?}");
    };
    assert_eq!(documents, b"[]");
    // Early parts are kept only for a moment, and only a limited number.
    let mut new = Transfers::default();
    for _ in 0..2 * MOST_EARLY.0 {
        at(&mut new, OLD, part(1));
    }
    assert_eq!(new.early.len(), MOST_EARLY.0);
    // The limit of one host leaves room for others.
    at(&mut new, STRANGER, part(1));
    assert_eq!(new.early.len(), MOST_EARLY.0 + 1);
    new.tick(EARLY);
    assert_eq!(at(&mut new, anchor(), expect()).len(), 1);
}

/// The host has been told to forget the session meanwhile: the state would remain.
#[test]
fn nothing_is_installed_that_is_not_expected_any_more() {
    let session = plain().session;
    for named in [session, session.reversed()] {
        let mut world = World::new(2);
        let expect = Message::Expect {
            transfer: TRANSFER,
            session,
            from: OLD,
            dry_run: false,
        };
        world.host(NEW).handle(Duration::ZERO, &[anchor()], expect);
        world.host(NEW).forget(&named);
        let part = Message::Part {
            transfer: TRANSFER,
            attempt: 0,
            part: 0,
            parts: 1,
            bytes: vec![0; 2],
        };
        let actions = world.host(NEW).handle(Duration::ZERO, &[OLD], part);
        assert_eq!(actions, []);
    }
}

#[test]
fn who_does_not_answer_is_named() {
    let mut world = World::new(2);
    world.lose = usize::MAX;
    world.begin();
    for seconds in 1..=10 {
        world.tick(seconds);
    }
    let why = world.ended[0].clone().expect_err("nobody answered");
    assert!(why.why.contains(&NEW.to_string()), "{why}");
}

/// Returns the actions of a host on a message of this peer.
fn at(transfers: &mut Transfers, peer: IpAddr, message: Message) -> Vec<Action> {
    transfers.handle(Duration::ZERO, &[peer], message)
}

fn expect() -> Message {
    Message::Expect {
        transfer: TRANSFER,
        session: plain().session,
        from: OLD,
        dry_run: false,
    }
}

fn part(parts: u16) -> Message {
    Message::Part {
        transfer: TRANSFER,
        attempt: 0,
        part: 0,
        parts,
        bytes: b"[]".to_vec(),
    }
}

#[test]
fn only_an_end_of_the_session_may_ask() {
    let mut new = Transfers::default();
    assert_eq!(at(&mut new, STRANGER, expect()), []);
    assert_eq!(at(&mut new, OLD, expect()), []);
    assert_eq!(at(&mut new, OLD, part(1)), []);
    let give = Message::Give {
        transfer: TRANSFER,
        session: plain().session,
        to: STRANGER,
        kinds: Vec::new(),
        attempt: 0,
    };
    assert_eq!(at(&mut Transfers::default(), STRANGER, give), []);
}

#[test]
fn only_the_named_host_may_give() {
    let mut new = Transfers::default();
    assert_eq!(at(&mut new, anchor(), expect()).len(), 1);
    assert_eq!(at(&mut new, STRANGER, part(1)), []);
    assert_eq!(at(&mut new, anchor(), part(1)), []);
    assert_eq!(at(&mut new, OLD, part(0)), []);
    assert_eq!(at(&mut new, OLD, part(MAX_PARTS + 1)), []);
    assert_eq!(at(&mut new, OLD, part(1)).len(), 1);
    // Forgotten after a while.
    new.tick(MEMORY);
    assert_eq!(at(&mut new, OLD, part(1)), []);
}

/// The host would open its own way through a firewall.
#[test]
fn who_asks_does_not_give() {
    let session = plain().session;
    let other_address = STRANGER;
    let expect = |from| Message::Expect {
        transfer: TRANSFER,
        session,
        from,
        dry_run: false,
    };
    for from in [anchor(), other_address] {
        let mut new = Transfers::default();
        let peer = [other_address, anchor()];
        let said = new.handle(Duration::ZERO, &peer, expect(from));
        let [Action::Transmit(to, Message::Ended { result: Err(_), .. })] = &said[..] else {
            panic!("{from}: {said:?}");
        };
        assert_eq!(*to, anchor());
        assert_eq!(at(&mut new, from, part(1)), []);
    }
}

#[test]
fn only_the_new_host_says_that_it_is_done() {
    let mut world = World::new(2);
    world.lose = usize::MAX;
    world.begin();
    let ended = |result| Message::Ended {
        transfer: TRANSFER,
        result,
    };
    let done = Ok(Moved::default());
    let mut ordered = world.hosts.remove(&anchor()).expect("the anchor");
    assert_eq!(at(&mut ordered, STRANGER, ended(done.clone())), []);
    assert_eq!(at(&mut ordered, OLD, ended(done)), []);
    let refused = at(&mut ordered, OLD, ended(Err(failed("no"))));
    assert!(matches!(refused[..], [Action::Ended { .. }]));
}

#[test]
fn messages_of_the_session_protocol_are_distinguished() {
    let other = dysco_proto::Message::Query {
        change: dysco_proto::ChangeId([1; 16]),
    };
    let bytes = other.encode().expect("it encodes");
    assert!(!Message::is_one(&bytes) && Message::decode(&bytes).is_none());
    let own = expect().encode().expect("it encodes");
    assert!(dysco_proto::Message::decode(&own).is_err());
    assert!(Message::decode(&own[..own.len() - 1]).is_none());
    assert!(Message::decode(&[&own[..], b"x"].concat()).is_none());
}
