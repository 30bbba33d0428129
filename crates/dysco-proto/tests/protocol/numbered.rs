//! Path numbers. Hosts that a session passes get the numbers of the paths that are in use and of
//! those that are given up. A host may have been away, and may have more paths of the session than
//! it knows.

use std::time::Duration;

use dysco_common::Delta;
use dysco_common::chain::path_number;
use dysco_proto::command::{Forwarder, Journal};
use dysco_proto::{
    Action, ChangeId, Command, HostEvent, HostId, Machine, Message, Order, Reason, Scope,
};

use super::chain_updates::{LEFT, NEW, OLD, RIGHT, World, element, ip, machine, session};
use super::plane::at as cutoff_at;

const PATHS: [u32; 2] = [3, 0];
const NUMBER: u32 = 8;

/// Returns an order that puts the second host behind the first, which stays.
fn order() -> Order {
    Order {
        before: vec![element(OLD)],
        after: vec![element(OLD), element(NEW)],
        state: Vec::new(),
        paths: PATHS.to_vec(),
        number: NUMBER,
        ..super::chain_updates::order()
    }
}

struct Deciding {
    head: Machine,
    change: ChangeId,
    now: Duration,
    records: Vec<Vec<u8>>,
}

impl Deciding {
    /// Returns a head for which both paths exist, and which has taken the new one.
    fn has_cut() -> Deciding {
        let mut head = machine(LEFT);
        let change = head.request_chain(Duration::ZERO, order()).unwrap();
        let mut deciding = Deciding {
            head,
            change,
            now: Duration::ZERO,
            records: Vec::new(),
        };
        let result = Ok(World::facts(LEFT));
        deciding.happens(HostEvent::Locked { change, result });
        deciding.enlists();
        for host in [OLD, NEW] {
            let result = Ok(());
            deciding.hears(host, Message::Enlisted { change, result });
        }
        let result = Ok(Delta::default());
        deciding.hears(OLD, Message::TellDelta { change, result });
        let result = Ok(World::facts(RIGHT));
        deciding.hears(RIGHT, Message::Extended { change, result });
        let result = Ok(());
        deciding.happens(HostEvent::Prepared { change, result });
        let cutoff = cutoff_at(7);
        deciding.happens(HostEvent::CutDone { change, cutoff });
        deciding
    }

    fn happens(&mut self, event: HostEvent) {
        self.head.handle_event(self.now, event);
        self.keep_records();
    }

    fn hears(&mut self, from: usize, message: Message) {
        self.head.handle_message(self.now, &[ip(from)], message);
        self.keep_records();
    }

    fn keep_records(&mut self) {
        let all = std::iter::from_fn(|| self.head.poll_command());
        self.records.extend(all.filter_map(|c| match c.action {
            Action::Journal(Journal::Persist { record }) => Some(record),
            _ => None,
        }));
    }

    /// Checks that both hosts get the numbers in use, and the number that the path's SYN will
    /// contain.
    fn enlists(&mut self) {
        let said: Vec<_> = std::iter::from_fn(|| self.head.poll_transmit()).collect();
        let enlisted = said.iter().filter_map(|(to, m)| match m {
            Message::Enlist { paths, number, .. } => Some((*to, paths.clone(), *number)),
            _ => None,
        });
        let each = [OLD, NEW].map(|at| (ip(at), PATHS.to_vec(), NUMBER));
        assert_eq!(enlisted.collect::<Vec<_>>(), each);
        let token = said.iter().find_map(|(_, m)| match m {
            Message::Extend { token, .. } => Some(*token),
            _ => None,
        });
        assert_eq!(token.map(|t| path_number(&t)), Some(NUMBER));
    }

    /// Lets time pass until the hosts are asked to give up paths, and returns these requests.
    fn dismisses(&mut self) -> Vec<(HostId, Scope, Vec<u32>)> {
        for _ in 0..20 {
            let said = std::iter::from_fn(|| self.head.poll_transmit());
            let dismissed = said.filter_map(|(to, m)| match m {
                Message::Dismiss { scope, paths, .. } => Some((to, scope, paths)),
                _ => None,
            });
            let dismissed: Vec<_> = dismissed.collect();
            if !dismissed.is_empty() {
                return dismissed;
            }
            self.now = self.head.poll_timeout().expect("something is waited for");
            let now = self.now;
            self.head.handle_timeout(now);
            self.keep_records();
        }
        panic!("nobody is dismissed");
    }

    /// Kills the daemon and restarts it from its last record.
    fn dies(&mut self) {
        let mut head = machine(LEFT);
        let record = self.records.last().expect("a record");
        head.restore(self.now, record).expect("its own record");
        self.head = head;
        self.keep_records();
    }
}

/// By a process that knows the number, or by one that has read it from the record.
#[test]
fn a_path_that_is_taken_back_is_given_up_by_its_number() {
    for dies in [false, true] {
        let mut deciding = Deciding::has_cut();
        let change = deciding.change;
        if dies {
            deciding.dies();
        } else {
            let now = deciding.now;
            deciding.head.cancel(now, change);
        }
        deciding.hears(RIGHT, Message::CancelAck { change });
        let each = [(OLD, Scope::NewPath), (NEW, Scope::Newcomer)];
        let each = each.map(|(at, scope)| (ip(at), scope, vec![NUMBER]));
        assert_eq!(deciding.dismisses(), each);
    }
}

#[test]
fn the_paths_before_are_given_up_by_their_numbers() {
    for dies in [false, true] {
        let mut deciding = Deciding::has_cut();
        let change = deciding.change;
        let cutoff = cutoff_at(9);
        deciding.hears(RIGHT, Message::Switched { change, cutoff });
        deciding.happens(HostEvent::Drained { change });
        deciding.hears(RIGHT, Message::Settled { change });
        if dies {
            deciding.dies();
        }
        deciding.hears(RIGHT, Message::DoneAck { change });
        let before = vec![(ip(OLD), Scope::PathBefore, PATHS.to_vec())];
        assert_eq!(deciding.dismisses(), before);
    }
}

/// A host carries out the requests about its paths, if the peer may make them.
#[test]
fn a_host_is_handed_the_numbers() {
    let mut host = machine(OLD);
    let change = ChangeId([7; 16]);
    let enlist = Message::Enlist {
        change,
        session: session(),
        next: ip(NEW),
        before: vec![element(OLD)],
        paths: PATHS.to_vec(),
        number: NUMBER,
    };
    host.handle_message(Duration::ZERO, &[ip(NEW)], enlist.clone());
    assert_eq!(host.poll_command(), None, "a stranger");
    host.handle_message(Duration::ZERO, &[ip(LEFT)], enlist);
    let ready = Forwarder::Enlist {
        from: ip(LEFT),
        session: session(),
        next: ip(NEW),
        stays: true,
        paths: PATHS.to_vec(),
        number: NUMBER,
    };
    assert_eq!(host.poll_command(), Some(Command::new(change, ready)));
    let result = Err(Reason::Cancelled);
    let from = ip(LEFT);
    host.handle_event(
        Duration::ZERO,
        HostEvent::Enlisted {
            change,
            from,
            result: result.clone(),
        },
    );
    let answer = Message::Enlisted { change, result };
    assert_eq!(host.poll_transmit(), Some((from, answer)));
}
