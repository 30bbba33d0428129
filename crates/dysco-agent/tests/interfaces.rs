//! Interfaces that are deleted and made anew: the programs are on them again, and
//! sessions leave by them.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::net::{TcpListener, TcpStream};
use std::process::Command;

use aya::programs::{SchedClassifier, TcAttachType};
use dysco_agent::common::{FlowKey, Translation};
use dysco_agent::{Agent, Attach, InterfaceChange, NewPath};
use plane::{alone, ip, start};

const MAKE: &str = "link add one type veth peer name two";

/// How many of our programs look at what an interface sends.
fn programs(how: Attach) -> usize {
    if how == Attach::Tcx {
        let (_, all) = SchedClassifier::query_tcx("one", TcAttachType::Egress).unwrap();
        return all.len();
    }
    let words = ["filter", "show", "dev", "one", "egress"];
    let listed = Command::new("tc").args(words).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    listed.matches("name dysco_egress").count()
}

fn index(agent: &Agent) -> Option<u32> {
    agent.attached()[0].index
}

fn is_attached_to_anew(name: &str, how: Attach) {
    ip(MAKE);
    let (agent, _events) = start(name, |config| {
        config.interfaces = vec!["one".into(), "lo".into()];
        config.attach = how;
    });
    let how = agent.attached()[0].attach;
    let first = index(&agent).unwrap();
    assert!(agent.look_at_interfaces().is_empty());

    // A session that leaves by it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let slot = agent.find(&key).unwrap();
    let end = |port| ([127, 0, 0, 1], port).into();
    let path = NewPath {
        key: FlowKey::new(end(61_500), end(9)),
        ifindex: first,
        translation: Translation::default(),
    };
    agent.prepare(slot, &path).unwrap();

    ip("link del one");
    let gone = agent.look_at_interfaces();
    assert!(
        matches!(&gone[..], [(name, InterfaceChange::Gone)] if name == "one"),
        "{gone:?}"
    );
    assert_eq!(index(&agent), None);
    assert!(agent.look_at_interfaces().is_empty(), "it is told once");

    for noticed in [true, false] {
        if !noticed {
            // Between two looks.
            ip("link del one");
        }
        ip(MAKE);
        let back = agent.look_at_interfaces();
        let anew = matches!(&back[..], [(_, InterfaceChange::Attached { .. })]);
        assert!(anew, "{back:?}");
        assert!(index(&agent).is_some_and(|index| index != first));
        assert_eq!(programs(how), 1);
        assert_eq!(Some(agent.session(slot).ifindex), index(&agent));
        assert!(agent.look_at_interfaces().is_empty());
    }
    drop(agent);
    ip("link del one");
}

#[tokio::test]
async fn one_that_is_made_anew_has_the_programs_again() {
    alone();
    is_attached_to_anew("first", Attach::Auto);
    is_attached_to_anew("second", Attach::Clsact);
}
