//! Sessions that this host relays: two entries, each acting for its remote end.

use dysco_common::session::life;
use dysco_common::tcp::{ACK, FIN, RST};
use dysco_common::{Counter, EventKind, FlowKey, Offer, Path, Session, State, Translation};

use crate::bench::{DROP, OK, PASS, Programs, REDIRECT, SLOT, Way};
use crate::frame::{ALL_OPTIONS, Frame, Net, Options, nets, options, sack};

/// The slot of the entry that [`SLOT`] is joined to.
pub const OTHER: u32 = 5;
/// Number added on the way from the end of [`SLOT`], and on the way back.
pub const OUT: u32 = 0x1_0000;
pub const BACK: u32 = 0x200_0000;
const T: Translation = Translation {
    seq_out: OUT,
    seq_in: BACK,
    ts_out: 1000,
    ts_in: 50,
    wscale_local: 0,
    wscale_local_far: 0,
    wscale_remote_far: 0,
    wscale_remote: 0,
    flags: 0,
};

pub const SENT: u32 = 100_000;
pub const GIVEN: u32 = 0x300_0000;
const TTL: usize = 22;
const HOP_LIMIT: usize = 21;

/// Returns a session with two entries in this state. The first entry is that of the client,
/// which has sent up to `SENT` and has received up to `GIVEN`.
fn joined(net: &Net, state: State) -> Programs {
    joined_in(Programs::load(), net, state)
}

/// Makes that session in these programs.
pub fn joined_in(mut p: Programs, net: &Net, state: State) -> Programs {
    let (a, b) = (net.key(), net.path());
    let entry = |key: FlowKey, path: FlowKey, translation, other: u32| Session {
        state: state as u32,
        key,
        path,
        ifindex: 1,
        translation,
        joined: other + 1,
        ..Session::default()
    };
    let mut client = entry(a, b, T, OTHER);
    (client.rcv_max, client.rcv_ack) = (SENT, GIVEN - 500);
    (client.snd_max, client.snd_ack) = (GIVEN, SENT - 3000);
    let mut server = entry(b, a, T.mirrored(), SLOT);
    (server.snd_max, server.snd_ack) = (SENT + OUT - 4000, GIVEN - BACK);
    (server.rcv_max, server.rcv_ack) = (GIVEN - BACK, SENT + OUT - 5000);
    p.put(SLOT, &client);
    p.put(OTHER, &server);
    p.flow(a, SLOT, Path::Old);
    p.flow(b, OTHER, Path::Old);
    p
}

/// Returns a segment of the client.
pub fn from_client(net: &Net, seq: u32, ack: u32, len: usize, which: Options) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![7; len],
        options: options(which, 10, 20, ack.wrapping_add(5000)),
        ..net.received()
    }
}

/// Returns a segment of the server.
pub fn from_server(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![9; len],
        options: options(Options::Timestamps, 10, 20, 0),
        ..net.new_received()
    }
}

/// Returns a segment of the client as the server receives it.
pub fn to_server(net: &Net, f: &Frame, which: Options) -> Frame {
    let ack = f.ack.wrapping_sub(BACK);
    Frame {
        src: net.new_local,
        dst: net.new_remote,
        seq: f.seq.wrapping_add(OUT),
        ack,
        options: options(
            which,
            10 + 1000,
            20u32.wrapping_sub(50),
            ack.wrapping_add(5000),
        ),
        ..f.clone()
    }
}

/// Returns a segment of the server as the client receives it.
pub fn to_client(net: &Net, f: &Frame) -> Frame {
    Frame {
        src: net.local,
        dst: net.remote,
        seq: f.seq.wrapping_add(BACK),
        ack: f.ack.wrapping_sub(OUT),
        options: options(Options::Timestamps, 10 + 50, 20u32.wrapping_sub(1000), 0),
        ..f.clone()
    }
}

/// Returns the bytes of a frame with another TTL or hop limit.
pub fn with_limit(f: &Frame, limit: u8) -> Vec<u8> {
    let mut bytes = f.bytes();
    if f.src.is_ipv6() {
        bytes[HOP_LIMIT] = limit;
        return bytes;
    }
    bytes[TTL] = limit;
    bytes[24..26].fill(0);
    let sum: u32 = bytes[14..34]
        .chunks(2)
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let check = !(((folded & 0xffff) + (folded >> 16)) as u16);
    bytes[24..26].copy_from_slice(&check.to_be_bytes());
    bytes
}

/// Checks that the frame leaves in this form, one hop further.
#[track_caller]
fn relays(p: &mut Programs, frame: &Frame, want: &Frame) {
    let got = p.run(Way::In, &frame.bytes());
    assert_eq!(got, (REDIRECT, with_limit(want, 63)), "{frame:?}\n{want:?}");
}

#[test]
fn what_an_end_sends_goes_to_the_other() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        for which in ALL_OPTIONS {
            for len in [0, 77, 1400] {
                let sent = from_client(&net, SENT, GIVEN, len, which);
                relays(&mut p, &sent, &to_server(&net, &sent, which));
            }
        }
        let sent = from_server(&net, GIVEN - BACK, SENT + OUT, 1000);
        relays(&mut p, &sent, &to_client(&net, &sent));
        let (a, b) = (p.session(SLOT), p.session(OTHER));
        assert_eq!((a.rcv_max, a.rcv_ack), (SENT + 1400, GIVEN));
        assert_eq!((b.bytes_in, b.new_in), (1000, 1));
        assert_eq!(p.count(Counter::Relayed), 16);
    }
}

#[test]
fn a_packet_at_the_end_of_its_way_is_dropped() {
    for net in nets() {
        let p = joined(&net, State::Relay);
        for which in [Options::Timestamps, Options::Sack] {
            let sent = from_client(&net, SENT, GIVEN, 10, which);
            let before = p.count(Counter::DroppedHopLimit);
            assert_eq!(p.run(Way::In, &with_limit(&sent, 1)).0, DROP);
            assert_eq!(p.count(Counter::DroppedHopLimit), before + 1);
            assert_eq!(p.run(Way::In, &with_limit(&sent, 2)).0, REDIRECT);
        }
    }
}

/// A later change cuts behind these bytes.
#[test]
fn what_an_end_sends_counts_where_the_other_entry_is_taken_back() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        let tracked = Session {
            state: State::Tracked as u32,
            joined: 0,
            ..p.session(OTHER)
        };
        p.put(OTHER, &tracked);
        let sent = from_client(&net, SENT, GIVEN - 200, 100, Options::Timestamps);
        p.passes(Way::In, &sent);
        let s = p.session(SLOT);
        assert_eq!((s.rcv_max, s.rcv_ack), (SENT + 100, GIVEN - 200));
        for (flags, life) in [(ACK | FIN, (1, 0)), (RST, (1, 1))] {
            let ends = Frame {
                flags,
                options: vec![],
                ..from_client(&net, SENT + 100, GIVEN, 0, Options::None)
            };
            p.passes(Way::In, &ends);
            let s = p.session(SLOT);
            assert_eq!((s.life.fin_in, s.life.reset), life);
        }
    }
}

/// The proxy's sockets may still send: nobody receives that.
#[test]
fn the_stack_is_not_heard() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        for flags in [ACK, ACK | FIN, RST] {
            let own = Frame {
                flags,
                ..net.sent()
            };
            p.drops(Way::Out, &own, Counter::DroppedLateOld);
        }
    }
}

#[test]
fn a_reset_that_cannot_be_believed_ends_nothing() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        let reset = |seq| Frame {
            flags: RST,
            options: vec![],
            ..from_client(&net, seq, 0, 0, Options::None)
        };
        for seq in [SENT - 5001, SENT + 1, SENT ^ 0x8000_0000] {
            // The other end judges it.
            assert_eq!(p.run(Way::In, &reset(seq).bytes()).0, REDIRECT);
            assert_eq!(p.session(SLOT).life.reset, 0, "{seq}");
        }
        assert!(p.events().is_empty());
        p.run(Way::In, &reset(SENT).bytes());
        let ended = [SLOT, OTHER].map(|slot| p.session(slot).life.reset);
        assert_eq!(ended, [life::SEEN | life::BY_END, life::SEEN]);
        assert_eq!(p.events(), [(EventKind::Reset, SLOT)]);
    }
}

/// If replies bypass this host, it knows the numbers that the client acknowledged.
#[test]
fn a_reset_is_believed_though_replies_pass_by() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        let mut judged = |seen: u32, reset: Frame, believed: bool| {
            p.change(|s| (s.two.returns, s.life.reset, s.rcv_ack) = (1, 0, seen));
            let mut other = p.session(OTHER);
            other.life.reset = 0;
            p.put(OTHER, &other);
            let reset = Frame {
                flags: RST,
                ..reset
            };
            assert_eq!(p.run(Way::In, &reset.bytes()).0, REDIRECT);
            assert_eq!(p.session(SLOT).life.reset != 0, believed, "{reset:?}");
        };
        // The server has sent far more than was seen of it here.
        for (ahead, believed) in [
            (0x100_0000, true),
            (0x100_8000, true),
            (0x200_0000, false),
            (0, false),
        ] {
            let reset = from_server(&net, GIVEN - BACK + ahead, SENT + OUT, 0);
            judged(GIVEN + 0x100_0000, reset, believed);
        }
        // The server's acknowledgements are not seen here.
        for (seq, believed) in [(SENT, true), (SENT - 70_000, false), (SENT + 9, false)] {
            let reset = from_client(&net, seq, GIVEN, 0, Options::Timestamps);
            judged(GIVEN, reset, believed);
        }
    }
}

#[test]
fn both_ends_closing_is_told_once() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        let fin = |f: Frame| Frame {
            flags: ACK | FIN,
            ..f
        };
        let one = fin(from_client(&net, SENT, GIVEN, 0, Options::None));
        let two = fin(from_server(&net, GIVEN - BACK, SENT + OUT, 0));
        for f in [&one, &one, &two, &two, &one] {
            assert_eq!(p.run(Way::In, &f.bytes()).0, REDIRECT);
        }
        assert_eq!(p.events(), [(EventKind::Closed, OTHER)]);
    }
}

/// The FIN may precede data that was lost on its way here, and may come again after it was
/// acknowledged.
#[test]
fn a_fin_that_no_end_takes_closes_nothing() {
    for net in nets() {
        for (seq, taken) in [
            (SENT - 5001, true),
            (SENT - 5002, false),
            (SENT + 65_535, true),
            (SENT + 65_536, false),
            (SENT ^ 0x8000_0000, false),
        ] {
            let p = joined(&net, State::Relay);
            let fin = Frame {
                flags: ACK | FIN,
                ..from_client(&net, seq, GIVEN, 0, Options::None)
            };
            assert_eq!(p.run(Way::In, &fin.bytes()).0, REDIRECT);
            let life = [p.session(SLOT).life.fin_in, p.session(OTHER).life.fin_out];
            assert_eq!(life, [u8::from(taken); 2], "{seq}");
        }
    }
}

#[test]
fn before_the_cut_all_is_the_stacks() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.passes(
            Way::In,
            &from_client(&net, SENT, GIVEN, 100, Options::Timestamps),
        );
        p.passes(
            Way::In,
            &from_server(&net, GIVEN - BACK, SENT + OUT - 4500, 0),
        );
        p.passes(Way::Out, &net.sent());
        assert_eq!(p.session(SLOT).two.cut_set, 0);
    }
}

#[test]
fn from_the_cutoff_on_data_goes_to_the_other() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| s.two.cut_armed = 1);
        let old = from_client(&net, SENT - 100, GIVEN, 100, Options::Timestamps);
        p.passes(Way::In, &old);
        // The server has not received all earlier data: the packet has the server's own numbers.
        let new = from_client(&net, SENT, GIVEN, 100, Options::Timestamps);
        relays(&mut p, &new, &to_server(&net, &new, Options::Timestamps));
        assert_eq!(p.session(SLOT).cut_out, SENT);
        let other = p.session(OTHER);
        assert_eq!((other.two.new_heard, other.new_low), (1, SENT + OUT));
    }
}

/// The proxy has acknowledged bytes that the server has not received yet. The client gets no
/// older acknowledgement, no SACK block, and no window beyond the server's.
#[test]
fn acks_of_the_other_end_are_raised() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| (s.two.cut_set, s.cut_out, s.snd_ack) = (1, SENT, SENT - 200));
        let mut server = p.session(OTHER);
        (server.two.cut_set, server.cut_out) = (1, GIVEN - BACK);
        server.joined = SLOT + 1;
        p.put(OTHER, &server);
        let behind = Frame {
            window: 4000,
            options: vec![],
            ..from_server(&net, GIVEN - BACK, SENT + OUT - 1000, 10)
        };
        let want = Frame {
            ack: SENT - 200,
            window: 4000 - 800,
            options: vec![],
            ..to_client(&net, &behind)
        };
        relays(&mut p, &behind, &want);
        // The proxy's own acknowledgements do not exceed its numbers for new bytes.
        let own = Frame {
            ack: SENT + 900,
            ..net.sent()
        };
        let told = Frame {
            ack: SENT,
            window: 0,
            ..own.clone()
        };
        let (verdict, got) = p.run(Way::Out, &own.bytes());
        assert_eq!(verdict, PASS);
        let ack = |bytes: &[u8]| bytes[own.l4() + 8..own.l4() + 12].to_vec();
        assert_eq!(ack(&got), ack(&told.bytes()));
    }
}

/// The client takes its window back, after the proxy has used it.
#[test]
fn an_ack_is_within_a_window_that_was_taken_back() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT);
            (s.two.cut_in_set, s.cut_in) = (1, GIVEN + 700);
        });
        let mut server = p.session(OTHER);
        server.joined = SLOT + 1;
        p.put(OTHER, &server);
        let seq_of = |p: &mut Programs, window: u16| {
            let told = Frame {
                window,
                ..from_client(&net, SENT, GIVEN - 500, 0, Options::Timestamps)
            };
            p.run(Way::In, &told.bytes());
            let ack = from_server(&net, GIVEN + 700 - BACK, SENT + OUT, 0);
            let (verdict, got) = p.run(Way::In, &ack.bytes());
            assert_eq!(verdict, REDIRECT);
            let at = ack.l4() + 4;
            u32::from_be_bytes(got[at..at + 4].try_into().unwrap())
        };
        assert_eq!(seq_of(&mut p, 500), GIVEN);
        assert_eq!(seq_of(&mut p, 499), GIVEN - 500);
        assert_eq!(seq_of(&mut p, 500), GIVEN);
    }
}

/// The server has sent the client more than the proxy had. An acknowledgement of the proxy is
/// sent under a number that the client accepts.
#[test]
fn an_end_that_is_ahead_hears_the_proxy() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT);
            (s.two.new_heard, s.two.new_data, s.new_low) = (1, 1, GIVEN);
            s.rcv_ack = GIVEN + 500;
        });
        let own = |seq| Frame {
            seq,
            ack: SENT,
            ..net.sent()
        };
        p.becomes(Way::Out, &own(GIVEN), PASS, &own(GIVEN + 500));
        p.passes(Way::Out, &own(GIVEN - 1));
    }
}

/// The client has received bytes of the server beyond those that the proxy has sent. This host's
/// connection tracking calls an acknowledgement with such a block invalid.
#[test]
fn the_proxy_hears_no_blocks_of_what_was_relayed() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| {
            (s.two.cut_set, s.cut_out, s.two.cut_in_set, s.cut_in) = (1, SENT, 1, GIVEN + 900);
            (s.two.new_data, s.new_low) = (1, GIVEN + 900);
        });
        let again = |options| Frame {
            options,
            ..from_client(&net, SENT - 100, GIVEN - 400, 100, Options::Timestamps)
        };
        let relayed = again(sack(GIVEN + 900, GIVEN + 1900));
        let blind = again(sack(GIVEN, GIVEN));
        p.becomes(Way::In, &relayed, OK, &blind);
        let own = again(sack(GIVEN - 200, GIVEN));
        p.becomes(Way::In, &own, OK, &own);
        // Nothing has arrived by the other path.
        p.change(|s| s.two.new_data = 0);
        p.passes(Way::In, &again(sack(GIVEN - 200, GIVEN + 1)));
    }
}

#[test]
fn the_clamp_bounds_what_the_stack_announces() {
    for net in nets() {
        let mut p = joined(&net, State::Tracked);
        p.change(|s| s.clamp_far = 100);
        let own = Frame {
            ack: SENT,
            ..net.sent()
        };
        let bound = Frame {
            window: 100,
            ..own.clone()
        };
        p.becomes(Way::Out, &own, PASS, &bound);
        // The window of an arriving packet is not bounded.
        p.passes(
            Way::In,
            &from_client(&net, SENT, GIVEN, 10, Options::Timestamps),
        );
        assert_eq!(p.session(SLOT).local, Offer::default());
    }
}

/// The proxy holds bytes for the client, and has offered the server a window of its own.
#[test]
fn data_beyond_the_window_of_an_end_is_dropped() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| s.remote.mss = 1460);
        let mut server = p.session(OTHER);
        (server.two.cut_set, server.cut_out) = (1, GIVEN - BACK);
        p.put(OTHER, &server);
        p.set_edge(SLOT, GIVEN + 100);
        let data = |at, len| from_server(&net, GIVEN - BACK + at, SENT + OUT - 3000, len);
        relays(&mut p, &data(100, 9), &to_client(&net, &data(100, 9)));
        p.drops(Way::In, &data(101, 9), Counter::BeyondWindow);
        // An acknowledgement needs no room.
        let (verdict, _) = p.run(Way::In, &data(101, 0).bytes());
        assert_eq!(verdict, REDIRECT);
        // The client makes room.
        let ack = from_client(&net, SENT, GIVEN, 0, Options::Timestamps);
        p.run(Way::In, &ack.bytes());
        assert_eq!(p.edge(SLOT), GIVEN + u32::from(net.received().window));
        assert_eq!(p.run(Way::In, &data(101, 9).bytes()).0, REDIRECT);
        // The window is unknown.
        p.set_edge(SLOT, 0);
        assert_eq!(p.run(Way::In, &data(1 << 20, 9).bytes()).0, REDIRECT);
    }
}

/// From the lock on, before the two sessions are joined.
#[test]
fn the_window_of_an_end_is_taken_in_while_it_is_locked() {
    for net in nets() {
        let mut p = joined(&net, State::Tracked);
        let ack = from_client(&net, SENT, GIVEN, 0, Options::Timestamps);
        p.passes(Way::In, &ack);
        assert_eq!(p.edge(SLOT), 0);
        p.change(|s| s.clamp_far = 100);
        p.passes(Way::In, &ack);
        let edge = GIVEN + u32::from(net.received().window);
        assert_eq!(p.edge(SLOT), edge);
        // An older window lowers nothing.
        let old = Frame {
            window: 10,
            ..ack.clone()
        };
        p.passes(Way::In, &old);
        assert_eq!(p.edge(SLOT), edge);
    }
}

/// The client has sent more than the old path allows now. Its kernel numbers its reset by the
/// end of the window, which the server has long received.
#[test]
fn a_reset_from_behind_what_it_has_sent_ends_it() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| (s.two.cut_set, s.cut_out) = (1, SENT - 100));
        let mut server = p.session(OTHER);
        (server.two.cut_set, server.cut_out) = (1, GIVEN - BACK);
        server.rcv_ack = SENT + OUT;
        p.put(OTHER, &server);
        let reset = |ack, flags| Frame {
            flags,
            ..from_client(&net, SENT - 3000, ack, 0, Options::Timestamps)
        };
        // Only the client knows the number that it has acknowledged.
        for (ack, flags) in [(GIVEN - 501, RST | ACK), (GIVEN + 1, RST | ACK), (0, RST)] {
            p.run(Way::In, &reset(ack, flags).bytes());
            assert_eq!(p.session(SLOT).life.reset, 0, "{ack}");
        }
        assert_eq!(p.events(), []);
        let its_own = reset(GIVEN, RST | ACK);
        let heard = Frame {
            seq: SENT - 100,
            ..its_own.clone()
        };
        let (verdict, bytes) = p.run(Way::In, &its_own.bytes());
        assert_eq!((verdict, bytes), (OK, heard.bytes()));
        let ended = [SLOT, OTHER].map(|slot| p.session(slot).life.reset);
        assert_eq!(ended, [life::SEEN | life::BY_END, life::SEEN]);
        assert_eq!(p.events(), [(EventKind::Reset, SLOT)]);
    }
}

/// The proxy's process has died with bytes for the client: this host's kernel sends a FIN.
#[test]
fn a_fin_of_the_stack_with_bytes_missing_is_a_reset() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT);
            (s.two.cut_in_set, s.cut_in, s.rcv_ack) = (1, GIVEN + 700, GIVEN);
        });
        let fin = Frame {
            seq: GIVEN,
            ack: SENT,
            flags: ACK | FIN,
            ..net.sent()
        };
        let reset = Frame {
            flags: ACK | RST,
            ..fin.clone()
        };
        p.becomes(Way::Out, &fin, PASS, &reset);
        let life = p.session(SLOT).life;
        assert_eq!((life.fin_out, life.reset), (0, 3));
        assert_eq!(p.events(), [(EventKind::Broken, SLOT)]);
        // One more byte would be missing if the server had not closed.
        p.change(|s| (s.life.reset, s.two.cut_in_set, s.cut_in) = (0, 3, GIVEN + 1));
        p.passes(Way::Out, &fin);
        assert_ne!(p.session(SLOT).life.fin_out, 0);
    }
}

#[test]
fn all_acknowledged_is_told() {
    for net in nets() {
        let mut p = joined(&net, State::FarTwoPaths);
        p.change(|s| (s.two.cut_in_set, s.cut_in) = (1, GIVEN));
        let ack = |n| from_client(&net, SENT, n, 0, Options::Timestamps);
        p.passes(Way::In, &ack(GIVEN - 1));
        assert_eq!(p.events(), []);
        p.passes(Way::In, &ack(GIVEN));
        assert_eq!(p.events(), [(EventKind::Drained, SLOT)]);
        assert_eq!(p.session(SLOT).two.drained, 1);
    }
}
