//! Errors of the network about sessions that have other five-tuples and numbers on the wire than
//! at their ends.

mod narrow;
mod relay;

use std::net::IpAddr;

use dysco_common::{Counter, State, Translation};
use etherparse::{
    IpEcn, IpHeaders, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, PacketBuilder,
};

use crate::bench::{DROP, OK, PASS, Programs, Way};
use crate::frame::{Frame, Net, nets, on};
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
