//! The usual packet: no fragment, no options but timestamps.

use dysco_common::ShortKey;
use dysco_common::short::TIMESTAMPS;
use dysco_common::tcp::{MIN_HEADER, Segment};

use super::ip::{Ipv4, Ipv6};
use super::{Bytes, Direction, Found, IPPROTO_TCP, IPV6_LEN, L2, WITH_TIMESTAMPS, at, l4};

/// A packet with the usual header: without options, or with timestamps alone. The field order
/// has the same reason as that of [`Key`].
#[repr(C, align(8))]
pub(crate) struct Usual {
    /// The key for the lookup.
    pub short: ShortKey,
    /// TSval; 0 without timestamps.
    pub tsval: u32,
    /// Its place, and its fixed fields.
    pub found: Found,
}

/// Reads a packet with the usual header, whose first bytes are readable. Returns `None` for all
/// others, most of which [`find`] reads.
#[inline(always)]
pub(crate) fn usual<const V6: bool>(ctx: &impl Bytes, dir: Direction) -> Option<Usual> {
    let (ip_len, src, dst) = if V6 {
        let ip = at::<Ipv6>(ctx, L2)?;
        if ip.next_header != IPPROTO_TCP || ip.payload_len == 0 {
            return None;
        }
        let len = u16::from_be(ip.payload_len) as usize + IPV6_LEN;
        let (src, dst) = (ip.src, ip.dst);
        (len, src.folded(), dst.folded())
    } else {
        let ip = at::<Ipv4>(ctx, L2)?;
        if !ip.is_plain_tcp() {
            return None;
        }
        (u16::from_be(ip.len) as usize, ip.src, ip.dst)
    };
    let words = at::<[u32; 5]>(ctx, l4(V6))?;
    let [offset, flags, w0, w1] = words[3].to_ne_bytes();
    let (data_offset, tsval) = match offset >> 4 {
        5 => (MIN_HEADER, 0),
        8 => {
            let option = at::<[u32; 2]>(ctx, l4(V6) + MIN_HEADER)?;
            if option[0] != TIMESTAMPS {
                return None;
            }
            (WITH_TIMESTAMPS, u32::from_be(option[1]))
        }
        _ => return None,
    };
    // Ports in memory order, the local one in the upper half.
    let ports = match dir {
        Direction::Out => words[0].rotate_left(16),
        Direction::In => words[0],
    };
    let (local, remote) = match dir {
        Direction::Out => (src, dst),
        Direction::In => (dst, src),
    };
    let seg = Segment {
        seq: u32::from_be(words[1]),
        ack: u32::from_be(words[2]),
        len: (ip_len + L2).checked_sub(l4(V6) + data_offset)? as u32,
        window: u16::from_be_bytes([w0, w1]),
        flags,
    };
    Some(Usual {
        found: Found {
            v6: V6,
            data_offset,
            seg,
        },
        tsval,
        short: ShortKey::new(local, remote, (ports >> 16) as u16, ports as u16),
    })
}
