//! The packets that open the new path, and what the path has not shown yet.

use dysco_common::probe::{PROBE, Probe};
use dysco_common::session::{life, offer};
use dysco_common::tcp::{ACK, FIN, PSH, RST, SYN};
use dysco_common::two_paths::Fins;
use dysco_common::{Counter, EventKind, State};

use super::{CUT_IN, IN, OUT, SENT, before_the_cut, cut, delivered, from_peer, on_new, sent};
use crate::bench::{DROP, OK, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Net, Options, nets, options};

/// Nothing of the session arrives by a path that has not opened, even if something answers there.
/// The left anchor sends the packets that open it, and receives nothing else before it has cut.
#[test]
fn nothing_is_heard_of_a_path_before_it_has_opened() {
    for net in nets() {
        for opened_here in [0, 1] {
            let mut p = before_the_cut(&net);
            p.change(|s| s.life.opened_here = opened_here);
            let expected = p.session(SLOT).snd_ack;
            for flags in [RST, RST | ACK, ACK, ACK | FIN] {
                let said = Frame {
                    flags,
                    ..from_peer(&net, expected, SENT, 0)
                };
                p.drops(Way::In, &said, Counter::DroppedStray);
                let reported: &[_] = match flags & RST {
                    0 => &[],
                    _ => &[(EventKind::Rejected, SLOT)],
                };
                assert_eq!(p.events(), reported);
                let s = p.session(SLOT);
                assert_eq!((s.life.reset, s.life.fin_in, s.two.new_received), (0, 0, 0));
                // So new data continues on the old path.
                p.passes(Way::Out, &sent(&net, SENT, CUT_IN - 1000, 10));
            }
        }
    }
}

/// Returns a SYN as the left anchor sends it, with an MSS and a window scale as options.
fn syn(net: &Net, payload: usize) -> Frame {
    Frame {
        seq: 77,
        flags: SYN,
        options: vec![2, 4, 5, 0xb4, 3, 3, 9, 1],
        payload: vec![0; payload],
        ..net.new_received()
    }
}

/// Returns the SYN and its probe, as they arrived; the path may have changed the header.
fn probing(net: &Net, payload: usize) -> (Frame, Probe) {
    let mut frame = syn(net, payload);
    let probe = Probe::of_syn(5, &frame.tcp().to_bytes());
    frame.payload[..PROBE].copy_from_slice(&probe.to_bytes());
    (frame, probe)
}

/// Returns the header of a frame, as a probe contains it.
pub(super) fn header(frame: &Frame) -> [u8; 60] {
    let bytes = frame.bytes();
    let l4 = bytes.len() - frame.payload.len() - 20 - frame.options.len();
    let mut header = [0; 60];
    let len = 20 + frame.options.len();
    header[..len].copy_from_slice(&bytes[l4..l4 + len]);
    header
}

#[test]
#[expect(clippy::too_many_lines, reason = "one scenario")]
fn the_right_anchor_answers_what_opens_the_new_path() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| {
            (s.local.flags, s.remote.flags) = (offer::WSCALE, offer::WSCALE);
            (s.local.wscale, s.remote.wscale) = (4, 1);
        });
        // The path may be too narrow for the packet before it.
        p.drops(Way::In, &syn(&net, 0), Counter::DroppedStray);
        // Nor does another host's SYN open it, such as a firewall's.
        p.drops(Way::In, &syn(&net, 900), Counter::DroppedStray);
        assert_eq!(p.session(SLOT).peer_sent_max, 0);
        let (opens, probe) = probing(&net, 900);
        p.change(|s| s.life.fin_in = life::SEEN);
        let fins = Fins {
            sent: false,
            heard: true,
        };
        let answer = Probe {
            heard: header(&opens),
            answered: [SENT + OUT - 1, 78].map(u32::to_be),
            fins: fins.bits().to_be(),
            ..probe
        };
        let mut payload = vec![0; 900];
        payload[..PROBE].copy_from_slice(&answer.to_bytes());
        let want = Frame {
            seq: SENT + OUT - 1,
            ack: 78,
            flags: SYN | ACK,
            window: u16::MAX,
            options: vec![2, 4, 5, 0xb4, 3, 3, 4, 1],
            payload,
            ..net.new_sent()
        };
        p.becomes(Way::In, &opens, REDIRECT, &want);
        assert_eq!(p.session(SLOT).peer_sent_max, 78u32.wrapping_add(IN));
        // The packet behind it follows all data that was sent by the proxy since.
        p.change(|s| s.snd_max = SENT + 70_000);
        let again = Frame {
            options: options(Options::Timestamps, 1, 2, 0),
            ..syn(&net, 0)
        };
        let behind = Frame {
            seq: SENT + OUT,
            ack: 78,
            flags: ACK | PSH,
            window: u16::MAX,
            ..net.new_sent()
        };
        let want = Frame {
            options: again.options.clone(),
            ..behind.clone()
        };
        p.becomes(Way::In, &again, REDIRECT, &want);
        // This end's cutoff answers the left end's.
        p.change(|s| {
            (s.two.cut_set, s.cut_out) = (1, SENT + 70_000);
            (s.two.cut_in_set, s.cut_in, s.two.drained) = (1, 500u32.wrapping_add(IN), 1);
        });
        let shows = Frame {
            seq: 500,
            ack: SENT + OUT,
            flags: ACK | PSH,
            window: u16::MAX,
            ..net.new_received()
        };
        let want = Frame {
            seq: SENT + 70_000 + OUT,
            ack: 500,
            ..behind.clone()
        };
        p.becomes(Way::In, &shows, REDIRECT, &want);
        assert_eq!(p.events(), [(EventKind::Drained, SLOT)]);
        // Late: no stack receives it.
        p.change(|s| s.state = State::NewPath as u32);
        assert_eq!(p.run(Way::In, &shows.bytes()).0, DROP);
        // No path is prepared: no answer.
        p.change(|s| s.state = State::Tracked as u32);
        p.drops(Way::In, &syn(&net, 900), Counter::DroppedStray);
        p.drops(Way::In, &shows, Counter::DroppedStray);
    }
}

#[test]
fn the_left_anchor_hears_that_the_new_path_is_open() {
    for net in nets() {
        let mut p = before_the_cut(&net);
        p.change(|s| s.life.opened_here = 1);
        let behind = Frame {
            seq: 901,
            flags: ACK | PSH,
            window: u16::MAX,
            ..net.new_received()
        };
        p.drops(Way::In, &behind, Counter::DroppedStray);
        let answer = Frame {
            seq: 900,
            flags: SYN | ACK,
            ..net.new_received()
        };
        assert_eq!(p.run(Way::In, &answer.bytes()).0, DROP);
        let arrived = [(EventKind::Arrived, SLOT)];
        assert_eq!(p.events(), arrived, "its windows are not open yet");
        assert_eq!(p.run(Way::In, &behind.bytes()).0, DROP);
        assert_eq!(p.events(), [(EventKind::PathOpen, SLOT)]);
        assert_eq!(p.session(SLOT).peer_sent_max, 901u32.wrapping_add(IN));
        assert_eq!(
            p.session(SLOT).two.new_received,
            0,
            "the far end has not cut"
        );
    }
}

#[test]
fn what_the_new_path_has_not_announced_is_not_acknowledged_there() {
    for net in nets() {
        let mut p = cut(&net);
        p.change(|s| s.peer_sent_max = CUT_IN - 600);
        // Data: its header goes to the path that carried the acknowledged bytes.
        let data = sent(&net, SENT, CUT_IN - 100, 500);
        let want = Frame {
            ack: CUT_IN - 600,
            window: 512 + 500,
            ..data.clone()
        };
        p.becomes(Way::Out, &data, REDIRECT, &on_new(&net, &want));
        // Shown by data: unchanged from then on.
        let from_there = from_peer(&net, CUT_IN, SENT + 1, 10);
        p.becomes(Way::In, &from_there, OK, &delivered(&net, &from_there));
        assert_eq!(p.session(SLOT).peer_sent_max, CUT_IN + 10);
        let data = sent(&net, SENT + 500, CUT_IN - 100, 500);
        p.becomes(Way::Out, &data, REDIRECT, &on_new(&net, &data));
    }
}
