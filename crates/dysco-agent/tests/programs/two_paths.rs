//! Sessions between two paths.

mod ending;
mod opening;
mod outgoing;
mod windows;

use dysco_common::session::life;
use dysco_common::{State, Translation};

use crate::bench::Programs;
use crate::frame::{Frame, Net, Options, options};

/// Number that the translation adds to sent numbers, and to received ones.
const OUT: u32 = 0x1_0000;
const IN: u32 = 0x200_0000;
const T: Translation = Translation {
    seq_out: OUT,
    seq_in: IN,
    ts_out: 0,
    ts_in: 0,
    wscale_local: 0,
    wscale_local_at_peer: 0,
    wscale_remote_at_peer: 0,
    wscale_remote: 0,
    flags: 0,
};

/// Flags of a session that the middlebox has ended.
const ENDED: u8 = life::SEEN | life::BY_MIDDLEBOX;

const SENT: u32 = 100_000;
const CUT_IN: u32 = 0x300_0000;

/// Returns a session with `SENT` bytes sent and nothing cut yet.
fn before_the_cut(net: &Net) -> Programs {
    let mut p = Programs::with(net, State::TwoPaths, T);
    p.change(|s| {
        (s.snd_max, s.rcv_ack) = (SENT, SENT - 3000);
        (s.rcv_max, s.snd_ack) = (CUT_IN - 1000, CUT_IN - 2000);
    });
    p
}

/// Returns a session with both cutoffs set.
fn cut(net: &Net) -> Programs {
    let mut p = before_the_cut(net);
    p.change(|s| {
        (s.two.cut_set, s.cut_out) = (1, SENT);
        (s.two.cut_in_set, s.cut_in) = (1, CUT_IN);
    });
    p
}

fn sent(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![7; len],
        options: options(Options::Timestamps, 1, 2, 0),
        ..net.sent()
    }
}

/// Returns a segment of the local end as it is on the new path.
fn on_new(net: &Net, f: &Frame) -> Frame {
    Frame {
        src: net.new_local,
        dst: net.new_remote,
        seq: f.seq.wrapping_add(OUT),
        ack: f.ack.wrapping_sub(IN),
        ..f.clone()
    }
}

fn from_peer(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq: seq.wrapping_sub(IN),
        ack: ack.wrapping_add(OUT),
        payload: vec![9; len],
        options: options(Options::Timestamps, 1, 2, 0),
        ..net.new_received()
    }
}

/// Returns a segment of the new path as the local end receives it.
fn delivered(net: &Net, f: &Frame) -> Frame {
    Frame {
        src: net.remote,
        dst: net.local,
        seq: f.seq.wrapping_add(IN),
        ack: f.ack.wrapping_sub(OUT),
        ..f.clone()
    }
}
