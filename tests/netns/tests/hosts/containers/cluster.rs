//! A proxy in a pod, behind cluster addresses as Kubernetes makes them: the node translates the
//! address of each service to that of an endpoint, and hides clients that are no pods.

use anyhow::{Result, ensure};
use dysco_netns::Family;
use dysco_netns::stream::all_intact;

use super::network::{INNER, PORT, SERVER, Start, World};

/// Cluster addresses of the proxy and of the server.
const FRONT: [u8; 4] = [10, 96, 0, 10];
const BACK: [u8; 4] = [10, 96, 0, 20];
/// Port of the proxy's cluster address, which is not the proxy's own.
const SERVICE: u16 = 80;

/// Rules in the manner of kube-proxy's mode `iptables`, in the format of iptables-restore. A service
/// has two entries for its one endpoint.
const IPTABLES: &str = "
*nat
:CLUSTER-SERVICES - [0:0]
:CLUSTER-FRONT - [0:0]
:CLUSTER-BACK - [0:0]
:CLUSTER-FRONT-1 - [0:0]
:CLUSTER-BACK-1 - [0:0]
:CLUSTER-HIDE - [0:0]
:CLUSTER-LEAVING - [0:0]
-A PREROUTING -j CLUSTER-SERVICES
-A OUTPUT -j CLUSTER-SERVICES
-A POSTROUTING -j CLUSTER-LEAVING
-A CLUSTER-SERVICES -d 10.96.0.10/32 -p tcp --dport 80 -j CLUSTER-FRONT
-A CLUSTER-SERVICES -d 10.96.0.20/32 -p tcp --dport 9000 -j CLUSTER-BACK
-A CLUSTER-FRONT ! -s 172.17.0.0/16 -j CLUSTER-HIDE
-A CLUSTER-FRONT -m statistic --mode random --probability 0.5 -j CLUSTER-FRONT-1
-A CLUSTER-FRONT -j CLUSTER-FRONT-1
-A CLUSTER-FRONT-1 -p tcp -j DNAT --to-destination 172.17.0.2:8080
-A CLUSTER-BACK -j CLUSTER-BACK-1
-A CLUSTER-BACK-1 -p tcp -j DNAT --to-destination 10.0.3.1:9000
-A CLUSTER-HIDE -j MARK --set-xmark 0x4000/0x4000
-A CLUSTER-LEAVING -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully
-A CLUSTER-LEAVING -s 172.17.0.0/16 ! -o br0 -j MASQUERADE
COMMIT
";

/// Rules in the manner of kube-proxy's mode `nftables`: maps in place of a chain of rules.
const NFTABLES: &str = "
table ip cluster {
  map services {
    type ipv4_addr . inet_service : verdict
    elements = { 10.96.0.10 . 80 : goto front, 10.96.0.20 . 9000 : goto back }
  }
  chain front {
    ip saddr != 172.17.0.0/16 meta mark set meta mark | 0x4000
    numgen random mod 2 vmap { 0 : goto endpoint, 1 : goto endpoint }
  }
  chain endpoint {
    meta l4proto tcp dnat to 172.17.0.2:8080
  }
  chain back {
    meta l4proto tcp dnat to 10.0.3.1:9000
  }
  chain inward {
    type nat hook prerouting priority dstnat
    ip daddr . tcp dport vmap @services
  }
  chain outward {
    type nat hook postrouting priority srcnat
    meta mark & 0x4000 != 0 masquerade fully-random
    ip saddr 172.17.0.0/16 oifname != br0 masquerade
  }
}
";

/// Commands that make the services of IPVS, as kube-proxy's mode `ipvs` does. The addresses are on a
/// device of their own, so that packets to them reach IPVS.
const IPVS: &[&str] = &[
    "ip link add cluster type dummy",
    "ip address add 10.96.0.10/32 dev cluster",
    "ip address add 10.96.0.20/32 dev cluster",
    "sysctl -qw net.ipv4.vs.conntrack=1",
    "ipvsadm -A -t 10.96.0.10:80 -s rr",
    "ipvsadm -a -t 10.96.0.10:80 -r 172.17.0.2:8080 -m",
    "ipvsadm -A -t 10.96.0.20:9000 -s rr",
    "ipvsadm -a -t 10.96.0.20:9000 -r 10.0.3.1:9000 -m",
];

/// Hides all clients from the endpoints, as kube-proxy does with `--masquerade-all`.
const HIDE_ALL: &str = "
table ip cluster {
  chain outward {
    type nat hook postrouting priority srcnat
    ct status dnat masquerade
  }
}
";

/// Translation of the cluster addresses on the node.
#[derive(Clone, Copy)]
enum Mode {
    Iptables,
    Nftables,
    Ipvs,
}

impl Mode {
    fn set_up(self, world: &World) -> Result<()> {
        let node = &world.lab.proxy;
        match self {
            Mode::Iptables => node.input("iptables-restore", &[], IPTABLES),
            Mode::Nftables => node.input("nft", &["-f", "-"], NFTABLES),
            Mode::Ipvs => {
                for line in IPVS {
                    let words: Vec<_> = line.split_whitespace().collect();
                    node.output(words[0], &words[1..])?;
                }
                node.input("nft", &["-f", "-"], HIDE_ALL)
            }
        }
        .map(drop)
    }
}

/// The proxy is reached by a cluster address, and reaches the server by another one. It leaves, and
/// its process ends. All bytes arrive.
fn leaves(name: &str, mode: Mode) -> Result<()> {
    let mut w = World::unpublished(name, Family::V4)?;
    w.entry = (FRONT, SERVICE).into();
    w.backend = (BACK, SERVER).into();
    let to_node = ["route", "add", "10.96.0.0/16", "via", "10.0.2.1"];
    w.lab.router.output("ip", &to_node)?;
    w.make_inner()?;
    mode.set_up(&w)?;
    w.start("[\"web\"]")?;
    w.wait_served()?;
    let haproxy = w.haproxy(Start::Shim)?;
    let group = w.open(4)?;
    // The proxy sees the node in place of the client, which the translation hides.
    let seen = w.inside(
        "ss",
        &["-Htn", "state", "established", "sport", &format!(":{PORT}")],
    )?;
    ensure!(seen.lines().count() == 4, "{seen}");
    ensure!(!seen.contains("10.0.1.1"), "{seen}");
    w.remove(4, &["--namespace", INNER])?;
    w.no_sockets()?;
    group.wait_progress(1 << 20)?;
    drop(haproxy);
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn a_proxy_behind_cluster_addresses_of_iptables_leaves() -> Result<()> {
    leaves("clusteript", Mode::Iptables)
}

#[test]
fn a_proxy_behind_cluster_addresses_of_nftables_leaves() -> Result<()> {
    leaves("clusternft", Mode::Nftables)
}

#[test]
#[ignore = "needs IPVS: `cargo xtask test --kernel 6.12 --links` runs it on a kernel that has it"]
fn a_proxy_behind_cluster_addresses_of_ipvs_leaves() -> Result<()> {
    leaves("clusteripvs", Mode::Ipvs)
}
