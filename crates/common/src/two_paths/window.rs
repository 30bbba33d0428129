//! Windows, as sent and as edges; and the window that a remote anchor's end offers this host's stack.
//!
//! The other end may send beyond this window on the new path. Its limit is the proxy's window, and
//! the proxy may hold more than this end has room for. A firewall regards such a segment as
//! invalid. A NAT does not translate it either, so that its own stack answers with a reset.

use crate::seq::after;
use crate::session::Session;
use crate::tcp::{ACK, RST, Segment};

/// Value for an edge that was not offered yet.
pub const NO_EDGE: u32 = 0;

/// Returns an edge in its stored form. An edge that equals [`NO_EDGE`] is stored one byte lower.
#[inline(always)]
pub const fn stored_edge(edge: u32) -> u32 {
    if edge == NO_EDGE { u32::MAX } else { edge }
}

/// Returns the right edge of the window that this entry's end offers by this segment, in its stored
/// form. `None` if the entry has not recorded the segment's acknowledgement.
#[inline(always)]
pub const fn offered(s: &Session, seg: &Segment) -> Option<u32> {
    if !seg.has(ACK) || seg.has(RST) || seg.ack != s.rcv_ack {
        return None;
    }
    let window = (seg.window as u32) << (s.remote_wscale() & 15);
    Some(stored_edge(seg.ack.wrapping_add(window)))
}

/// Returns true if a segment for this entry's end begins after the edge that the end has offered
/// last. The segment has `len` bytes from `seq` on, in that end's numbers. Data longer than the
/// end's MSS leaves as several segments. All of it then has to lie before the edge.
#[inline(always)]
pub const fn is_beyond(s: &Session, edge: u32, seq: u32, len: u32) -> bool {
    if edge == NO_EDGE || len == 0 {
        return false;
    }
    let several = len > s.remote.mss as u32;
    after(seq, edge) || several && after(seq.wrapping_add(len), edge)
}

/// Returns a window of `bytes` as sent with a scale.
#[inline(always)]
pub(super) fn scaled(bytes: u32, wscale: u8) -> u16 {
    let w = bytes >> wscale;
    if w > 0xffff { 0xffff } else { w as u16 }
}

/// Returns the number of bytes from an ack to the right edge that the far end announced.
#[inline(always)]
pub(super) fn room(edge: u32, ack: u32) -> u32 {
    if after(edge, ack) {
        edge.wrapping_sub(ack)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rcv_ack: u32, wscale: u8) -> Session {
        let mut s = Session {
            rcv_ack,
            ..Session::default()
        };
        (s.remote.wscale, s.remote.mss) = (wscale, 1460);
        (s.local.flags, s.remote.flags) =
            (crate::session::offer::WSCALE, crate::session::offer::WSCALE);
        s
    }

    fn ack(ack: u32, window: u16) -> Segment {
        Segment {
            ack,
            window,
            flags: ACK,
            ..Segment::default()
        }
    }

    #[test]
    fn an_edge_is_the_ack_and_the_scaled_window() {
        let s = end(u32::MAX - 99, 3);
        assert_eq!(offered(&s, &ack(u32::MAX - 99, 100)), Some(700));
        // An older acknowledgement, and one that was not accepted.
        assert_eq!(offered(&s, &ack(u32::MAX - 100, 100)), None);
        assert_eq!(offered(&s, &ack(0, 100)), None);
        let reset = Segment {
            flags: ACK | RST,
            ..ack(u32::MAX - 99, 100)
        };
        assert_eq!(offered(&s, &reset), None);
    }

    #[test]
    fn an_edge_of_zero_is_known() {
        let s = end(u32::MAX - 99, 0);
        let edge = offered(&s, &ack(u32::MAX - 99, 100)).unwrap();
        assert_ne!(edge, NO_EDGE);
        assert!(is_beyond(&s, edge, 1, 1));
        assert!(!is_beyond(&s, edge, u32::MAX - 50, 1));
    }

    #[test]
    fn no_segment_begins_after_the_edge() {
        let s = end(0, 0);
        assert!(!is_beyond(&s, 5000, 5000, 1460));
        assert!(is_beyond(&s, 5000, 5001, 1));
        assert!(!is_beyond(&s, 5000, 5001, 0));
        // The second of the segments would begin after the edge.
        assert!(is_beyond(&s, 5000, 4000, 1461));
        assert!(!is_beyond(&s, 5000, 2000, 3000));
        assert!(!is_beyond(&s, NO_EDGE, 5001, 1));
    }
}
