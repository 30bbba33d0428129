//! FINs and resets of the ends and of the stack.

use dysco_common::session::life;
use dysco_common::tcp::{ACK, FIN, RST};
use dysco_common::{EventKind, State};

use super::{BACK, GIVEN, OTHER, OUT, SENT, from_client, from_server, joined};
use crate::bench::{OK, PASS, REDIRECT, SLOT, Way};
use crate::frame::{Frame, Options, nets};

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

/// The old path waits for neither of them.
#[test]
fn both_ends_may_reset() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        for reset in [
            from_client(&net, SENT, 0, 0, Options::None),
            from_server(&net, GIVEN - BACK, 0, 0),
        ] {
            let reset = Frame {
                flags: RST,
                options: vec![],
                ..reset
            };
            p.run(Way::In, &reset.bytes());
        }
        let ended = [SLOT, OTHER].map(|slot| p.session(slot).life.reset);
        assert_eq!(ended, [life::SEEN | life::BY_END; 2]);
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
fn both_ends_closing_is_reported_once() {
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

/// The client has sent more than the old path allows now. Its kernel numbers its reset by the
/// end of the window, which the server has long received.
#[test]
fn a_reset_from_behind_what_it_has_sent_ends_it() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
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
        let mut p = joined(&net, State::RelayTwoPaths);
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
fn all_acknowledged_is_reported() {
    for net in nets() {
        let mut p = joined(&net, State::RelayTwoPaths);
        p.change(|s| (s.two.cut_in_set, s.cut_in) = (1, GIVEN));
        let ack = |n| from_client(&net, SENT, n, 0, Options::Timestamps);
        p.passes(Way::In, &ack(GIVEN - 1));
        assert_eq!(p.events(), []);
        p.passes(Way::In, &ack(GIVEN));
        assert_eq!(p.events(), [(EventKind::Drained, SLOT)]);
        assert_eq!(p.session(SLOT).two.drained, 1);
    }
}

/// The other end resets its session before the daemon has read that the proxy was broken.
#[test]
fn a_proxy_that_was_broken_is_not_forgotten() {
    for net in nets() {
        let mut p = joined(&net, State::Relay);
        p.change(|s| s.life.reset = life::SEEN | life::BY_MIDDLEBOX);
        let reset = Frame {
            flags: RST,
            options: vec![],
            ..from_server(&net, GIVEN - BACK, 0, 0)
        };
        p.run(Way::In, &reset.bytes());
        let ended = [SLOT, OTHER].map(|slot| p.session(slot).life.reset);
        assert_eq!(
            ended,
            [life::SEEN | life::BY_MIDDLEBOX, life::SEEN | life::BY_END]
        );
    }
}
