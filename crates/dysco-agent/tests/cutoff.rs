//! The cutoff of the other end, and the local end's acknowledgements while it is set.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use dysco_agent::common::FlowKey;
use dysco_agent::common::two_paths::{Anchor, Cutoff};
use plane::plane;

/// The programs read no cutoff for a session of one path, so that none of them reports that it
/// has drained. The case is the same as that of a packet which missed the cutoff.
#[tokio::test]
async fn an_acknowledgement_that_missed_the_cutoff_is_found_by_looking() {
    let (agent, _events) = plane();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut accepted, _) = listener.accept().unwrap();
    let (local, remote) = (opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let slot = agent.find(&FlowKey::new(local, remote)).unwrap();
    assert!(!agent.look_drained(slot, Anchor::Local), "no cutoff is set");
    let cutoff = agent.session(slot).snd_ack.wrapping_add(5);
    let reported = Cutoff {
        at: cutoff,
        closes: false,
    };
    assert!(!agent.set_cut_in(slot, reported));
    assert!(!agent.look_drained(slot, Anchor::Local), "nothing has come");

    accepted.write_all(b"bytes").unwrap();
    opened.read_exact(&mut [0; 5]).unwrap();
    let late = Instant::now() + Duration::from_secs(10);
    while agent.session(slot).snd_ack != cutoff {
        assert!(Instant::now() < late, "it is not acknowledged");
        std::thread::yield_now();
    }
    assert_eq!(
        agent.session(slot).two.drained,
        0,
        "an event was not missed"
    );
    assert!(agent.look_drained(slot, Anchor::Local));
    assert_eq!(agent.session(slot).two.drained, 1);
}
