//! Two hosts, and messages that are lost, repeated and forged.

use crate::marked::Marked as _;
use dysco_common::Element;

use crate::Subsession;

use super::*;

const ASK: AskId = AskId([7; 16]);
const ASKER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 2, 1));
const OPENER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 1, 1));
const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

fn asked() -> Asked {
    Asked {
        session: Subsession {
            left: (OPENER, 40_000).into(),
            right: ([10, 0, 3, 1], 80).into(),
        },
        wish: ChainWish::Remove(Element::Host(ASKER)),
        state: vec![crate::KindName::Conntrack],
        dry_run: false,
    }
}

fn done() -> Answer {
    Answer {
        outcome: Outcome::Changed,
        reason: None,
        before: vec![Element::Host(ASKER)],
        after: vec![],
        timed_out: false,
    }
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Delivers the messages to a host, in encoded form.
fn deliver(from: IpAddr, actions: Vec<Action>, to: &mut Asks, now: Duration) -> Vec<Action> {
    let mut all = Vec::new();
    for action in actions {
        if let Action::Transmit(_, message) = action {
            let bytes = message.encode().unwrap();
            assert!(Message::is_one(&bytes));
            let read = Message::decode(&bytes).unwrap();
            assert_eq!(read, message);
            all.extend(to.handle(now, &[from], read));
        }
    }
    all
}

fn judged(actions: &[Action]) -> usize {
    let judge =
        |a: &&Action| matches!(a, Action::Judge { ask: ASK, asked: a, .. } if *a == asked());
    actions.iter().filter(judge).count()
}

#[test]
fn what_is_asked_for_is_done_once_and_answered() {
    let (mut asker, mut opener) = (Asks::default(), Asks::default());
    let said = asker.begin(at(0), ASK, OPENER, asked());
    let heard = deliver(ASKER, said.clone(), &mut opener, at(0));
    assert_eq!(judged(&heard), 1);
    // The message arrives twice, and later again.
    let again = deliver(ASKER, said, &mut opener, at(0));
    assert_eq!(judged(&again), 0);
    assert_eq!(deliver(OPENER, heard, &mut asker, at(0)), []);
    for second in (5..100).step_by(5) {
        assert_eq!(asker.tick(at(second - 1)), []);
        let said = asker.tick(at(second));
        assert_eq!(said.len(), 1, "it is given up after {second} s");
        let heard = deliver(ASKER, said, &mut opener, at(second));
        assert_eq!(judged(&heard), 0);
        deliver(OPENER, heard, &mut asker, at(second));
        assert_eq!(opener.tick(at(second)), []);
    }
    // The answer is lost, and repeated when the asker repeats the question.
    opener.answered(at(100), ASK, done());
    let again = asker.tick(at(100));
    let answer = deliver(ASKER, again, &mut opener, at(100));
    let ended = deliver(OPENER, answer, &mut asker, at(100));
    assert_eq!(
        ended,
        [Action::Ended {
            ask: ASK,
            answer: done(),
            silent: false
        }]
    );
    assert_eq!(asker.tick(at(200)), []);
    opener.tick(at(200));
    assert!(opener.others.is_empty() && asker.own.is_empty());
}

#[test]
fn a_process_that_never_heard_of_it_does_not_do_it_again() {
    let (mut asker, mut opener) = (Asks::default(), Asks::default());
    let said = asker.begin(at(0), ASK, OPENER, asked());
    let heard = deliver(ASKER, said, &mut opener, at(0));
    deliver(OPENER, heard, &mut asker, at(0));
    let mut successor = Asks::default();
    let said = asker.tick(at(5));
    let answer = deliver(ASKER, said, &mut successor, at(5));
    assert_eq!(judged(&answer), 0);
    let ended = deliver(OPENER, answer, &mut asker, at(5));
    let [Action::Ended { answer, .. }] = &ended[..] else {
        panic!("{ended:?}");
    };
    assert_eq!(answer.outcome, Outcome::Refused);
    assert!(answer.reason.as_ref().unwrap().why.contains("started anew"));
}

#[test]
fn who_does_not_answer_is_named() {
    let mut asker = Asks::default();
    asker.begin(at(0), ASK, OPENER, asked());
    let ended = asker.tick(at(15));
    let [Action::Ended { answer, silent, .. }] = &ended[..] else {
        panic!("{ended:?}");
    };
    assert!(*silent, "the time ran out");
    assert!(
        answer
            .reason
            .as_ref()
            .unwrap()
            .why
            .contains("no answer of 10.0.1.1")
    );
    // A host that had sent `Heard` may have acted.
    let mut asker = Asks::default();
    asker.begin(at(0), ASK, OPENER, asked());
    asker.handle(at(1), &[OPENER], Message::Heard { ask: ASK });
    let ended = asker.tick(at(16));
    let reported = |a: &Action| matches!(a, Action::Ended { answer, .. } if answer.reason.as_ref().unwrap().why.contains("not known"));
    assert!(ended.iter().any(reported), "{ended:?}");
}

/// Each question is answered, however many there are.
#[test]
fn many_questions_wait_for_each_other() {
    let (mut asker, mut opener) = (Asks::default(), Asks::default());
    let id = |n: usize| AskId(std::array::from_fn(|i| (n >> (8 * (i % 4))) as u8));
    let all = 3 * MOST_OF_ONE;
    let mut said = Vec::new();
    for n in 0..all {
        said.extend(asker.begin(at(0), id(n), OPENER, asked()));
    }
    assert_eq!(said.len(), AT_ONCE);
    let mut ended = 0;
    while !said.is_empty() {
        let judged = deliver(ASKER, std::mem::take(&mut said), &mut opener, at(0));
        for action in &judged {
            let Action::Judge { ask, .. } = action else {
                continue;
            };
            let reported = opener.answered(at(0), *ask, done());
            let next = deliver(OPENER, reported, &mut asker, at(0));
            ended += next
                .iter()
                .filter(|a| matches!(a, Action::Ended { .. }))
                .count();
            said.extend(next);
        }
    }
    assert_eq!(ended, all);
    assert!(asker.own.is_empty() && asker.waiting.is_empty());
}

#[test]
fn strangers_are_not_heard() {
    let (mut asker, mut opener) = (Asks::default(), Asks::default());
    let said = asker.begin(at(0), ASK, OPENER, asked());
    deliver(ASKER, said, &mut opener, at(0));
    let reported = opener.answered(at(1), ASK, done());
    // A stranger's answer has no effect, and a stranger gets no answer.
    assert_eq!(deliver(STRANGER, reported, &mut asker, at(1)), []);
    let question = Message::Ask {
        ask: ASK,
        heard: true,
        asked: asked(),
    };
    assert_eq!(opener.handle(at(1), &[STRANGER], question), []);
    assert_eq!(Message::decode(b"A\x02"), None);
    assert_eq!(Message::decode(b"A\x01\xff"), None);
}

#[test]
fn one_host_cannot_take_all_room() {
    let mut opener = Asks::default();
    let ask = |of: u8, n: usize| Message::Ask {
        ask: AskId(std::array::from_fn(|i| match i {
            0 => of,
            i => (n >> (8 * (i % 4))) as u8,
        })),
        heard: false,
        asked: asked(),
    };
    for n in 0..MOST_OF_ONE {
        assert_eq!(opener.handle(at(0), &[STRANGER], ask(0, n)).len(), 2);
    }
    assert_eq!(
        opener.handle(at(0), &[STRANGER], ask(0, MOST_OF_ONE)).len(),
        1
    );
    assert_eq!(opener.handle(at(0), &[ASKER], ask(1, 0)).len(), 2);
}

#[test]
fn a_host_names_itself_by_any_of_its_addresses() {
    let own: Vec<IpAddr> = vec![[10, 9, 9, 9].into(), ASKER];
    let [other, asker, opener, stranger] = [own[0], ASKER, OPENER, STRANGER].map(Element::Host);
    let wish = |wish: ChainWish| wish.named_as(&[stranger, asker], &own);
    assert_eq!(wish(ChainWish::Remove(other)), ChainWish::Remove(asker));
    assert_eq!(
        wish(ChainWish::Replace(other, opener)),
        ChainWish::Replace(asker, opener)
    );
    assert_eq!(
        wish(ChainWish::Become(vec![other, stranger])),
        ChainWish::Become(vec![asker, stranger])
    );
    let of_another = ChainWish::Remove(stranger);
    assert_eq!(wish(of_another.clone()), of_another);
    // The host is in no chain.
    let alone = ChainWish::Insert(other).named_as(&[stranger], &own);
    assert_eq!(alone, ChainWish::Insert(other));
}

#[test]
fn a_long_reason_fits_a_message() {
    let text = "ä".repeat(5000);
    let long = Answer::refused(Cause::new(&text).hint(&text)).cut();
    let Cause { why, hint } = long.reason.unwrap();
    assert!(why.len() <= 1024 && hint.unwrap().len() <= 1024);
}
