//! Which interface leads to an address, asked of the kernel.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::TryStreamExt;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};

use crate::error::AgentError;

/// A way out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    /// Index of the interface.
    pub ifindex: u32,
}

/// Asks the kernel for routes.
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

    /// The route from one address to another.
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
}
