//! Addresses and initial numbers: hosts in a row, and a session between each two neighbours. The
//! numbers are chosen so that they wrap within the first bytes.

use std::net::{IpAddr, SocketAddr};

use dysco_proto::{HostId, Subsession};

use crate::socket::Base;

/// Number of bytes that each proxy has added to the forward direction.
pub(crate) const DELTA_FORWARD: i64 = 28;
/// Number of bytes that each proxy has added to the reverse direction.
pub(crate) const DELTA_REVERSE: i64 = -3;

/// Port of the new paths.
const NEW_PORT: u16 = 61_000;

/// A session of a host: the one to its left or to its right.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// The session that the host accepted.
    Left = 0,
    /// The session that the host opened.
    Right = 1,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Side; 2] = [Side::Left, Side::Right];

    /// Returns the opposite side.
    pub fn other(self) -> Side {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// Returns the other end of a session.
pub(crate) fn opposite(place: usize, side: Side) -> Option<(usize, Side)> {
    match side {
        Side::Right => Some((place + 1, Side::Left)),
        Side::Left => Some((place.checked_sub(1)?, Side::Right)),
    }
}

fn address(place: usize, side: Side) -> IpAddr {
    IpAddr::from([10, 0, place as u8, 1 + side as u8])
}

/// Returns all addresses of a host.
pub(crate) fn addresses(place: usize) -> [HostId; 2] {
    Side::BOTH.map(|side| address(place, side))
}

/// Returns the host that has an address.
pub(crate) fn place_of(host: HostId) -> Option<usize> {
    match host {
        IpAddr::V4(a) => Some(usize::from(a.octets()[2])),
        IpAddr::V6(_) => None,
    }
}

/// Returns the session to the right of the host at `link`.
pub(crate) fn link(link: usize) -> Subsession {
    Subsession {
        left: SocketAddr::new(address(link, Side::Right), 40_000 + link as u16),
        right: SocketAddr::new(address(link + 1, Side::Left), 80),
    }
}

/// Returns the session at one side of a host.
pub(crate) fn subsession(place: usize, side: Side) -> Subsession {
    match side {
        Side::Left => link(place.wrapping_sub(1)),
        Side::Right => link(place),
    }
}

/// Returns the side of a host at which a subsession is.
pub(crate) fn side_of(place: usize, sub: &Subsession) -> Option<Side> {
    if place_of(sub.left.ip()) == Some(place) {
        Some(Side::Right)
    } else if place_of(sub.right.ip()) == Some(place) {
        Some(Side::Left)
    } else {
        None
    }
}

/// Returns the new path, with the port that the left anchor reserves.
pub(crate) fn new_path(a: &Subsession, b: &Subsession) -> Subsession {
    let mut left = a.left;
    left.set_port(NEW_PORT);
    Subsession {
        left,
        right: b.right,
    }
}

/// Returns the numbers of the first unit of each direction on a link.
fn first(link: usize) -> (u32, u32) {
    let forward = [u32::MAX, 0x7fff_ffff, 5];
    let reverse = [0x8000_0000, u32::MAX - 1, 0];
    (forward[link % 3], reverse[link % 3])
}

/// Returns the numbers for one end, or `None` where the chain of `count` hosts ends.
pub(crate) fn base(place: usize, side: Side, count: usize) -> Option<Base> {
    match side {
        Side::Left => (place > 0).then(|| {
            let (forward, reverse) = first(place - 1);
            Base {
                out: reverse,
                into: forward,
            }
        }),
        Side::Right => (place + 1 < count).then(|| {
            let (forward, reverse) = first(place);
            Base {
                out: forward,
                into: reverse,
            }
        }),
    }
}

/// Returns the initial sequence numbers, own and remote, that fit the deltas of the proxies.
pub(crate) fn isns(place: usize, side: Side) -> (u32, u32) {
    let at = |link: usize| {
        let (forward, reverse) = first(link);
        let past_forward = (100 + DELTA_FORWARD * link as i64) as u32;
        let past_reverse = (100 - DELTA_REVERSE * link as i64) as u32;
        (
            forward.wrapping_sub(1 + past_forward),
            reverse.wrapping_sub(1 + past_reverse),
        )
    };
    match side {
        Side::Left => {
            let (forward, reverse) = at(place.wrapping_sub(1));
            (reverse, forward)
        }
        Side::Right => at(place),
    }
}
