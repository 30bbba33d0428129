//! This host's interfaces, as the kernel describes them: those that are made of others, so that
//! a packet passes both, and the header with which packets pass each.

use std::collections::HashMap;
use std::io;

use rtnetlink::packet_route::RouteNetlinkMessage;
use rtnetlink::packet_route::link::{
    LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};

use crate::netlink;

/// Kinds that are made on another interface, and pass its packets on unchanged. A tunnel is not
/// one of them: it sends another packet there.
const MADE_ON: [&str; 5] = ["vlan", "macvlan", "macvtap", "ipvlan", "ipvtap"];
/// Kinds that have other interfaces as their parts, and take the packets of these.
const MADE_OF: [&str; 4] = ["bridge", "bond", "team", "vrf"];

/// Header with which the programs find the packets of an interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Header {
    /// An Ethernet header. The loopback interface has one as well.
    #[default]
    Ethernet,
    /// The IP header alone: tun, WireGuard, ipip, sit, gre.
    Ip,
    /// A header that the programs do not read.
    Other,
}

impl Header {
    /// Returns the header of an interface of this name; Ethernet if the kernel does not tell.
    pub fn of(interface: &str) -> Header {
        let all = links().unwrap_or_default();
        let link = all.iter().find(|link| link.name == interface);
        link.map_or(Header::Ethernet, |link| link.header)
    }
}

/// An interface.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its index.
    pub index: u32,
    /// Its kind, as `ip -d link` shows it; empty if the kernel names none.
    pub kind: String,
    /// The interface on which it is made, if that is in this network namespace.
    pub on: Option<u32>,
    /// The interface of which it is a part.
    pub part_of: Option<u32>,
    /// The header of its packets.
    pub header: Header,
    /// Its Ethernet address, if it has one.
    pub address: Option<[u8; 6]>,
}

/// Returns all interfaces of this network namespace.
///
/// # Errors
/// If the kernel does not list them.
pub fn links() -> io::Result<Vec<Link>> {
    let answers = netlink::list(RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
    let links = answers.iter().filter_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(read(link)),
        _ => None,
    });
    Ok(links.collect())
}

fn read(message: &LinkMessage) -> Link {
    let header = &message.header;
    let mut link = Link {
        index: header.index,
        header: header_of(header.link_layer_type, header.flags),
        ..Link::default()
    };
    let mut elsewhere = false;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(address) => link.address = address.as_slice().try_into().ok(),
            LinkAttribute::Link(on) => link.on = Some(*on).filter(|on| *on != 0),
            LinkAttribute::Controller(whole) => link.part_of = Some(*whole).filter(|w| *w != 0),
            LinkAttribute::LinkNetNsId(_) => elsewhere = true,
            LinkAttribute::LinkInfo(all) => {
                let kind = all.iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                link.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    if elsewhere {
        link.on = None;
    }
    link
}

/// Returns the header of an interface by its type (`ARPHRD_*`), as `dev_is_mac_header_xmit`
/// (include/linux/if_arp.h) tells it. A GRE tunnel without a fixed remote end has a header of its
/// own (`ipgre_header`, net/ipv4/ip_gre.c).
fn header_of(kind: LinkLayerType, flags: LinkFlags) -> Header {
    match kind {
        LinkLayerType::Ether | LinkLayerType::Loopback => Header::Ethernet,
        LinkLayerType::None
        | LinkLayerType::Rawip
        | LinkLayerType::Tunnel
        | LinkLayerType::Tunnel6
        | LinkLayerType::Sit => Header::Ip,
        LinkLayerType::Ipgre | LinkLayerType::Ip6gre if flags.contains(LinkFlags::Pointopoint) => {
            Header::Ip
        }
        _ => Header::Other,
    }
}

/// Returns the interfaces below this one that its packets pass as well. The programs must not be
/// attached to these too, or a packet is changed twice.
pub fn below<'a>(upper: &Link, all: &'a [Link]) -> Vec<&'a Link> {
    let by_index: HashMap<u32, &Link> = all.iter().map(|link| (link.index, link)).collect();
    let mut found: Vec<&Link> = Vec::new();
    let mut next = vec![upper.index];
    while let Some(link) = next.pop().and_then(|index| by_index.get(&index)) {
        let on = link.on.filter(|_| MADE_ON.contains(&link.kind.as_str()));
        let parts = all.iter().filter(|part| part.part_of == Some(link.index));
        let parts = parts.filter(|_| MADE_OF.contains(&link.kind.as_str()));
        let lower = on.and_then(|on| by_index.get(&on)).copied();
        for lower in lower.into_iter().chain(parts) {
            if lower.index != upper.index && !found.contains(&lower) {
                found.push(lower);
                next.push(lower.index);
            }
        }
    }
    found
}

/// Returns two of the named interfaces that a packet passes both of, the upper one first.
pub fn stacked<'a>(names: &[&str], all: &'a [Link]) -> Option<(&'a Link, &'a Link)> {
    let named = |link: &&Link| names.contains(&link.name.as_str());
    let mut upper = all.iter().filter(named);
    upper.find_map(|upper| Some((upper, below(upper, all).into_iter().find(named)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, kind: &str) -> Link {
        Link {
            name: name.into(),
            index,
            kind: kind.into(),
            ..Link::default()
        }
    }

    fn on(index: u32, name: &str, kind: &str, on: u32) -> Link {
        Link {
            on: Some(on),
            ..link(index, name, kind)
        }
    }

    fn part(index: u32, name: &str, part_of: u32) -> Link {
        Link {
            part_of: Some(part_of),
            ..link(index, name, "")
        }
    }

    #[test]
    fn a_packet_passes_each_kind_that_is_made_of_another_and_that_one() {
        for kind in MADE_ON {
            let all = [
                link(1, "eth0", ""),
                on(2, "up", kind, 1),
                on(3, "upper", kind, 2),
            ];
            let (upper, lower) = stacked(&["eth0", "upper"], &all).unwrap();
            assert_eq!((&*upper.name, &*lower.name), ("upper", "eth0"), "{kind}");
            assert_eq!(stacked(&["upper"], &all), None, "{kind}");
        }
        for kind in MADE_OF {
            let all = [
                part(1, "eth0", 9),
                part(2, "eth1", 9),
                link(9, "whole", kind),
            ];
            let (upper, lower) = stacked(&["eth1", "whole"], &all).unwrap();
            assert_eq!((&*upper.name, &*lower.name), ("whole", "eth1"), "{kind}");
            assert_eq!(stacked(&["eth0", "eth1"], &all), None, "{kind}");
        }
        // A VLAN on a bond, and the bond's part.
        let all = [
            part(1, "eth0", 2),
            link(2, "bond0", "bond"),
            on(3, "bond0.5", "vlan", 2),
        ];
        assert!(stacked(&["eth0", "bond0.5"], &all).is_some());
    }

    #[test]
    fn a_tunnel_and_the_other_end_of_a_pair_are_other_interfaces() {
        for kind in ["vxlan", "veth", "gre", "wireguard", "macsec"] {
            let all = [link(1, "eth0", ""), on(2, "other", kind, 1)];
            assert_eq!(stacked(&["eth0", "other"], &all), None, "{kind}");
        }
        // Two ends of one pair name each other.
        let all = [on(1, "a", "veth", 2), on(2, "b", "veth", 1)];
        assert!(below(&all[0], &all).is_empty());
    }

    #[test]
    fn a_gre_tunnel_to_one_end_has_no_header_of_its_own() {
        let of = |kind, flags| header_of(kind, flags);
        let (one, any) = (LinkFlags::Pointopoint, LinkFlags::empty());
        assert_eq!(of(LinkLayerType::Ipgre, one), Header::Ip);
        assert_eq!(of(LinkLayerType::Ipgre, any), Header::Other);
        assert_eq!(of(LinkLayerType::None, any), Header::Ip);
        assert_eq!(of(LinkLayerType::Ppp, one), Header::Other);
    }

    #[test]
    fn the_kernel_tells_of_the_loopback_interface() {
        let all = links().unwrap();
        let lo = all.iter().find(|link| link.name == "lo").unwrap();
        assert!(lo.on.is_none() && lo.part_of.is_none());
        assert_eq!((lo.header, Header::of("lo")), (Header::Ethernet, lo.header));
        assert_eq!(lo.address, Some([0; 6]));
    }
}
