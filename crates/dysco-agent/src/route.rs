//! Lookup in the kernel of the interface that leads to an address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
pub use rtnetlink::packet_route::neighbour::{NeighbourFlags, NeighbourState};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};

use crate::error::AgentError;

/// A route to an address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Index of the interface.
    pub ifindex: u32,
}

/// A host on one of this host's links, as the kernel knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its address.
    pub address: IpAddr,
    /// Index of the interface.
    pub ifindex: u32,
    /// Its link-layer address, while one is known.
    pub link: Option<Vec<u8>>,
    /// The kernel's state of it.
    pub state: NeighbourState,
    /// Other properties, such as being a router.
    pub flags: NeighbourFlags,
}

/// Asks the kernel for routes and neighbours.
#[derive(Clone)]
pub struct Routes(rtnetlink::Handle);

impl Routes {
    /// Opens the netlink socket. Inside a tokio runtime.
    pub fn open() -> Result<Routes, AgentError> {
        let (connection, handle, _) =
            rtnetlink::new_connection().map_err(|source| AgentError::System {
                operation: "open a netlink socket",
                source,
            })?;
        tokio::spawn(connection);
        Ok(Routes(handle))
    }

    /// Returns the route from one address to another.
    pub async fn get(&self, from: IpAddr, to: IpAddr) -> Result<Route, AgentError> {
        let message: RouteMessage = match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(to, 32)
                .source_prefix(from, 32)
                .build(),
            (IpAddr::V6(from), IpAddr::V6(to)) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(to, 128)
                .source_prefix(from, 128)
                .build(),
            _ => return Err(AgentError::NoRoute(to)),
        };
        let reply = self.0.route().get(message).execute().try_next().await;
        let reply = reply.map_err(|e| AgentError::Route {
            to,
            source: Box::new(e),
        })?;
        reply
            .iter()
            .flat_map(|m| &m.attributes)
            .find_map(|a| match a {
                RouteAttribute::Oif(ifindex) => Some(Route { ifindex: *ifindex }),
                _ => None,
            })
            .ok_or(AgentError::NoRoute(to))
    }

    /// Returns all neighbours that were not set by hand.
    ///
    /// # Errors
    /// If the kernel does not list them.
    pub async fn neighbours(&self) -> Result<Vec<Neighbour>, AgentError> {
        let all = self.0.neighbours().get().execute();
        let all: Vec<NeighbourMessage> = all.try_collect().await.map_err(failed)?;
        Ok(all.iter().filter_map(neighbour).collect())
    }

    /// Makes the kernel treat this neighbour as reachable, as if it had just received a packet
    /// from it.
    ///
    /// # Errors
    /// If the kernel refuses the update.
    pub async fn confirm(&self, of: &Neighbour) -> Result<(), AgentError> {
        let link = of.link.as_deref().unwrap_or_default();
        let neighbours = self.0.neighbours();
        let confirmed = neighbours
            .add(of.ifindex, of.address)
            .link_layer_address(link)
            .state(NeighbourState::Reachable)
            .flags(of.flags)
            .replace();
        confirmed.execute().await.map_err(failed)
    }
}

fn failed(source: rtnetlink::Error) -> AgentError {
    AgentError::System {
        operation: "keep a neighbour",
        source: std::io::Error::other(source),
    }
}

fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    let state = message.header.state;
    if matches!(state, NeighbourState::Permanent | NeighbourState::Noarp) {
        return None;
    }
    let address = message.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::from(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::from(*ip)),
        _ => None,
    });
    let link = message.attributes.iter().find_map(|a| match a {
        NeighbourAttribute::LinkLayerAddress(link) => Some(link.clone()),
        _ => None,
    });
    let there = !matches!(state, NeighbourState::Incomplete | NeighbourState::Failed);
    Some(Neighbour {
        address: address?,
        ifindex: message.header.ifindex,
        link: link.filter(|_| there),
        state,
        flags: message.header.flags,
    })
}
