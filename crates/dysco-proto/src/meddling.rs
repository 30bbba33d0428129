//! Changes that a device between two hosts makes to packets, and that a session does not survive if
//! it moves there in its middle.

use std::fmt;

use dysco_common::Element;
use dysco_common::probe::Change;
use dysco_common::session::offer;
use serde::{Deserialize, Serialize};

use super::names::HostId;

/// A change to packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Meddling {
    /// The packets are answered with a reset.
    Rejects,
    /// The packets that open the path are answered in the other host's name, or lose their data.
    Answers,
    /// This number is added to sequence numbers, modulo 2^32.
    Renumbers(u32),
    /// This number is added to acknowledgement numbers, modulo 2^32.
    Acknowledges(u32),
    /// This number is added to timestamps, modulo 2^32.
    ShiftsClock(u32),
    /// The MSS is lowered to this value.
    LowersMss(u16),
    /// The option SACK permitted is removed or added.
    Sack,
    /// Timestamps are removed or added.
    Timestamps,
    /// The window scale is changed.
    WindowScale,
}

impl Meddling {
    /// Returns the part of a change that a session with segments of up to `longest` bytes would not
    /// survive.
    pub fn of(change: &Change, longest: u16) -> Option<Meddling> {
        let has = |flag: u8| change.options & u32::from(flag) != 0;
        let lowered = u16::try_from(change.mss).unwrap_or(u16::MAX);
        Some(match change {
            c if c.seq != 0 => Meddling::Renumbers(c.seq),
            c if c.ack != 0 => Meddling::Acknowledges(c.ack),
            c if c.tsval != 0 => Meddling::ShiftsClock(c.tsval),
            c if c.tsecr != 0 => Meddling::ShiftsClock(c.tsecr),
            _ if has(offer::SACK) => Meddling::Sack,
            _ if has(offer::TIMESTAMPS) => Meddling::Timestamps,
            _ if has(offer::WSCALE) => Meddling::WindowScale,
            _ if lowered != 0 && lowered < longest => Meddling::LowersMss(lowered),
            _ => return None,
        })
    }
}

/// Returns a shift modulo 2^32 as a signed number.
fn signed(shift: u32) -> String {
    format!("{:+}", shift.cast_signed())
}

impl fmt::Display for Meddling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Meddling::Rejects => f.write_str("answers with a reset: it rejects the session there, or changes its addresses so that the other host does not know it"),
            Meddling::Answers => f.write_str("answers in the other host's name, or takes away what a SYN carries"),
            Meddling::Renumbers(by) => write!(f, "rewrites sequence numbers (by {})", signed(*by)),
            Meddling::Acknowledges(by) => {
                write!(f, "rewrites acknowledgement numbers (by {})", signed(*by))
            }
            Meddling::ShiftsClock(by) => write!(f, "shifts timestamps (by {})", signed(*by)),
            Meddling::LowersMss(to) => write!(f, "lowers the MSS to {to}"),
            Meddling::Sack => f.write_str("strips or alters SACK permitted"),
            Meddling::Timestamps => f.write_str("strips or alters timestamps"),
            Meddling::WindowScale => f.write_str("strips or alters the window scale"),
        }
    }
}

/// A way between two hosts, in the direction of the changed packets.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Way {
    /// Sending host.
    pub from: HostId,
    /// Receiving host.
    pub to: HostId,
    /// Elements of a chain between them, in the session's order.
    pub through: Vec<Element>,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "on the way from {} to {}", self.from, self.to)?;
        for (i, element) in self.through.iter().enumerate() {
            let before = if i == 0 { " through" } else { "," };
            write!(f, "{before} {element}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shift_is_reported_with_its_sign() {
        let up = Meddling::Renumbers(0x1020_3040).to_string();
        assert_eq!(up, "rewrites sequence numbers (by +270544960)");
        let down = Meddling::ShiftsClock(50_000_000_u32.wrapping_neg()).to_string();
        assert_eq!(down, "shifts timestamps (by -50000000)");
    }

    #[test]
    fn a_lower_mss_counts_only_where_segments_are_longer() {
        let change = Change {
            mss: 1380,
            ..Change::default()
        };
        assert_eq!(Meddling::of(&change, 1380), None);
        let lowers = Some(Meddling::LowersMss(1380));
        assert_eq!(Meddling::of(&change, 1448), lowers);
    }

    #[test]
    fn a_way_names_its_hosts() {
        let [from, to, fw] = [1, 2, 3].map(|h| HostId::from([10, 0, 0, h]));
        let through = vec![Element::Host(fw)];
        let way = Way { from, to, through };
        let reported = "on the way from 10.0.0.1 to 10.0.0.2 through 10.0.0.3";
        assert_eq!(way.to_string(), reported);
    }
}
