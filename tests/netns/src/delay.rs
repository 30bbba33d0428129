//! A link with a delay, without netem: a device of user space that returns its packets later.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::wire::{self, Wire};
use crate::{Family, Host, Lab, Role};

const DEVICE: &str = "slow";

/// Holds back the packets that pass it. Dropping it loses the packets in flight.
pub struct Delay {
    _wire: Wire,
}

impl Delay {
    /// Delays each path between the proxy's host and the others by this time.
    pub fn of_proxy(lab: &Lab, delay: Duration) -> Result<Delay> {
        let others = [Role::Client, Role::Server].map(Role::name);
        let proxy = Role::Proxy.address(Family::V4);
        Delay::between(&lab.router, (Role::Proxy.name(), &[proxy]), &others, delay)
    }

    /// Delays each path between the server's host and the client's by this time.
    pub fn of_server(lab: &Lab, delay: Duration) -> Result<Delay> {
        let server = Role::Server.address(Family::V4);
        let client = Role::Client.name();
        Delay::between(
            &lab.router,
            (Role::Server.name(), &[server]),
            &[client],
            delay,
        )
    }

    /// Delays the path between the client's host and the server's by this time. A firewall of the
    /// router sees a packet at the beginning of this path.
    pub fn of_bypass(lab: &Lab, delay: Duration) -> Result<Delay> {
        let ways = [(Role::Client, Role::Server), (Role::Server, Role::Client)];
        let rule = |(from, to): (Role, Role)| {
            let to = to.address(Family::V4);
            ("-4", format!("iif {} to {to}", from.name()))
        };
        let slow = Delay::of(&lab.router, DEVICE, &ways.map(rule), delay)?;
        let seen = format!(
            "table inet seen {{ chain again {{ type filter hook prerouting priority raw; \
             iifname {DEVICE} notrack; }}; }}\n\
             insert rule inet fw forward iifname {DEVICE} accept\n"
        );
        lab.router.input("nft", &["-f", "-"], &seen)?;
        Ok(slow)
    }

    /// Delays each path between a host at a router's port, which has these addresses, and the hosts
    /// at other ports.
    pub fn between(
        router: &Host,
        (port, addresses): (&str, &[IpAddr]),
        others: &[&str],
        delay: Duration,
    ) -> Result<Delay> {
        let mut rules = Vec::new();
        for address in addresses {
            let family = if address.is_ipv4() { "-4" } else { "-6" };
            let to_it = others.iter().map(|from| format!("iif {from} to {address}"));
            let rule = |rule| (family, rule);
            rules.extend(to_it.chain([format!("iif {port}")]).map(rule));
        }
        Delay::of(router, &format!("{DEVICE}-{port}"), &rules, delay)
    }

    /// Delays packets that match these rules, each of one address family, by a device with this
    /// name.
    fn of(router: &Host, name: &str, rules: &[(&str, String)], delay: Duration) -> Result<Delay> {
        let device = wire::offloading_device(router, name)?;
        wire::divert(router, name, rules)?;
        let wire = Wire::through(router, "delay", device, move |packet, out| {
            out.later(delay, packet);
        })?;
        Ok(Delay { _wire: wire })
    }

    /// Limits the rate of each host of the lab.
    pub fn limit(lab: &Lab, rate: &str) -> Result<()> {
        let limit = |host: &Host, device: &str| host.limit(device, rate, "128k", "8m");
        for role in Role::ALL {
            limit(lab.host(role), "eth0")?;
            limit(&lab.router, role.name())?;
        }
        Ok(())
    }
}
