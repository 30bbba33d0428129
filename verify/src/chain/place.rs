//! Sides and addresses of hosts.

use std::net::IpAddr;

use dysco_common::Element;
use dysco_proto::{HostId, Subsession};

use super::configuration::{LEFT, RIGHT};

/// Side of a host on which the session continues to the end that accepted it. A left anchor acts on
/// this side.
pub(crate) const RIGHTWARDS: usize = 0;
/// The opposite side, on which a right anchor acts.
pub(crate) const LEFTWARDS: usize = 1;

/// The address of a host.
pub(super) fn address(place: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, place as u8 + 1])
}

/// The host as an element of a chain.
pub(super) fn element(place: usize) -> Element {
    Element::Host(address(place))
}

/// Returns the host that has an address.
pub(super) fn place_of(host: HostId) -> Option<usize> {
    match host {
        IpAddr::V4(a) => usize::from(a.octets()[3]).checked_sub(1),
        IpAddr::V6(_) => None,
    }
}

/// The session.
pub(super) fn session() -> Subsession {
    Subsession {
        left: (address(LEFT), 40_000).into(),
        right: (address(RIGHT), 80).into(),
    }
}
