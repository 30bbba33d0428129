//! The links between the hosts of the lab, and the rules of its firewalls.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use dysco_netns::{Family, Host};

use super::{
    Firewalls, Fw, PORT, address, client_address, masked_address, server_address, service_address,
};
use crate::firewalls::SERVICE_PORT;

impl Firewalls {
    pub(super) fn connect(&self) -> Result<()> {
        let ends = [
            (&self.client, client_address(self.family), 11),
            (&self.server, server_address(self.family), 21),
        ];
        let bits = if self.family == Family::V4 { 32 } else { 128 };
        for (end, own, net) in ends {
            end.output(
                "ip",
                &["addr", "add", &format!("{own}/{bits}"), "dev", "lo"],
            )?;
            for fw in [Fw::One, Fw::Two] {
                self.join(end, own, net, fw)?;
            }
        }
        self.join_firewalls()?;
        for fw in [Fw::One, Fw::Two] {
            let host = self.host(fw);
            host.sysctl("net.ipv4.ip_forward", "1")?;
            host.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        }
        Ok(())
    }

    /// Joins an end to a firewall, with a route from the firewall to the end.
    pub(super) fn join(&self, end: &Host, own: IpAddr, net: u8, fw: Fw) -> Result<()> {
        let (near, far) = (fw.name(), end.name());
        let netns = self.host(fw).netns().display().to_string();
        let net = net + fw as u8;
        let (here, there) = (address(self.family, net, 1), address(self.family, net, 2));
        let (bits, nodad) = match self.family {
            Family::V4 => (24, ""),
            Family::V6 => (64, " nodad"),
        };
        let near_lines = format!(
            "link add {near} type veth peer name {far} netns {netns}\n\
             addr add {here}/{bits} dev {near}{nodad}\nlink set {near} up\n"
        );
        let peer_lines = format!(
            "addr add {there}/{bits} dev {far}{nodad}\nlink set {far} up\n\
             route add {own} via {here}\n"
        );
        end.input("ip", &["-batch", "-"], &near_lines)?;
        self.host(fw).input("ip", &["-batch", "-"], &peer_lines)?;
        for key in ["all", "default", near] {
            end.sysctl(&format!("net.ipv4.conf.{key}.rp_filter"), "0")?;
        }
        Ok(())
    }

    /// Joins the firewalls to each other.
    fn join_firewalls(&self) -> Result<()> {
        let (bits, nodad) = match self.family {
            Family::V4 => (24, ""),
            Family::V6 => (64, " nodad"),
        };
        let [one, two] = [Fw::One, Fw::Two];
        let netns = self.host(two).netns().display().to_string();
        let mut lines = format!("link add fw2 type veth peer name fw1 netns {netns}\n");
        for (fw, last) in [(one, 1), (two, 2)] {
            let (own, via) = (
                address(self.family, 31, last),
                address(self.family, 31, 3 - last),
            );
            let (other, to) = (fw.other().name(), self.control_address(fw.other()));
            let from = self.control_address(fw);
            lines += &format!(
                "addr add {own}/{bits} dev {other}{nodad}\nlink set {other} up\n\
                 route add {to} via {via} src {from}\n"
            );
            self.host(fw).input("ip", &["-batch", "-"], &lines)?;
            lines.clear();
        }
        Ok(())
    }

    pub(super) fn load(&self, fw: Fw, rules: &str) -> Result<()> {
        let host = self.host(fw);
        let (client, server) = (client_address(self.family), server_address(self.family));
        let (masked, service) = (masked_address(self.family), service_address(self.family));
        let ip = if self.family == Family::V4 {
            "ip"
        } else {
            "ip6"
        };
        let mut text = format!(
            "table inet fw {{
               counter dropped {{ }}
               counter invalid {{ }}
               chain accepted {{
                 {rules}
                 accept
               }}
               chain forward {{
                 type filter hook forward priority 0; policy drop;
                 meta l4proto != tcp accept
                 ct state invalid counter name invalid drop
                 ct state established jump accepted
                 ct state new tcp flags & (fin|syn|rst|ack) == syn ct mark set 0x17 ct label set 9 jump accepted
                 counter name dropped
               }}
             }}\n"
        );
        if self.translates {
            let target = SocketAddr::new(server, PORT);
            text += &format!(
                "table inet translate {{
                   chain destination {{
                     type nat hook prerouting priority -100;
                     {ip} daddr {service} tcp dport {SERVICE_PORT} dnat {ip} to {target}
                   }}
                   chain source {{
                     type nat hook postrouting priority 100;
                     {ip} saddr {client} {ip} daddr {server} snat {ip} to {masked}
                   }}
                 }}\n"
            );
        }
        host.input("nft", &["-f", "-"], &text)?;
        host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
        host.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")
    }

    /// Routes both ends' packets through this firewall from now on.
    pub(crate) fn route(&self, fw: Fw) -> Result<()> {
        let to_server = self.translates.then(|| service_address(self.family));
        let to_client = self.translates.then(|| masked_address(self.family));
        let ends = [
            (
                &self.client,
                to_server.unwrap_or(server_address(self.family)),
                client_address(self.family),
                11,
            ),
            (
                &self.server,
                to_client.unwrap_or(client_address(self.family)),
                server_address(self.family),
                21,
            ),
        ];
        for (host, to, own, net) in ends {
            let via = address(self.family, net + fw as u8, 2).to_string();
            let (to, own) = (to.to_string(), own.to_string());
            host.output("ip", &["route", "replace", &to, "via", &via, "src", &own])?;
        }
        Ok(())
    }
}
