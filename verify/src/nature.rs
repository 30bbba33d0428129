//! What the network does to the packets of a new path.

use dysco_common::tcp::{ACK, RST, Segment};

use crate::plane::Packet;

/// What that is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Nature {
    /// Nothing.
    #[default]
    Plain,
    /// Whatever is sent there is answered by a reset that the sender's TCP would believe.
    Rejects,
    /// What goes to the right gets other sequence numbers, and what comes back acknowledges
    /// what it would have without.
    Renumbers,
}

/// What a firewall adds.
const SHIFT: u32 = 0x0102_0304;

impl Nature {
    /// Does opening the path show nothing that speaks against it?
    pub fn is_plain(self) -> bool {
        self == Nature::Plain
    }

    /// A segment as it comes out behind what lies on the path.
    pub fn changed(self, to_right: bool, packet: Packet) -> Packet {
        if self != Nature::Renumbers {
            return packet;
        }
        let (mut seq, mut ack) = (packet.seg.seq, packet.seg.ack);
        match to_right {
            true => seq = seq.wrapping_add(SHIFT),
            false => ack = ack.wrapping_sub(SHIFT),
        }
        let seg = Segment {
            seq,
            ack,
            ..packet.seg
        };
        Packet { seg, ..packet }
    }
}

/// The reset that answers what acknowledges `ack`.
pub fn reset(ack: u32) -> Packet {
    let seg = Segment {
        seq: ack,
        flags: RST | ACK,
        ..Segment::default()
    };
    Packet { seg, first: 0 }
}
