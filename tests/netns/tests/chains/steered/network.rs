//! The links between the hosts of the lab.

use anyhow::Result;
use dysco_netns::Family;

use super::{At, FIREWALL, Steered, address};

impl Steered {
    pub(super) fn connect(&self, all: &[At]) -> Result<()> {
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            self.router.sysctl(key, "1")?;
            for at in self.firewalls() {
                self.host(at).sysctl(key, "1")?;
            }
        }
        for at in all {
            self.join(*at)?;
        }
        for at in self.firewalls() {
            let host = self.host(at);
            host.input("nft", &["-f", "-"], FIREWALL)?;
            host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
            host.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")?;
        }
        Ok(())
    }

    pub(super) fn join(&self, at: At) -> Result<()> {
        let (host, port) = (self.host(at), at.name());
        let netns = host.netns().display();
        let mut router_side = format!("link add {port} type veth peer name eth0 netns {netns}\n");
        let mut near = String::from("link set eth0 up\n");
        for (family, bits, nodad) in [(Family::V4, 24, ""), (Family::V6, 64, " nodad")] {
            let (own, gateway) = (address(at, family, 1), address(at, family, 254));
            router_side += &format!("addr add {gateway}/{bits} dev {port}{nodad}\n");
            near += &format!("addr add {own}/{bits} dev eth0{nodad}\n");
            near += &format!("route add default via {gateway}\n");
        }
        router_side += &format!("link set {port} up\n");
        self.router.input("ip", &["-batch", "-"], &router_side)?;
        host.input("ip", &["-batch", "-"], &near).map(drop)
    }

    /// Sets the MTU of a host's link in both directions.
    pub(crate) fn set_mtu(&self, at: At, bytes: u32) -> Result<()> {
        let bytes = bytes.to_string();
        for (host, link) in [(self.host(at), "eth0"), (&self.router, at.name())] {
            host.output("ip", &["link", "set", link, "mtu", &bytes])?;
        }
        Ok(())
    }
}
