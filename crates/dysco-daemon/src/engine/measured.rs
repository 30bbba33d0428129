//! Translation from the kernel's data about a proxy's sockets to what is valid on the wire. Pure.

use dysco_common::session::offer;
use dysco_proto::{End, Facts, Measurement, Reason};
use dysco_proxy::{Measured, Sending};

/// Number of bytes of the timestamps option.
const TIMESTAMPS_LEN: u32 = 12;
/// Milliseconds by which clocks that were read one after the other may differ.
const SLACK: u32 = 2_000;

/// Completes the measurement `claimed` by what the kernel has confirmed. Its facts about both
/// sessions were taken after that.
pub(super) fn complete(claimed: Measurement, m: &Measured) -> Result<Measurement, Reason> {
    windows_suffice(&claimed, &[m.sending_a, m.sending_b])?;
    let [clock_a, clock_b] = clocks(&claimed, m);
    Ok(Measurement {
        delta_forward: m.delta_forward,
        delta_reverse: m.delta_reverse,
        clock_a,
        clock_b,
        ..claimed
    })
}

/// Returns an error unless both ends offer windows into which the other one would send without the
/// proxy. `sending` are the proxy's sockets of side A and side B.
pub(crate) fn windows_suffice(claimed: &Measurement, sending: &[Sending; 2]) -> Result<(), Reason> {
    let [a, b] = sending;
    has_room(End::Right, &claimed.a, &claimed.b, b)?;
    has_room(End::Left, &claimed.b, &claimed.a, a)
}

/// Returns true if something on this host shifts the clocks of the sockets on their way to the
/// wire.
pub(super) fn is_shifted(claimed: &Measurement, m: &Measured) -> bool {
    clocks(claimed, m) != [m.clock_a, m.clock_b]
}

/// Returns the clocks of both sessions as the wire shows them.
fn clocks(claimed: &Measurement, m: &Measured) -> [u32; 2] {
    let clock =
        |socket, sending: &Sending, facts: &Facts| match negotiated(facts, offer::TIMESTAMPS) {
            true => wire_clock(socket, sending.silent_ms, facts.tsval_out),
            false => socket,
        };
    [
        clock(m.clock_a, &m.sending_a, &claimed.a),
        clock(m.clock_b, &m.sending_b, &claimed.b),
    ]
}

/// Returns the clock that the wire shows of a socket with the clock `socket`. The last timestamp
/// that left is `last`; no data has left for `silent` milliseconds. A device between the socket and
/// the wire may shift the clock (SYNPROXY): `last` is then outside that time. The next timestamp on
/// the wire is no later than the clock returned.
fn wire_clock(socket: u32, silent: u32, last: u32) -> u32 {
    let age = socket.wrapping_sub(last).wrapping_add(SLACK);
    // 0 if no timestamp has been seen.
    if last == 0 || age <= silent.saturating_add(2 * SLACK) {
        return socket;
    }
    last.wrapping_add(silent).wrapping_add(SLACK)
}

/// Returns an error if the other end, whose session with the proxy is `from`, would not send into
/// the windows that `end` offers. `to` is the session of `end`, `sending` the proxy's socket of it.
///
/// A sender waits until a complete segment fits. Linux makes segments no longer than half of the
/// widest window that it has been offered. The other end has been offered the proxy's windows,
/// which are wider, and receives the small ones in the unit of its own session.
fn has_room(end: End, from: &Facts, to: &Facts, sending: &Sending) -> Result<(), Reason> {
    let sent = |f: &Facts, mss: u16| {
        let timestamps = match negotiated(f, offer::TIMESTAMPS) {
            true => TIMESTAMPS_LEN,
            false => 0,
        };
        u32::from(mss).saturating_sub(timestamps)
    };
    let segment = sent(from, from.local.mss);
    let most = sent(to, to.local.mss.min(to.remote.mss));
    if let Some(window) = sending.narrow(most)
        && sending.segment < segment
    {
        return Err(too_small(end, window, 2 * segment));
    }
    let unit = match negotiated(from, offer::WSCALE) {
        true => 1 << from.local.wscale.min(14),
        false => 1,
    };
    let window = sending.window.max(2 * sending.segment);
    if window < 2 * unit {
        return Err(too_small(end, window, 2 * unit));
    }
    Ok(())
}

fn too_small(end: End, window: u32, needs: u32) -> Reason {
    Reason::WindowTooSmall { end, window, needs }
}

fn negotiated(f: &Facts, flag: u8) -> bool {
    f.local.flags & f.remote.flags & flag != 0
}

#[cfg(test)]
mod tests {
    use dysco_common::Offer;

    use super::*;

    fn facts(local: u16, remote: u16, wscale: u8) -> Facts {
        let offered = |mss| Offer {
            mss,
            wscale,
            flags: offer::SEEN | offer::WSCALE | offer::TIMESTAMPS,
            ..Offer::default()
        };
        Facts {
            local: offered(local),
            remote: offered(remote),
            ..Facts::default()
        }
    }

    fn sending(segment: u32, window: u32) -> Sending {
        Sending {
            segment,
            allowed: 1448,
            window,
            silent_ms: 0,
            acked: 0,
        }
    }

    fn room(from: &Facts, to: &Facts, s: &Sending) -> Result<(), (u32, u32)> {
        has_room(End::Right, from, to, s).map_err(|e| match e {
            Reason::WindowTooSmall { window, needs, .. } => (window, needs),
            e => panic!("{e}"),
        })
    }

    #[test]
    fn a_window_below_two_segments_is_too_small() {
        let usual = facts(1460, 1460, 7);
        assert_eq!(room(&usual, &usual, &sending(1448, 2896)), Ok(()));
        // Closed for a moment: the window was wider.
        assert_eq!(room(&usual, &usual, &sending(1448, 0)), Ok(()));
        for (segment, window) in [(576, 1152), (1152, 2304), (1447, 2895)] {
            let judged = room(&usual, &usual, &sending(segment, window));
            assert_eq!(judged, Err((window.max(2 * segment), 2896)));
        }
    }

    #[test]
    fn short_segments_have_other_causes() {
        let usual = facts(1460, 1460, 7);
        // The cause is the path, or the peer's limit.
        let by_path = Sending {
            allowed: 1248,
            ..sending(1248, 2496)
        };
        assert_eq!(room(&usual, &usual, &by_path), Ok(()));
        assert_eq!(
            room(
                &facts(1000, 1460, 7),
                &facts(1460, 1000, 7),
                &sending(988, 2000)
            ),
            Ok(())
        );
        // The other end sends no longer segments.
        assert_eq!(
            room(&facts(588, 1460, 7), &usual, &sending(576, 1152)),
            Ok(())
        );
    }

    /// The other end receives windows in the unit of its own session: a smaller window is zero.
    #[test]
    fn a_window_below_two_units_is_too_small() {
        let (coarse, usual) = (facts(1460, 1460, 14), facts(1460, 1460, 7));
        assert_eq!(room(&coarse, &usual, &sending(1448, 32768)), Ok(()));
        let judged = room(&coarse, &usual, &sending(1448, 32767));
        assert_eq!(judged, Err((32767, 32768)));
        let mut unscaled = coarse;
        unscaled.remote.flags &= !offer::WSCALE;
        assert_eq!(room(&unscaled, &usual, &sending(1448, 5000)), Ok(()));
    }

    #[test]
    fn the_sockets_clock_is_the_wires() {
        // Just read, some time ago, after a long silence, and wrapped.
        for (socket, silent, last) in [
            (5000, 0, 5000),
            (5000, 0, 5003),
            (900_000, 850_000, 50_000),
            (900_000, 850_000, 880_000),
            (10, 3000, 0xffff_f800),
            (0x1234_5678, 10, 0),
        ] {
            assert_eq!(
                wire_clock(socket, silent, last),
                socket,
                "{socket} {silent} {last}"
            );
        }
    }

    /// The next timestamp on the wire is not later than the clock, and the clock is not far ahead
    /// either.
    #[test]
    fn a_shifted_clock_is_taken_from_the_wire() {
        for shift in [100_000, 0x4000_0000, 0x8000_0000, 0xfff0_0000_u32] {
            for age in [0, 10, 300] {
                let (socket, silent) = (7_000_000_u32, 300);
                let last = socket.wrapping_add(shift).wrapping_sub(age);
                let clock = wire_clock(socket, silent, last);
                let ahead = clock.wrapping_sub(socket.wrapping_add(shift));
                assert!(ahead <= silent + SLACK, "{shift:#x} {age}: {ahead}");
            }
        }
    }
}
