//! Errors about segments that this host relays.

use dysco_common::session::Two;
use dysco_common::{Counter, State};

use super::{Error, KINDS, becomes, error, passes};
use crate::bench::{DROP, Programs, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, Options, mirror, nets, on};
use crate::relay::{BACK, GIVEN, OUT, SENT, from_client, joined_in, to_server};
use crate::translate::T;

/// Returns a segment of the client, and the same as it was relayed to the server.
pub(super) fn relayed(net: &Net) -> (Frame, Frame) {
    let sent = from_client(net, SENT - 2000, GIVEN, 1400, Options::Timestamps);
    let wire = to_server(net, &sent, Options::Timestamps);
    (sent, wire)
}

/// The error as it arrives at the end: one hop further, and from this host.
fn at_end(net: &Net, arrives: &Error, about: &Frame) -> Error {
    Error {
        from: net.local.ip(),
        to: net.remote.ip(),
        limit: arrives.limit - 1,
        about: about.clone(),
        ..arrives.clone()
    }
}

#[test]
fn a_relaying_host_sends_it_to_the_end() {
    for net in nets() {
        let p = joined_in(Programs::load(), &net, State::Relay);
        let (sent, wire) = relayed(&net);
        for kind in KINDS {
            let arrives = Error {
                kind,
                ..error(&net, &wire)
            };
            becomes(
                &p,
                Way::In,
                &arrives,
                REDIRECT,
                &at_end(&net, &arrives, &sent),
            );
        }
        assert_eq!(p.count(Counter::IcmpRelayed), 3);
        // Acknowledged already, and not sent yet.
        for seq in [SENT + OUT - 5001, SENT + OUT + 1] {
            let about = Frame {
                seq,
                ..wire.clone()
            };
            assert_eq!(p.run(Way::In, &error(&net, &about).bytes()).0, DROP);
        }
        assert_eq!(p.count(Counter::IcmpDisbelieved), 2);
        let last = Error {
            limit: 1,
            ..error(&net, &wire)
        };
        assert_eq!(p.run(Way::In, &last.bytes()).0, DROP);
        assert_eq!(p.count(Counter::DroppedHopLimit), 1);
    }
}

/// The server's host sends replies under the proxy's address.
#[test]
fn an_error_about_a_reply_that_passed_by_goes_to_the_server() {
    for net in nets() {
        let mut p = joined_in(Programs::load(), &net, State::Relay);
        let mut client = p.session(SLOT);
        client.two = Two {
            returns: 1,
            ..Two::default()
        };
        p.put(SLOT, &client);
        // Far ahead of all numbers of the server that this host has seen.
        let about = Frame {
            seq: GIVEN + 100_000,
            payload: vec![1; 1400],
            ..net.sent()
        };
        let arrives = error(&net, &about);
        let sent = Frame {
            seq: about.seq - BACK,
            ..on(mirror(net.path()), &about)
        };
        let want = Error {
            from: net.new_local.ip(),
            to: net.new_remote.ip(),
            limit: 59,
            about: sent,
            ..arrives.clone()
        };
        becomes(&p, Way::In, &arrives, REDIRECT, &want);
    }
}

/// Errors about the proxy's own packets go to its stack, errors about relayed packets do not.
#[test]
fn in_two_paths_each_hears_of_its_own() {
    for net in nets() {
        let mut p = joined_in(Programs::load(), &net, State::RelayTwoPaths);
        let (sent, wire) = relayed(&net);
        passes(&p, Way::In, &error(&net, &wire));
        let mut client = p.session(SLOT);
        client.two.cut_set = 1;
        for (cut, goes) in [(sent.seq, true), (sent.seq + 1, false)] {
            client.cut_out = cut;
            p.put(SLOT, &client);
            let arrives = error(&net, &wire);
            match goes {
                true => becomes(
                    &p,
                    Way::In,
                    &arrives,
                    REDIRECT,
                    &at_end(&net, &arrives, &sent),
                ),
                false => passes(&p, Way::In, &arrives),
            }
        }
    }
}

/// The case of a host of a chain: its stack forwards the segment, or reports that it cannot.
#[test]
fn an_error_leaves_by_the_path_that_the_segment_came_by() {
    for net in nets() {
        for state in [State::NewPath, State::Switching, State::Passing] {
            let p = Programs::with(&net, state, T);
            let seq = 0x7000_0000_u32;
            let wire = Frame {
                seq,
                payload: vec![4; 1400],
                ..net.new_received()
            };
            let heard = Frame {
                src: net.remote,
                dst: net.local,
                seq: seq.wrapping_add(T.seq_in),
                ..wire.clone()
            };
            let leaves = error(&net, &heard);
            let want = Error {
                from: net.new_local.ip(),
                to: net.new_remote.ip(),
                about: wire,
                ..leaves.clone()
            };
            becomes(&p, Way::Out, &leaves, REDIRECT, &want);
            // On its second pass the error is unchanged.
            passes(&p, Way::Out, &want);
            assert_eq!(p.count(Counter::IcmpRelayed), 1);
        }
        for state in [State::Tracked, State::Relay, State::Tombstone] {
            let p = Programs::with(&net, state, T);
            passes(&p, Way::Out, &error(&net, &net.received()));
        }
    }
}
