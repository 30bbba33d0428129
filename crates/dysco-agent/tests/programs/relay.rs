//! Sessions that this host relays: two entries, each acting for its remote end.

mod ending;
mod relayed;
mod two_paths;

use dysco_common::{FlowKey, Path, Session, State, Translation};

use crate::bench::{Programs, SLOT};
use crate::frame::{Frame, Net, Options, options};
use relayed::{HOP_LIMIT, TTL};

/// The slot of the entry that [`SLOT`] is joined to.
pub(crate) const OTHER: u32 = 5;
/// Number added on the way from the end of [`SLOT`], and on the way back.
pub(crate) const OUT: u32 = 0x1_0000;
pub(crate) const BACK: u32 = 0x200_0000;
const T: Translation = Translation {
    seq_out: OUT,
    seq_in: BACK,
    ts_out: 1000,
    ts_in: 50,
    wscale_local: 0,
    wscale_local_at_peer: 0,
    wscale_remote_at_peer: 0,
    wscale_remote: 0,
    flags: 0,
};

pub(crate) const SENT: u32 = 100_000;
pub(crate) const GIVEN: u32 = 0x300_0000;

/// Returns a session with two entries in this state. The first entry is that of the client,
/// which has sent up to `SENT` and has received up to `GIVEN`.
fn joined(net: &Net, state: State) -> Programs {
    joined_in(Programs::load(), net, state)
}

/// Makes that session in these programs.
pub(crate) fn joined_in(mut p: Programs, net: &Net, state: State) -> Programs {
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
pub(crate) fn from_client(net: &Net, seq: u32, ack: u32, len: usize, which: Options) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![7; len],
        options: options(which, 10, 20, ack.wrapping_add(5000)),
        ..net.received()
    }
}

/// Returns a segment of the server.
pub(crate) fn from_server(net: &Net, seq: u32, ack: u32, len: usize) -> Frame {
    Frame {
        seq,
        ack,
        payload: vec![9; len],
        options: options(Options::Timestamps, 10, 20, 0),
        ..net.new_received()
    }
}

/// Returns a segment of the client as the server receives it.
pub(crate) fn to_server(net: &Net, f: &Frame, which: Options) -> Frame {
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
pub(crate) fn to_client(net: &Net, f: &Frame) -> Frame {
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
pub(crate) fn with_limit(f: &Frame, limit: u8) -> Vec<u8> {
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
