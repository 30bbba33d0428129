//! Numbers that the ends of a session have reached.

use dysco_common::Session;
use dysco_common::detour::Detour;
use dysco_common::seq::max;

/// Numbers with which the sockets of a handler begin, by direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start {
    /// From the local end to the remote end: what the near socket receives, and the far one sends.
    pub out: u32,
    /// From the remote end to the local end.
    pub back: u32,
    /// Number up to which the remote end has acknowledged, as the local end's socket has it. The
    /// entry of a path with other addresses does not keep it.
    pub acked: Option<u32>,
}

/// Numbers of the ends of a session, by direction, in the numbers of its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbers {
    /// Number after the highest that the local end has sent.
    pub sent_out: u32,
    /// Highest number that the local end was acknowledged.
    pub shown_out: u32,
    /// Receiver's number of a byte less the sender's, without a detour.
    pub shift_out: u32,
    /// As `sent_out`, of the remote end.
    pub sent_back: u32,
    /// As `shown_out`, of the remote end.
    pub shown_back: u32,
    /// As `shift_out`, to the local end.
    pub shift_back: u32,
}

/// Returns the highest number that the local end has sent by the direct route, as the entry has it.
fn direct(s: &Session, d: &Detour) -> u32 {
    match s.detours_before_path() {
        false => s.snd_max,
        true => s.snd_max.wrapping_sub(d.out.shift),
    }
}

/// Returns the numbers of a session. Its record has more recent ones, if there is one.
pub(super) fn of(s: &Session, d: Option<&Detour>) -> Numbers {
    match d {
        Some(d) => Numbers {
            sent_out: max(d.out.sent, direct(s, d)),
            shown_out: d.out.shown,
            shift_out: d.out.shift,
            sent_back: max(d.back.sent, s.rcv_max),
            shown_back: d.back.shown,
            shift_back: d.back.shift,
        },
        None => Numbers {
            sent_out: s.snd_max,
            shown_out: s.rcv_ack,
            shift_out: 0,
            sent_back: s.rcv_max,
            shown_back: s.snd_ack,
            shift_back: 0,
        },
    }
}
