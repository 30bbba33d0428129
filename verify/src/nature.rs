//! Effect of the network on the packets of a new path.

use dysco_common::tcp::{ACK, RST, Segment};

use crate::plane::Packet;

/// Effect of a new path on packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Nature {
    /// Packets pass unchanged.
    #[default]
    Plain,
    /// A reset that the sender's TCP would believe answers every packet on the path.
    Rejects,
    /// Packets to the right get other sequence numbers. The acknowledgements of the returning
    /// packets are translated back.
    Renumbers,
}

/// Number that a firewall adds to sequence numbers.
const SHIFT: u32 = 0x0102_0304;

impl Nature {
    /// True if opening the path reveals nothing against it.
    pub fn is_plain(self) -> bool {
        self == Nature::Plain
    }

    /// Returns a segment as it leaves the devices on the path.
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

/// Returns the reset that answers a segment that acknowledges `ack`.
pub(crate) fn reset(ack: u32) -> Packet {
    let seg = Segment {
        seq: ack,
        flags: RST | ACK,
        ..Segment::default()
    };
    Packet { seg, first: 0 }
}
