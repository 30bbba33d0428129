//! Boxes in user space: packets on a path leave a box changed, delayed, duplicated or in another
//! order.

use std::collections::HashMap;
use std::time::Duration;

use dysco_netns::wire::Out;

use super::packet::{End, Packet, Shift};
use crate::plan::BoxKind;
use crate::rng::Rng;

/// Maximum number of connections that a box knows. Beyond this number it forgets all of them, as
/// after a restart.
const CONNECTIONS: usize = 16_384;
/// Delay of a packet that other packets are to overtake.
const OVERTAKEN: Duration = Duration::from_millis(3);

/// State of a box.
pub(super) struct Device {
    kind: BoxKind,
    rng: Rng,
    /// The end that opened the connection between two ends. The smaller end is first in the key.
    openers: HashMap<[End; 2], End>,
}

/// Fate of a packet.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Drop,
    Twice,
    Wait(Duration),
}

impl Device {
    /// Creates a box of this kind.
    pub(super) fn new(kind: BoxKind, seed: u64) -> Device {
        Device {
            kind,
            rng: Rng::new(seed),
            openers: HashMap::new(),
        }
    }

    /// Decides on a packet, and has it written accordingly.
    pub(super) fn pass(&mut self, bytes: &mut [u8], out: &mut Out) {
        match self.decide(bytes) {
            Fate::Pass => out.now(bytes),
            Fate::Drop => {}
            Fate::Twice => {
                out.now(bytes);
                out.now(bytes);
            }
            Fate::Wait(time) => out.later(time, bytes),
        }
    }

    fn decide(&mut self, bytes: &mut [u8]) -> Fate {
        let Some(mut packet) = Packet::parse(bytes) else {
            return Fate::Pass;
        };
        let happens = |rng: &mut Rng, permille: u32| rng.range(0, 1_000) < u64::from(permille);
        match self.kind {
            BoxKind::Reorder { permille } if happens(&mut self.rng, permille) => {
                return Fate::Wait(OVERTAKEN);
            }
            BoxKind::Duplicate { permille } if happens(&mut self.rng, permille) => {
                return Fate::Twice;
            }
            BoxKind::Delay { ms } => return Fate::Wait(Duration::from_millis(ms)),
            BoxKind::Renumber { up, down, sack } => {
                let Some(shift) = shift(&mut self.openers, &packet, up, down) else {
                    return Fate::Drop;
                };
                packet.renumber(shift, sack);
            }
            BoxKind::ShiftClocks { up, down } => {
                let Some(shift) = shift(&mut self.openers, &packet, up, down) else {
                    return Fate::Drop;
                };
                packet.shift_clocks(shift);
            }
            BoxKind::StripSack => packet.strip_sack(),
            BoxKind::StripTimestamps => packet.strip_timestamps(),
            BoxKind::StripScale => packet.strip_scale(),
            BoxKind::ClampMss { mss } => packet.clamp(mss),
            _ => return Fate::Pass,
        }
        packet.seal();
        Fate::Pass
    }
}

/// Returns the shift of a packet, depending on the end that opened its connection, or `None` if the
/// box did not see the opening.
fn shift(
    openers: &mut HashMap<[End; 2], End>,
    packet: &Packet<'_>,
    up: u32,
    down: u32,
) -> Option<Shift> {
    let [from, to] = packet.ends();
    let key = [from.min(to), from.max(to)];
    if packet.opens() {
        if openers.len() >= CONNECTIONS {
            openers.clear();
        }
        openers.insert(key, from);
    }
    let opened = *openers.get(&key)? == from;
    let (own, other) = if opened { (up, down) } else { (down, up) };
    Some(Shift { own, other })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(from: u8, to: u8, flags: u8) -> Vec<u8> {
        let mut p = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0];
        p.extend([10, 0, 0, from, 10, 0, 0, to, 0, from, 0, to]);
        p.extend([0, 0, 0, 100, 0, 0, 0, 50, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        p
    }

    #[test]
    fn numbers_change_by_who_opened() {
        let kind = BoxKind::Renumber {
            up: 7,
            down: 1_000,
            sack: true,
        };
        let mut device = Device::new(kind, 1);
        assert_eq!(device.decide(&mut packet(1, 2, 16)), Fate::Drop);
        let (mut syn, mut back) = (packet(1, 2, 2), packet(2, 1, 18));
        assert_eq!(device.decide(&mut syn), Fate::Pass);
        assert_eq!(device.decide(&mut back), Fate::Pass);
        assert_eq!(syn[24..28], [0, 0, 0, 107]);
        assert_eq!(back[24..28], 1_100_u32.to_be_bytes());
        assert_eq!(back[28..32], 43_u32.to_be_bytes());
    }

    #[test]
    fn packets_wait_or_come_twice_as_often_as_asked() {
        let fates = |kind| {
            let mut device = Device::new(kind, 3);
            let all = (0..10_000).map(|_| device.decide(&mut packet(1, 2, 16)));
            all.filter(|f| *f != Fate::Pass).count()
        };
        assert!((200..400).contains(&fates(BoxKind::Reorder { permille: 30 })));
        assert!((200..400).contains(&fates(BoxKind::Duplicate { permille: 30 })));
        assert_eq!(fates(BoxKind::Delay { ms: 1 }), 10_000);
    }
}
