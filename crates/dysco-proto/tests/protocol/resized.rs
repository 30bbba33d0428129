//! The removal of middleboxes that have changed the size of the stream: their reports, and the left
//! anchor's conclusions.

use std::net::IpAddr;
use std::time::Duration;

use dysco_common::Delta;
use dysco_proto::command::Chain;
use dysco_proto::{
    Action, ChangeId, HostEvent, Machine, Margins, Message, Order, Progress, Reason, Report, Scope,
};

use super::chain_updates::{
    ADDED, LEFT, NEW, OLD, RIGHT, World, element, ip, machine, order, session,
};

/// A left anchor that has asked all hosts, and its messages.
struct Asking {
    left: Machine,
    change: ChangeId,
    now: Duration,
}

impl Asking {
    fn new(before: &[usize], after: &[usize]) -> (Asking, Vec<(IpAddr, &'static str)>) {
        let order = Order {
            before: before.iter().map(|h| element(*h)).collect(),
            after: after.iter().map(|h| element(*h)).collect(),
            state: Vec::new(),
            ..order()
        };
        let mut left = machine(LEFT);
        let change = left.request_chain(Duration::ZERO, order).unwrap();
        let mut asking = Asking {
            left,
            change,
            now: Duration::ZERO,
        };
        assert_eq!(asking.commands(), ["Hold", "Persist"]);
        let result = Ok(World::facts(LEFT));
        let event = HostEvent::Locked { change, result };
        asking.left.handle_event(Duration::ZERO, event);
        assert!(asking.commands().is_empty());
        let said = std::iter::from_fn(|| asking.left.poll_transmit());
        let said = said.map(|(to, m)| (to, m.name())).collect();
        (asking, said)
    }

    fn commands(&mut self) -> Vec<&'static str> {
        let all = std::iter::from_fn(|| self.left.poll_command());
        all.map(|c| c.name()).collect()
    }

    fn hears(&mut self, from: usize, message: Message) {
        self.left.handle_message(self.now, &[ip(from)], message);
    }

    fn reports(&mut self, from: usize, result: Result<Delta, Reason>) {
        let change = self.change;
        self.hears(from, Message::TellDelta { change, result });
    }

    fn enlisted(&mut self, from: usize) {
        let (change, result) = (self.change, Ok(()));
        self.hears(from, Message::Enlisted { change, result });
    }

    fn extended(&mut self) {
        let (change, result) = (self.change, Ok(World::facts(RIGHT)));
        self.hears(RIGHT, Message::Extended { change, result });
    }

    /// Returns the delta that the opened path compensates for, or `None` if no path is opened.
    fn opens(&mut self) -> Option<Delta> {
        let all = std::iter::from_fn(|| self.left.poll_command());
        all.filter_map(|c| match c.action {
            Action::Chain(Chain::Open { delta, .. }) => Some(delta),
            _ => None,
        })
        .last()
    }

    /// Returns the requests to forget, with their receivers.
    fn dismisses(&mut self) -> Vec<(IpAddr, Scope)> {
        let all = std::iter::from_fn(|| self.left.poll_transmit());
        all.filter_map(|(to, m)| match m {
            Message::Dismiss { scope, .. } => Some((to, scope)),
            _ => None,
        })
        .collect()
    }

    fn ended(&mut self) -> Option<Progress> {
        let all = std::iter::from_fn(|| self.left.poll_report());
        all.filter_map(|r| match r {
            Report::Progress { progress, .. } => Some(progress),
            _ => None,
        })
        .last()
    }
}

/// Both leaving middleboxes have changed the stream.
#[test]
fn what_those_that_leave_have_added_is_made_up_for() {
    let (mut asking, said) = Asking::new(&[OLD, NEW], &[]);
    for host in [OLD, NEW] {
        assert!(said.contains(&(ip(host), "AskDelta")), "{said:?}");
    }
    asking.reports(OLD, Ok(ADDED));
    asking.extended();
    assert_eq!(asking.opens(), None, "one has not answered");
    let taken = Delta {
        to_server: 30u32.wrapping_neg(),
        to_client: 5,
    };
    asking.reports(NEW, Ok(taken));
    assert_eq!(asking.opens(), Some(ADDED.and(&taken)));
    // The report is repeated.
    asking.reports(NEW, Ok(taken));
    assert_eq!(asking.opens(), None);
}

/// A delta that the numbers on a middlebox's host, or at the two ends, contradict is refused with
/// the reason. Everything stays as before.
#[test]
fn what_the_numbers_contradict_is_refused() {
    let why = || Reason::DeltaContradicted("40 bytes to the server".into());
    let refused = |asking: &mut Asking| {
        let change = asking.change;
        let names = asking.commands();
        assert!(names.contains(&"Abandon"), "{names:?}");
        asking.hears(RIGHT, Message::CancelAck { change });
        assert_eq!(asking.ended(), Some(Progress::RolledBack(why())));
        assert_eq!(asking.left.stats().changes, 0);
    };
    let (mut asking, _) = Asking::new(&[OLD], &[]);
    asking.reports(OLD, Err(why()));
    refused(&mut asking);

    let (mut asking, _) = Asking::new(&[OLD], &[]);
    asking.reports(OLD, Ok(ADDED));
    asking.extended();
    assert_eq!(asking.opens(), Some(ADDED));
    let (change, result) = (asking.change, Err(why()));
    let event = HostEvent::Prepared { change, result };
    asking.left.handle_event(Duration::ZERO, event);
    refused(&mut asking);
}

/// A host that stays has a connection that has seen numbers. The numbers before a leaving middlebox
/// are not those behind it.
#[test]
fn a_host_before_it_does_not_stay() {
    for (before, fits) in [([OLD, NEW], true), ([NEW, OLD], false)] {
        let (mut asking, said) = Asking::new(&before, &[NEW]);
        assert!(!said.contains(&(ip(NEW), "AskDelta")), "it stays: {said:?}");
        asking.reports(OLD, Ok(ADDED));
        asking.enlisted(NEW);
        asking.extended();
        assert_eq!(asking.opens(), None, "the one that stays has not answered");
        asking.reports(NEW, Ok(Delta::default()));
        assert_eq!(asking.opens().is_some(), fits, "{before:?}");
        if !fits {
            let change = asking.change;
            asking.hears(RIGHT, Message::CancelAck { change });
            // A late message of this change must not undo the next one.
            assert_eq!(asking.dismisses(), [(ip(NEW), Scope::Unopened)]);
            asking.hears(NEW, Message::Dismissed { change });
            let why = Reason::DeltaBehind(ip(NEW));
            assert_eq!(asking.ended(), Some(Progress::RolledBack(why)));
        }
    }
}

/// Returns the answer of a host that does what it is asked to do, and reports this delta.
fn answer(to: IpAddr, message: Message, delta: &Result<Delta, Reason>) -> Option<Message> {
    let change = message.change();
    let facts = World::facts(if to == ip(RIGHT) { RIGHT } else { LEFT });
    Some(match message {
        Message::Lead { .. } | Message::Extend { .. } => Message::Extended {
            change,
            result: Ok(facts),
        },
        Message::Enlist { .. } => Message::Enlisted {
            change,
            result: Ok(()),
        },
        Message::AskDelta { .. } => Message::TellDelta {
            change,
            result: delta.clone(),
        },
        Message::Cancel { .. } => Message::CancelAck { change },
        Message::Dismiss { .. } => Message::Dismissed { change },
        Message::Release { .. } => Message::Released { change },
        _ => return None,
    })
}

/// Asks for another chain, while the middlebox of host `OLD` reports a delta. Returns the reason
/// against the change, or success once a path is opened.
fn becomes(
    before: [usize; 2],
    after: &[usize],
    delta: &Result<Delta, Reason>,
) -> Result<(), Reason> {
    let [before, after] = [&before[..], after].map(|chain| chain.iter().map(|h| element(*h)));
    let (before, after): (Vec<_>, Vec<_>) = (before.collect(), after.collect());
    let mut head = machine(LEFT);
    let margins = Margins::between(&before, &after);
    let change = head.request_chain(
        Duration::ZERO,
        Order {
            before,
            after,
            margins,
            state: Vec::new(),
            ..order()
        },
    );
    let change = change.expect("a request that is allowed");
    let none = Ok(Delta::default());
    loop {
        while let Some(command) = head.poll_command() {
            let event = match command.action {
                Action::Chain(Chain::Hold { .. }) => HostEvent::Locked {
                    change,
                    result: Ok(World::facts(LEFT)),
                },
                Action::Chain(Chain::Open { .. }) => return Ok(()),
                _ => continue,
            };
            head.handle_event(Duration::ZERO, event);
        }
        while let Some(report) = head.poll_report() {
            if let Report::Progress {
                progress: Progress::RolledBack(why) | Progress::Refused(why),
                ..
            } = report
            {
                return Err(why);
            }
        }
        let Some((to, message)) = head.poll_transmit() else {
            panic!("it waits, and every host has answered");
        };
        if matches!(message, Message::Open { .. }) {
            return Ok(());
        }
        let delta = if to == ip(OLD) { delta } else { &none };
        if let Some(answer) = answer(to, message, delta) {
            head.handle_message(Duration::ZERO, &[to], answer);
        }
    }
}

/// A host whose own middlebox has changed the stream does not stay, whether it is an anchor or stays
/// between the two. It is asked even if nothing contradicts that it has changed nothing.
#[test]
fn a_host_that_has_changed_the_stream_does_not_stay() {
    let contradicted = Err(Reason::DeltaNotDeclared("40 bytes to the server".into()));
    let unknown = Reason::DeltaUnconfirmed("it holds bytes".into());
    let behind = Reason::DeltaBehind(ip(OLD));
    let chains = [
        ("it is the left anchor", [OLD, NEW], vec![OLD]),
        ("it is the right anchor", [NEW, OLD], vec![OLD]),
        ("it stays between them", [NEW, OLD], vec![OLD, NEW]),
    ];
    for (place, before, after) in chains {
        let becomes = |delta| becomes(before, &after, &delta);
        assert_eq!(becomes(Ok(Delta::default())), Ok(()), "{place}");
        assert_eq!(becomes(Ok(ADDED)), Err(behind.clone()), "{place}");
        assert_eq!(
            becomes(contradicted.clone()),
            Err(behind.clone()),
            "{place}"
        );
        assert_eq!(
            becomes(Err(unknown.clone())),
            Err(unknown.clone()),
            "{place}"
        );
    }
}

/// The answer of a host that stays is needed, so that its silence ends the change.
#[test]
fn a_host_that_stays_and_is_silent_is_named() {
    let (mut asking, _) = Asking::new(&[NEW], &[OLD, NEW]);
    for host in [OLD, NEW] {
        asking.enlisted(host);
    }
    asking.extended();
    assert_eq!(asking.opens(), None);
    while asking.now < Duration::from_secs(30) {
        asking.now = asking.left.poll_timeout().expect("something is waited for");
        let now = asking.now;
        asking.left.handle_timeout(now);
        assert_eq!(asking.opens(), None, "it has not answered");
        let change = asking.change;
        asking.hears(RIGHT, Message::CancelAck { change });
        for host in [OLD, NEW] {
            asking.hears(host, Message::Dismissed { change });
        }
        if let Some(Progress::RolledBack(why)) = asking.ended() {
            assert_eq!(why, Reason::NoAnswer(ip(NEW)));
            return;
        }
    }
    panic!("it waits for ever");
}

/// A host has one name in the chain before and another in the new one: it leaves by the one, and
/// stays by the other. One answer is enough for both.
#[test]
fn a_host_of_two_names_answers_once() {
    let (mut asking, said) = Asking::new(&[OLD], &[NEW]);
    assert!(said.contains(&(ip(OLD), "AskDelta")), "{said:?}");
    let names = [ip(OLD), ip(NEW)];
    let (change, now) = (asking.change, asking.now);
    let result = Ok(());
    let enlisted = Message::Enlisted { change, result };
    asking.left.handle_message(now, &names, enlisted);
    asking.extended();
    assert_eq!(asking.opens(), None, "it stays, and has not answered");
    let result = Ok(Delta::default());
    let told = Message::TellDelta { change, result };
    asking.left.handle_message(now, &names, told);
    assert_eq!(asking.opens(), Some(Delta::default()));
}

/// An anchor in the chain is asked in the midst of its part, and after it has ended.
#[test]
fn an_anchor_in_the_chain_is_asked() {
    let mut old = machine(OLD);
    let (change, session) = (ChangeId([9; 16]), session());
    let now = Duration::ZERO;
    let hears = |old: &mut Machine, message| old.handle_message(now, &[ip(LEFT)], message);
    hears(&mut old, Message::Lead { change, session });
    assert_eq!(old.poll_command().map(|c| c.name()), Some("Hold"));
    let result = Ok(World::facts(LEFT));
    old.handle_event(now, HostEvent::Locked { change, result });
    while old.poll_command().is_some() || old.poll_transmit().is_some() {}
    hears(&mut old, Message::AskDelta { change, session });
    assert_eq!(old.poll_command().map(|c| c.name()), Some("AskDelta"));
    assert_eq!(old.stats().violations, 0);
    old.handle_message(now, &[ip(NEW)], Message::AskDelta { change, session });
    assert_eq!(old.stats().violations, 1, "another host asks");
    let subsession = session;
    old.handle_event(now, HostEvent::SessionGone { subsession });
    while old.poll_transmit().is_some() {}
    hears(&mut old, Message::AskDelta { change, session });
    let (to, answer) = old.poll_transmit().expect("an answer");
    let result = Err(Reason::Closing);
    assert_eq!(
        (to, answer),
        (ip(LEFT), Message::TellDelta { change, result })
    );
}

/// A host that does not run may be left out. Its answer is awaited, but not for ever.
#[test]
fn who_does_not_answer_is_left_out() {
    let (mut asking, _) = Asking::new(&[OLD], &[]);
    asking.extended();
    assert_eq!(asking.opens(), None);
    while asking.now < Duration::from_secs(3) {
        asking.now = asking.left.poll_timeout().expect("something is waited for");
        let now = asking.now;
        asking.left.handle_timeout(now);
        if let Some(delta) = asking.opens() {
            assert!(delta.is_none() && now >= Duration::from_secs(2));
            return;
        }
    }
    panic!("it waits for ever");
}

/// Only a host that leaves or forwards the session may report a delta.
#[test]
fn a_stranger_says_nothing_of_it() {
    let (mut asking, _) = Asking::new(&[OLD], &[]);
    asking.extended();
    asking.reports(RIGHT, Ok(Delta::default()));
    asking.reports(NEW, Ok(ADDED));
    assert_eq!(asking.opens(), None);
    assert_eq!(asking.left.stats().violations, 2);
    // A host answers only the session's left end.
    let mut old = machine(OLD);
    let (change, session) = (asking.change, session());
    let asks = Message::AskDelta { change, session };
    old.handle_message(Duration::ZERO, &[ip(NEW)], asks.clone());
    assert!(old.poll_command().is_none());
    old.handle_message(Duration::ZERO, &[ip(LEFT)], asks);
    assert_eq!(old.poll_command().map(|c| c.name()), Some("AskDelta"));
    let event = HostEvent::DeltaKnown {
        change,
        from: ip(LEFT),
        result: Ok(ADDED),
    };
    old.handle_event(Duration::ZERO, event);
    let answer = Message::TellDelta {
        change,
        result: Ok(ADDED),
    };
    assert_eq!(old.poll_transmit(), Some((ip(LEFT), answer)));
}
