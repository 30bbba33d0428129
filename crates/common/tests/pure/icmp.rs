//! Errors of the network: their receivers, and correct checksums.

use std::net::{IpAddr, SocketAddr};

use dysco_common::icmp::{
    Fate, Message, QUOTED, Quoted, READ, about_received, about_relayed, about_sent,
};
use dysco_common::session::Two;
use dysco_common::{Addr, FlowKey, Session, State, Translation};
use proptest::prelude::*;

/// Sum of big-endian words (RFC 1071), folded.
fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

fn socket(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

fn octets(ip: IpAddr) -> Vec<u8> {
    match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    }
}

/// Returns an IP header with a correct checksum.
fn ip(src: IpAddr, dst: IpAddr, protocol: u8, payload: usize) -> Vec<u8> {
    let mut b = Vec::new();
    if src.is_ipv6() {
        b.extend([0x60, 0, 0, 0]);
        b.extend((payload as u16).to_be_bytes());
        b.extend([protocol, 61]);
    } else {
        b.extend([0x45, 0]);
        b.extend((20 + payload as u16).to_be_bytes());
        b.extend([0x12, 0x34, 0x40, 0, 61, protocol, 0, 0]);
    }
    b.extend(octets(src));
    b.extend(octets(dst));
    if src.is_ipv4() {
        let check = !sum(&b);
        b[10..12].copy_from_slice(&check.to_be_bytes());
    }
    b
}

/// Returns the quoted part: an IP header and the first bytes of a TCP header.
fn quote(src: SocketAddr, dst: SocketAddr, seq: u32, tcp: usize) -> Vec<u8> {
    let mut b = ip(src.ip(), dst.ip(), 6, 1400);
    let mut header = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
    header.extend(seq.to_be_bytes());
    header.extend([9, 8, 7, 6, 0x50, 0x10, 0xff, 0xfe, 0xab, 0xcd, 0, 0]);
    b.extend(&header[..tcp]);
    b
}

/// Returns an error that a router sends about this segment.
fn error(router: IpAddr, to: IpAddr, kind: [u8; 2], quoted: &[u8]) -> Vec<u8> {
    let v6 = to.is_ipv6();
    let mut icmp = vec![kind[0], kind[1], 0, 0, 0, 0, 5, 0x14];
    icmp.extend(quoted);
    let pseudo = if v6 {
        let mut p = [octets(router), octets(to)].concat();
        p.extend((icmp.len() as u32).to_be_bytes());
        p.extend([0, 0, 0, 58]);
        p
    } else {
        Vec::new()
    };
    let check = !sum(&[&pseudo[..], &icmp].concat());
    icmp[2..4].copy_from_slice(&check.to_be_bytes());
    let mut all = ip(router, to, if v6 { 58 } else { 1 }, icmp.len());
    all.extend(icmp);
    all
}

fn load(bytes: &[u8]) -> Message {
    let mut m = Message::default();
    let len = bytes.len().min(112);
    // SAFETY: a message has 112 bytes.
    unsafe { m.bytes_mut().copy_from_nonoverlapping(bytes.as_ptr(), len) };
    m
}

fn stored(m: &Message, len: usize) -> Vec<u8> {
    // SAFETY: a message has 112 bytes.
    unsafe { std::slice::from_raw_parts(m.bytes(), len) }.to_vec()
}

fn read(m: &Message, v6: bool) -> Option<Quoted> {
    let mut quoted = Quoted::default();
    let found = match v6 {
        true => m.read::<true>(&mut quoted),
        false => m.read::<false>(&mut quoted),
    };
    found.then_some(quoted)
}

/// Returns client, proxy, server and a router of a family.
fn hosts(v6: bool) -> [SocketAddr; 4] {
    if v6 {
        [
            socket("fd01::1", 40000),
            socket("fd02::2", 8080),
            socket("fd03::3", 9000),
            socket("fd02::fe", 0),
        ]
    } else {
        [
            socket("10.0.1.1", 40000),
            socket("10.0.2.2", 8080),
            socket("10.0.3.3", 9000),
            socket("10.0.2.254", 0),
        ]
    }
}

#[test]
fn an_error_quotes_a_segment() {
    for v6 in [false, true] {
        let [client, _, server, router] = hosts(v6);
        let kinds: &[u8] = if v6 { &[1, 2, 3, 4] } else { &[3, 11, 12] };
        for kind in 0..=255 {
            let quoted = quote(client, server, 0xfedc_ba98, 8);
            let bytes = error(router.ip(), client.ip(), [kind, 4], &quoted);
            let want = kinds.contains(&kind).then_some(Quoted {
                key: FlowKey::new(client, server),
                seq: 0xfedc_ba98,
            });
            assert_eq!(read(&load(&bytes), v6), want, "type {kind}");
        }
    }
}

#[test]
fn what_is_no_error_about_tcp_is_not_read() {
    for v6 in [false, true] {
        let [client, _, server, router] = hosts(v6);
        let good = error(
            router.ip(),
            client.ip(),
            [3, 0],
            &quote(client, server, 7, 8),
        );
        let inner = if v6 { 48 } else { 28 };
        // Bytes that change the protocol, make a fragment, or add options to a header.
        let changes: &[(usize, u8)] = if v6 {
            &[(6, 6), (6, 17), (inner + 6, 17), (inner + 6, 44)]
        } else {
            &[
                (0, 0x46),
                (9, 6),
                (9, 17),
                (6, 0x20),
                (7, 1),
                (inner, 0x46),
                (inner + 9, 17),
                (inner + 6, 0x1f),
                (inner + 7, 1),
            ]
        };
        assert!(read(&load(&good), v6).is_some());
        for (at, byte) in changes {
            let mut bad = good.clone();
            bad[*at] = *byte;
            assert_eq!(read(&load(&bad), v6), None, "byte {at} is {byte:#x}");
        }
    }
}

proptest! {
    /// Compared with an error that is built from scratch.
    #[test]
    fn a_rewritten_error_is_as_if_built_so(
        v6 in any::<bool>(), seq in any::<u32>(), to in any::<u32>(), ports in any::<[u16; 4]>(),
        tcp in 8usize..=20, forwarded in any::<bool>(),
    ) {
        let [mut client, mut proxy, mut server, router] = hosts(v6);
        client.set_port(ports[0]);
        server.set_port(ports[1]);
        proxy.set_port(ports[2]);
        let mut bytes = error(router.ip(), client.ip(), [3, 4], &quote(client, server, seq, tcp));
        let peer = SocketAddr::new(proxy.ip(), ports[3]);
        let mut want = error(proxy.ip(), server.ip(), [3, 4], &quote(peer, proxy, to, tcp));
        let len = READ[usize::from(v6)];
        let mut m = load(&bytes[..len]);
        let quoted = Quoted { key: FlowKey::new(peer, proxy), seq: to };
        let ends = (&Addr::from(proxy.ip()), &Addr::from(server.ip()));
        if v6 {
            m.rewrite::<true>(&quoted, ends);
            prop_assert!(!forwarded || m.hop::<true>());
        } else {
            m.rewrite::<false>(&quoted, ends);
            prop_assert!(!forwarded || m.hop::<false>());
        }
        bytes[..len].copy_from_slice(&stored(&m, len));
        if forwarded {
            let at = if v6 { 7 } else { 8 };
            want[at] -= 1;
            if !v6 {
                want[10..12].fill(0);
                let check = !sum(&want[..20]);
                want[10..12].copy_from_slice(&check.to_be_bytes());
            }
        }
        prop_assert_eq!(bytes, want);
    }

    /// The error is correct, and the same, whether a device completes the checksum of the quoted
    /// segment or not.
    #[test]
    fn a_packet_that_is_too_big_becomes_an_error(
        v6 in any::<bool>(), seq in any::<u32>(), mtu in 576u32..65536, check in any::<u16>(),
    ) {
        let [client, _, server, _] = hosts(v6);
        let mut quoted = quote(client, server, seq, 20);
        let at = quoted.len() - 4;
        quoted[at..at + 2].copy_from_slice(&check.to_be_bytes());
        let mut m = Message::default();
        let len = QUOTED[usize::from(v6)];
        // SAFETY: this number of bytes is left there.
        unsafe { m.quoted_mut(v6).copy_from_nonoverlapping(quoted.as_ptr(), len) };
        if v6 { m.too_big::<true>(mtu) } else { m.too_big::<false>(mtu) }
        let front = if v6 { 48 } else { 28 };
        let got = stored(&m, front + len);
        // As by a device that completes the quoted checksum.
        let tcp = got.len() - 20;
        let completed = !sum(&got[tcp..]);
        let kept = u16::from_be_bytes([got[tcp + 16], got[tcp + 17]]);
        prop_assert!(completed == kept || completed == !kept && kept.is_multiple_of(0xffff));
        let mut want_quoted = quoted.clone();
        want_quoted[at..at + 2].copy_from_slice(&got[tcp + 16..tcp + 18]);
        let kind = if v6 { [2, 0] } else { [3, 4] };
        let mut want = error(server.ip(), client.ip(), kind, &want_quoted);
        let ip = if v6 { 40 } else { 20 };
        // Differences between a host's own message and a router's in this test.
        want[if v6 { 7 } else { 8 }] = 64;
        if !v6 {
            want[4..6].fill(0);
            want[10..12].fill(0);
            let header = !sum(&want[..20]);
            want[10..12].copy_from_slice(&header.to_be_bytes());
        }
        want[ip + 4..ip + 8].copy_from_slice(&mtu.to_be_bytes());
        want[ip + 2..ip + 4].fill(0);
        let pseudo = if v6 {
            [&want[8..40], &((want.len() - 40) as u32).to_be_bytes(), &[0, 0, 0, 58]].concat()
        } else {
            Vec::new()
        };
        let check = !sum(&[&pseudo[..], &want[ip..]].concat());
        want[ip + 2..ip + 4].copy_from_slice(&check.to_be_bytes());
        prop_assert_eq!(got, want);
    }
}

const T: Translation = Translation {
    seq_out: 1000,
    seq_in: 0x8000_0000,
    ts_out: 0,
    ts_in: 0,
    wscale_local: 0,
    wscale_local_at_peer: 0,
    wscale_remote_at_peer: 0,
    wscale_remote: 0,
    flags: 0,
};

fn keys() -> (FlowKey, FlowKey) {
    let [client, proxy, server, _] = hosts(false);
    (FlowKey::new(client, proxy), FlowKey::new(client, server))
}

#[test]
fn what_left_by_a_new_path_is_the_stacks() {
    let (key, path) = keys();
    let s = |state: State| {
        let mut s = Session {
            state: state as u32,
            key,
            path,
            translation: T,
            snd_max: 500,
            ..Session::default()
        };
        s.two.cut_set = (state == State::TwoPaths) as _;
        s
    };
    let judged = |state, seq| {
        let mut quoted = Quoted { key: path, seq };
        (about_sent(&s(state), &mut quoted), quoted)
    };
    for state in (0..14).filter_map(State::from_word) {
        let (fate, quoted) = judged(state, 1500);
        match state {
            State::TwoPaths | State::NewPath | State::Switching | State::Passing => {
                assert_eq!((fate, quoted), (Fate::Translate, Quoted { key, seq: 500 }));
            }
            State::Joining => assert_eq!(fate, Fate::Disbelieve),
            _ => assert_eq!(fate, Fate::Pass, "{state:?}"),
        }
    }
    // Packets that open a path are not a stack's.
    let mut opening = s(State::TwoPaths);
    opening.two.cut_set = 0;
    let mut quoted = Quoted {
        key: path,
        seq: 1500,
    };
    assert_eq!(about_sent(&opening, &mut quoted), Fate::Disbelieve);
    // After the highest number sent, or longer ago than any window.
    for seq in [1501, 0x8000_0000, 1499u32.wrapping_sub(1 << 30)] {
        assert_eq!(judged(State::NewPath, seq).0, Fate::Disbelieve, "{seq}");
    }
    for seq in [1500, 1000, 1500u32.wrapping_sub(1 << 30)] {
        assert_eq!(judged(State::NewPath, seq).0, Fate::Translate, "{seq}");
    }
}

/// Returns the client's entry, which has received its data up to 900, and the server's, which has
/// acknowledged that data up to 400.
fn relayed(state: State) -> (Session, Session) {
    let [client, proxy, server, _] = hosts(false);
    let out = SocketAddr::new(proxy.ip(), 50000);
    let (a, b) = (FlowKey::new(proxy, client), FlowKey::new(out, server));
    let entry = |key, path, translation| Session {
        state: state as u32,
        key,
        path,
        translation,
        ..Session::default()
    };
    let mut from = entry(a, b, T);
    from.rcv_max = 900;
    let mut by = entry(b, a, T.mirrored());
    by.rcv_ack = 1400;
    (from, by)
}

fn judge(from: &Session, by: &Session, seq: u32) -> (Fate, Quoted) {
    let mut quoted = Quoted { key: by.key, seq };
    (about_relayed(from, by, &mut quoted), quoted)
}

#[test]
fn what_was_relayed_is_its_ends() {
    let (from, by) = relayed(State::Relay);
    let [client, proxy, ..] = hosts(false);
    for seq in [1400, 1900] {
        let want = Quoted {
            key: FlowKey::new(client, proxy),
            seq: seq - 1000,
        };
        assert_eq!(judge(&from, &by, seq), (Fate::Translate, want));
    }
    for seq in [1399, 1901, 0x8000_0000] {
        assert_eq!(judge(&from, &by, seq).0, Fate::Disbelieve, "{seq}");
    }
}

/// In that case only one end's acknowledgements, or only its data, pass the relaying host.
#[test]
fn what_passes_the_relaying_host_by_is_believed_within_a_window() {
    let (mut from, mut by) = relayed(State::Relay);
    by.two.returns = 1;
    for (seq, fate) in [
        (1399, Fate::Disbelieve),
        (1400, Fate::Translate),
        (1 << 30, Fate::Translate),
        (2 << 30, Fate::Disbelieve),
    ] {
        assert_eq!(judge(&from, &by, seq).0, fate, "{seq}");
    }
    by.two.returns = 0;
    from.two.returns = 1;
    for (seq, fate) in [
        (1901, Fate::Disbelieve),
        (1900, Fate::Translate),
        (1000, Fate::Translate),
        (0x8000_0000, Fate::Disbelieve),
    ] {
        assert_eq!(judge(&from, &by, seq).0, fate, "{seq}");
    }
}

#[test]
fn in_two_paths_the_stack_hears_of_its_own() {
    let (mut from, by) = relayed(State::RelayTwoPaths);
    assert_eq!(judge(&from, &by, 1700).0, Fate::Pass);
    from.two = Two {
        cut_set: 1,
        ..Two::default()
    };
    from.cut_out = 600;
    assert_eq!(judge(&from, &by, 1599).0, Fate::Pass);
    assert_eq!(judge(&from, &by, 1600).0, Fate::Translate);
}

#[test]
fn what_was_received_is_the_neighbours() {
    let (key, path) = keys();
    for state in (0..14).filter_map(State::from_word) {
        let s = Session {
            state: state as u32,
            key,
            path,
            translation: T,
            ..Session::default()
        };
        let mut quoted = Quoted::default();
        let fate = about_received(&s, &mut quoted);
        if matches!(state, State::NewPath | State::Switching | State::Passing) {
            assert_eq!(fate, Fate::Translate);
            assert!(quoted.key.mirrors(&path));
            assert_eq!(quoted.seq, 0x8000_0000);
        } else {
            assert_eq!(fate, Fate::Pass, "{state:?}");
        }
    }
}
