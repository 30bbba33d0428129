//! Errors of the network about sessions that have other five-tuples and numbers on the wire than
//! at their ends.

use std::net::IpAddr;

use dysco_common::session::Two;
use dysco_common::{Counter, State, Translation};
use etherparse::{
    IpEcn, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder,
};
use nix::sched::{CloneFlags, unshare};

use crate::bench::{DROP, OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::far::{BACK, GIVEN, OUT, SENT, from_client, joined_in, to_server};
use crate::frame::{Frame, Net, Options, mirror, nets, on};
use crate::translate::T;

/// Type and code in each family, and the four bytes behind the checksum.
const KINDS: [[[u8; 2]; 2]; 3] = [[[3, 4], [2, 0]], [[3, 1], [1, 3]], [[11, 0], [3, 0]]];
const REST: [u8; 4] = [0, 0, 5, 0x14];

/// Returns the IP header of a message.
fn header(src: IpAddr, dst: IpAddr, limit: u8, id: u16) -> IpHeaders {
    match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let (src, dst) = (src.octets(), dst.octets());
            let mut ip = Ipv4Header::new(0, limit, IpNumber::ICMP, src, dst).unwrap();
            ip.identification = id;
            ip.ecn = IpEcn::try_new(0).unwrap();
            IpHeaders::Ipv4(ip, Default::default())
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = Ipv6Header {
                flow_label: Ipv6FlowLabel::try_new(0).unwrap(),
                next_header: IpNumber::IPV6_ICMP,
                hop_limit: limit,
                source: src.octets(),
                destination: dst.octets(),
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(ip, Default::default())
        }
        _ => panic!("two families in one packet"),
    }
}

/// An error about a segment that quotes `quoted` bytes behind the segment's IP header.
#[derive(Clone)]
struct Error {
    from: IpAddr,
    to: IpAddr,
    kind: [[u8; 2]; 2],
    rest: [u8; 4],
    limit: u8,
    id: u16,
    about: Frame,
    quoted: usize,
}

impl Error {
    fn bytes(&self) -> Vec<u8> {
        let mut quoted = self.about.bytes()[14..self.about.l4() + self.quoted].to_vec();
        self.around(&mut quoted)
    }

    /// Returns the message around quoted bytes.
    fn around(&self, quoted: &mut [u8]) -> Vec<u8> {
        let ip = header(self.from, self.to, self.limit, self.id);
        let frame = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]).ip(ip);
        let mut out = Vec::new();
        let [v4, v6] = self.kind;
        if self.to.is_ipv4() {
            let icmp = frame.icmpv4_raw(v4[0], v4[1], self.rest);
            icmp.write(&mut out, quoted).unwrap();
        } else {
            let icmp = frame.icmpv6_raw(v6[0], v6[1], self.rest);
            icmp.write(&mut out, quoted).unwrap();
        }
        out
    }
}

/// Returns a router's address.
fn router(net: &Net) -> IpAddr {
    let ip = if net.local.is_ipv4() {
        "10.7.7.7"
    } else {
        "fd77::7"
    };
    ip.parse().unwrap()
}

/// Error of a router about a segment, to its sender.
fn error(net: &Net, about: &Frame) -> Error {
    Error {
        from: router(net),
        to: about.src.ip(),
        kind: KINDS[0],
        rest: REST,
        limit: 60,
        id: 0x4321,
        about: about.clone(),
        quoted: 8,
    }
}

#[track_caller]
fn becomes(p: &Programs, way: Way, error: &Error, verdict: u32, want: &Error) {
    let got = p.run(way, &error.bytes());
    assert_eq!(got, (verdict, want.bytes()), "{way:?} {:?}", want.about);
}

#[track_caller]
fn passes(p: &Programs, way: Way, error: &Error) {
    becomes(p, way, error, PASS, error);
}

/// Returns a segment of the local end on the new path, and as its stack has sent it.
fn segments(net: &Net, seq: u32, translation: &Translation) -> (Frame, Frame) {
    let sent = Frame {
        seq,
        payload: vec![3; 1200],
        ..net.sent()
    };
    let wire = Frame {
        seq: seq.wrapping_add(translation.seq_out),
        ..on(net.path(), &sent)
    };
    (sent, wire)
}

#[test]
fn an_error_about_the_new_path_is_the_stacks() {
    for net in nets() {
        for state in [
            State::NewPath,
            State::TwoPaths,
            State::Switching,
            State::Passing,
        ] {
            let mut p = Programs::with(&net, state, T);
            p.change(|s| {
                s.snd_max = 9000;
                // In the other states the path is being opened.
                s.two.cut_set = (state == State::TwoPaths) as _;
            });
            let (sent, wire) = segments(&net, 8000, &T);
            for (kind, quoted) in KINDS.into_iter().zip([8, 20, 900]) {
                let arrives = Error {
                    kind,
                    quoted,
                    ..error(&net, &wire)
                };
                let got = p.run(Way::In, &arrives.bytes());
                // The rest of the quoted header remains as the network has seen it.
                let mut part = wire.bytes()[14..wire.l4() + quoted].to_vec();
                part[..wire.l4() - 6].copy_from_slice(&sent.bytes()[14..sent.l4() + 8]);
                let want = Error {
                    to: net.local.ip(),
                    ..arrives
                };
                assert_eq!(got, (OK, want.around(&mut part)), "{state:?}");
            }
            assert_eq!(p.count(Counter::IcmpTranslated), 3);
        }
    }
}

/// The present path is neither narrower nor less reachable because of the error.
#[test]
fn an_error_about_what_opens_a_path_is_nobodys() {
    for net in nets() {
        for state in [State::TwoPaths, State::Joining] {
            let mut p = Programs::with(&net, state, T);
            p.change(|s| s.snd_max = 9000);
            let (_, wire) = segments(&net, 8000, &T);
            for kind in KINDS {
                let arrives = Error {
                    kind,
                    ..error(&net, &wire)
                };
                assert_eq!(p.run(Way::In, &arrives.bytes()).0, DROP, "{state:?}");
            }
            assert_eq!(p.count(Counter::IcmpDisbelieved), KINDS.len() as u64);
        }
    }
}

/// Anybody who knows the five-tuple may send an error (RFC 5927).
#[test]
fn an_error_about_what_was_never_sent_is_not_believed() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        p.change(|s| s.snd_max = 9000);
        let (_, wire) = segments(&net, 9001, &T);
        assert_eq!(p.run(Way::In, &error(&net, &wire).bytes()).0, DROP);
        assert_eq!(p.count(Counter::IcmpDisbelieved), 1);
    }
}

#[test]
fn errors_about_other_packets_are_as_they_were() {
    for net in nets() {
        let mut p = Programs::with(&net, State::NewPath, T);
        p.change(|s| s.snd_max = 9000);
        let (sent, wire) = segments(&net, 8000, &T);
        passes(&p, Way::In, &error(&net, &sent));
        // Of another session, or of the other direction.
        let stranger = Frame {
            src: net.new_remote,
            dst: net.new_local,
            ..wire.clone()
        };
        passes(&p, Way::In, &error(&net, &stranger));
        passes(&p, Way::Out, &error(&net, &wire));
        // No error: an echo, which quotes nothing.
        for kind in [[[8, 0], [128, 0]], [[0, 0], [129, 0]], [[5, 1], [137, 0]]] {
            passes(
                &p,
                Way::In,
                &Error {
                    kind,
                    ..error(&net, &wire)
                },
            );
        }
        // Cut before the sequence number.
        passes(
            &p,
            Way::In,
            &Error {
                quoted: 7,
                ..error(&net, &wire)
            },
        );
        for state in [
            State::Tracked,
            State::Opening,
            State::Return,
            State::Adopted,
        ] {
            p.change(|s| s.state = state as u32);
            passes(&p, Way::In, &error(&net, &wire));
            passes(&p, Way::In, &error(&net, &sent));
        }
        let counted = [
            Counter::IcmpTranslated,
            Counter::IcmpRelayed,
            Counter::IcmpDisbelieved,
        ];
        assert_eq!(counted.map(|c| p.count(c)), [0; 3]);
    }
}

/// The proxy has left: nothing here may react to the error.
#[test]
fn a_tombstone_hears_no_errors() {
    for net in nets() {
        let p = Programs::with(&net, State::Tombstone, T);
        let (sent, _) = segments(&net, 8000, &T);
        assert_eq!(p.run(Way::In, &error(&net, &sent).bytes()).0, DROP);
        assert_eq!(p.count(Counter::DroppedTombstone), 1);
    }
}

/// Returns a segment of the client, and the same as it was relayed to the server.
fn relayed(net: &Net) -> (Frame, Frame) {
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
        let mut p = joined_in(Programs::load(), &net, State::FarTwoPaths);
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

/// Returns programs in a network namespace of their own, whose only link has this MTU.
fn narrow(mtu: u32) -> Programs {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let words = ["link", "set", "lo", "mtu", &mtu.to_string()];
    let set = std::process::Command::new("ip")
        .args(words)
        .status()
        .unwrap();
    assert!(set.success());
    Programs::load()
}

/// Runs with a packet that exceeds the MTU of the next link: its end receives an error.
#[track_caller]
fn refused(p: &Programs, net: &Net, frame: &Frame, bytes: &[u8], mtu: u32) {
    let (verdict, got) = p.run(Way::In, bytes);
    assert_eq!(verdict, REDIRECT);
    let own = Error {
        from: net.local.ip(),
        to: net.remote.ip(),
        rest: mtu.to_be_bytes(),
        limit: 64,
        id: 0,
        ..error(net, frame)
    };
    // The program may choose the quoted checksum.
    let mut quoted = bytes[14..frame.l4() + 20].to_vec();
    let check = quoted.len() - 4;
    quoted[check..check + 2].copy_from_slice(&got[got.len() - 4..got.len() - 2]);
    // The kernel makes the Ethernet header.
    assert_eq!(got[14..], own.around(&mut quoted)[14..]);
}

#[test]
fn a_relaying_host_answers_what_its_next_link_does_not_take() {
    let mut p = narrow(1000);
    for net in nets() {
        for which in [Options::Timestamps, Options::Sack] {
            let overhead = from_client(&net, SENT, GIVEN, 0, which).bytes().len() - 14;
            let fits = from_client(&net, SENT, GIVEN, 1000 - overhead, which);
            let long = from_client(&net, SENT, GIVEN, 1001 - overhead, which);
            p = joined_in(p, &net, State::Relay);
            let (before, relayed) = (p.count(Counter::IcmpTooBig), p.count(Counter::Relayed));
            assert_eq!(p.run(Way::In, &fits.bytes()).0, REDIRECT);
            assert_eq!(p.count(Counter::Relayed), relayed + 1);
            // Complete, and with a checksum that is left to a device.
            refused(&p, &net, &long, &long.bytes(), 1000);
            refused(&p, &net, &long, &long.partial_bytes(), 1000);
            assert_eq!(p.count(Counter::IcmpTooBig), before + 2);
            assert_eq!(p.count(Counter::Relayed), relayed + 1);
            // Each segment of a super-packet counts by itself: it has 1000 bytes here.
            assert_eq!(p.run_super(Way::In, &long.bytes()).0, REDIRECT);
            assert_eq!(p.count(Counter::IcmpTooBig), before + 3);
        }
    }
}

/// A packet that the stack still receives is not compared with the link's MTU.
#[test]
fn in_two_paths_only_the_new_one_is_too_narrow() {
    let mut p = narrow(1000);
    for net in nets() {
        p = joined_in(p, &net, State::FarTwoPaths);
        let long = from_client(&net, SENT, GIVEN, 1400, Options::Timestamps);
        assert_eq!(p.run(Way::In, &long.bytes()).0, PASS);
        let mut client = p.session(SLOT);
        (client.two.cut_set, client.cut_out) = (1, SENT);
        p.put(SLOT, &client);
        refused(&p, &net, &long, &long.bytes(), 1000);
    }
}
