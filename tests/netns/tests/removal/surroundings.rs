//! Settings of hosts and of their interfaces that other software makes: SYN cookies, sockets bound
//! to a device, queueing disciplines, redirections, long packets, links that fail, and connection
//! tracking that is emptied.

use std::io::Read;
use std::time::Duration;

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, PROXY_PORT, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Builder, Family, Host, HostOptions, Lab, Role, counters, wait};
use serde_json::Value;
use socket2::{Socket, Type};

const MIB: u64 = 1 << 20;
const LIMIT: Duration = Duration::from_secs(60);
/// Modes, and the hosts that run `dyscod` for them.
const MODES: [(&str, &[Role]); 2] = [("bypass", &Role::ALL), ("local", &[Role::Proxy])];

/// Surroundings of a removal, which change nothing about it.
struct Around {
    family: Family,
    host: fn(HostOptions) -> HostOptions,
    proxy: fn(Config) -> Config,
    port: u16,
    /// Part of the daemons' configurations.
    config: &'static str,
    /// Makes the surroundings, before any daemon runs.
    make: fn(&World) -> Result<()>,
    /// Checks that the sessions met the surroundings.
    met: fn(&World) -> Result<()>,
}

impl Default for Around {
    fn default() -> Self {
        Around {
            family: Family::V4,
            host: |host| host,
            proxy: |config| config,
            port: PROXY_PORT,
            config: "",
            make: |_| Ok(()),
            met: |_| Ok(()),
        }
    }
}

fn words(host: &Host, program: &str, text: &str) -> Result<String> {
    let words: Vec<_> = text.split_whitespace().collect();
    host.output(program, &words)
}

fn everywhere(w: &World, program: &str, text: &str) -> Result<()> {
    let run = |role: &Role| words(w.lab.host(*role), program, text).map(drop);
    Role::ALL.iter().try_for_each(run)
}

/// Builds a world without traffic, with daemons that were started last.
fn world(name: &str, (mode, roles): (&'static str, &[Role]), around: &Around) -> Result<World> {
    let lab: Builder = Lab::builder(name).hosts(around.host);
    let mut w = World::with(lab, around.family, &[], "", around.proxy)?;
    w.mode = mode;
    (around.make)(&w)?;
    let config = format!("{DECLARED}{}", around.config);
    let configs = roles.iter().map(|role| (*role, config.clone()));
    let started = w.fleet.start_all(&w.lab, configs)?;
    w.daemons = roles.iter().copied().zip(started).collect();
    Ok(w)
}

/// Opens sessions, and removes the proxy as soon as that is possible.
fn removed(w: &World, port: u16, plan: &Plan) -> Result<Group> {
    let group = w.open_at(port, 3, plan)?;
    group.run();
    group.wait_progress(MIB)?;
    let mut said = Value::Null;
    wait::until("the proxy to be removable", SETTLED, || {
        said = w.remove(&["--all", "--dry-run"]).ok()?;
        (said["summary"]["removable"] == 3).then_some(())
    })
    .with_context(|| format!("{said:#}\n{}", w.state()))?;
    // Busy processors may delay the last of what the proxy holds.
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    ensure!(done["summary"]["removed"] == 3, "{done:#}\n{}", w.state());
    Ok(group)
}

/// Sessions lose the proxy in both modes, and go on without its process.
fn leaves(name: &str, around: &Around) -> Result<()> {
    for mode in MODES {
        let mut w = world(name, mode, around)?;
        leaves_in(&mut w, around).with_context(|| format!("{name}, {}", mode.0))?;
        w.finish()?;
    }
    Ok(())
}

fn leaves_in(w: &mut World, around: &Around) -> Result<()> {
    let group = removed(w, around.port, &Plan::default())?;
    group.wait_progress(2 * MIB)?;
    (around.met)(w)?;
    drop(w.haproxy.take());
    group.wait_progress(2 * MIB)?;
    w.no_resets()?;
    all_intact(&group.finish()?).map(drop)
}

#[test]
fn syn_cookies() -> Result<()> {
    leaves(
        "cookies",
        &Around {
            host: |host| host.sysctl("net.ipv4.tcp_syncookies", "2"),
            met: |w| {
                for host in [&w.lab.proxy, &w.lab.server] {
                    let received = counters::tcp(host)?["TcpExt.SyncookiesRecv"];
                    ensure!(received >= 3, "{received} cookies at {}", host.name());
                }
                Ok(())
            },
            ..Around::default()
        },
    )
}

#[test]
fn sockets_bound_to_a_device() -> Result<()> {
    leaves(
        "bound",
        &Around {
            port: 8081,
            proxy: |config| {
                let config = config.line("bind 10.0.2.1:8081 interface eth0");
                config.line("source 0.0.0.0 interface eth0")
            },
            ..Around::default()
        },
    )
}

/// Bytes that a class of a queueing discipline has sent.
fn sent_by_class(host: &Host) -> Result<u64> {
    let text = words(host, "tc", "-s class show dev eth0")?;
    let mut words = text.split_whitespace().skip_while(|word| *word != "Sent");
    let sent = words.nth(1).and_then(|word| word.parse().ok());
    sent.with_context(|| format!("no bytes: {text}"))
}

#[test]
fn a_hierarchical_token_bucket() -> Result<()> {
    leaves(
        "htb",
        &Around {
            make: |w| {
                everywhere(w, "tc", "qdisc add dev eth0 root handle 1: htb default 1")?;
                let class =
                    "class add dev eth0 parent 1: classid 1:1 htb rate 200mbit quantum 60000";
                everywhere(w, "tc", class)
            },
            met: |w| {
                for role in Role::ALL {
                    let sent = sent_by_class(w.lab.host(role))?;
                    ensure!(sent > 3 * MIB, "{role:?} sent {sent}");
                }
                Ok(())
            },
            ..Around::default()
        },
    )
}

/// Redirects packets that arrive to another device, as it is done to shape them.
fn redirected(w: &World) -> Result<()> {
    everywhere(w, "ip", "link add ifb0 type ifb")?;
    everywhere(w, "ip", "link set ifb0 up")?;
    everywhere(w, "tc", "qdisc add dev eth0 clsact")?;
    let filter = "filter add dev eth0 ingress pref 10 protocol all u32 match u32 0 0 \
                  action mirred egress redirect dev ifb0";
    everywhere(w, "tc", filter)
}

fn came_redirected(w: &World) -> Result<()> {
    for role in [Role::Client, Role::Server] {
        let text = words(w.lab.host(role), "ip", "-s -j link show ifb0")?;
        let json: Value = serde_json::from_str(&text)?;
        let bytes = json[0]["stats64"]["tx"]["bytes"].as_u64();
        ensure!(bytes > Some(3 * MIB), "{role:?}: {text}");
    }
    Ok(())
}

#[test]
fn arriving_packets_redirected_by_an_ifb() -> Result<()> {
    for (name, config) in [
        ("ifb", ""),
        ("ifbclsact", "[data_plane]\nattach = \"clsact\"\n"),
    ] {
        let around = Around {
            config,
            make: redirected,
            met: came_redirected,
            ..Around::default()
        };
        leaves(name, &around)?;
    }
    Ok(())
}

#[test]
fn an_mtu_of_9000() -> Result<()> {
    leaves(
        "jumbo",
        &Around {
            host: |host| host.mtu(9000),
            met: |w| {
                let text = words(&w.lab.client, "ss", "-Htin state established dport = :8080")?;
                ensure!(text.contains(" mss:89"), "{text}");
                Ok(())
            },
            ..Around::default()
        },
    )
}

/// Attributes of a link that `ip` of Debian 12 does not know: the longest packets of IPv4 that are
/// sent and received (`IFLA_GSO_IPV4_MAX_SIZE`, `IFLA_GRO_IPV4_MAX_SIZE`).
const IPV4_SIZES: [u16; 2] = [63, 64];

/// Returns the message that sets the longest packets of IPv4 of a link (`RTM_NEWLINK`).
fn ipv4_sizes(index: u32, bytes: u32) -> Vec<u8> {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    let mut body = Vec::new();
    body.extend(libc::RTM_NEWLINK.to_ne_bytes());
    body.extend(flags.to_ne_bytes());
    // The sequence number and the port, and the beginning of an ifinfomsg.
    body.extend([0; 8 + 4]);
    body.extend(index.to_ne_bytes());
    body.extend([0; 8]);
    for attribute in IPV4_SIZES {
        body.extend(8_u16.to_ne_bytes());
        body.extend(attribute.to_ne_bytes());
        body.extend(bytes.to_ne_bytes());
    }
    let length = size_of::<u32>() + body.len();
    [&(length as u32).to_ne_bytes()[..], &body].concat()
}

fn set_ipv4_sizes(host: &Host, device: &'static str, bytes: u32) -> Result<()> {
    let set = move || -> std::io::Result<()> {
        let index = nix::net::if_::if_nametoindex(device)?;
        let (domain, protocol) = (libc::AF_NETLINK.into(), libc::NETLINK_ROUTE.into());
        let mut socket = Socket::new(domain, Type::RAW, Some(protocol))?;
        socket.send(&ipv4_sizes(index, bytes))?;
        let mut answer = [0; 20];
        socket.read_exact(&mut answer)?;
        // The error code follows the header: 0, or a negative number.
        match i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]) {
            0 => Ok(()),
            code => Err(std::io::Error::from_raw_os_error(-code)),
        }
    };
    host.run(set)
        .with_context(|| format!("failed to set the sizes of {device} on {}", host.name()))
}

/// Lets all links carry packets that are longer than 64 KiB (BIG TCP).
fn with_long_packets(w: &World) -> Result<()> {
    let sizes = "gso_max_size 131072 gro_max_size 131072";
    for role in Role::ALL {
        for (host, device) in [(w.lab.host(role), "eth0"), (&w.lab.router, role.name())] {
            words(host, "ip", &format!("link set {device} {sizes}"))?;
            set_ipv4_sizes(host, device, 131_072)?;
        }
    }
    Ok(())
}

fn were_long(w: &World) -> Result<()> {
    let file = w.lab.client.dir().join("eth0.pcap0");
    let file = file.to_string_lossy();
    let capture = format!("-nr {file} -c 1 greater 65600");
    let text = words(&w.lab.client, "tcpdump", &capture)?;
    ensure!(!text.is_empty(), "no packet was so long");
    Ok(())
}

#[test]
fn packets_longer_than_64_kib() -> Result<()> {
    for family in [Family::V6, Family::V4] {
        let around = Around {
            family,
            make: with_long_packets,
            met: were_long,
            ..Around::default()
        };
        leaves("bigtcp", &around).with_context(|| format!("{family:?}"))?;
    }
    Ok(())
}

/// A link fails for as long as an end takes to send the same data three times.
#[test]
fn a_link_that_fails_and_recovers() -> Result<()> {
    for mode in MODES {
        let mut w = world("flap", mode, &Around::default())?;
        let group = removed(&w, PROXY_PORT, &Plan::gentle())?;
        for port in Role::ALL {
            if mode.0 == "bypass" && port == Role::Proxy {
                continue;
            }
            let sent = |w: &World| counters::tcp(&w.lab.client).map(|c| c["Tcp.RetransSegs"]);
            words(
                &w.lab.router,
                "ip",
                &format!("link set {} down", port.name()),
            )?;
            let before = sent(&w)?;
            wait::until("retransmissions", LIMIT, || {
                (sent(&w).ok()? > before + 3).then_some(())
            })?;
            words(&w.lab.router, "ip", &format!("link set {} up", port.name()))?;
            group
                .wait_progress(MIB)
                .with_context(|| format!("{mode:?} {port:?}: {}", w.state()))?;
        }
        drop(w.haproxy.take());
        group.wait_progress(MIB)?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}

/// The router's connection tracking forgets all connections, and drops packets that it regards as
/// invalid. It takes up connections of which it did not see the opening.
#[test]
fn connection_tracking_that_is_emptied() -> Result<()> {
    for mode in MODES {
        let mut w = world("emptied", mode, &Around::default())?;
        let router = &w.lab.router;
        let rules = "table inet own {\n chain forward {\n \
                     type filter hook forward priority 1; policy drop\n \
                     meta l4proto != tcp accept\n ct state invalid drop\n \
                     ct state new,established accept\n }\n}\n";
        router.input("nft", &["-f", "-"], rules)?;
        router.sysctl("net.netfilter.nf_conntrack_tcp_loose", "1")?;
        router.sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")?;
        let group = removed(&w, PROXY_PORT, &Plan::gentle())?;
        for _ in 0..3 {
            w.lab.router.output("conntrack", &["-F"])?;
            group
                .wait_progress(MIB)
                .with_context(|| format!("{mode:?} {}", w.state()))?;
        }
        drop(w.haproxy.take());
        w.lab.router.output("conntrack", &["-F"])?;
        group.wait_progress(MIB)?;
        w.no_resets()?;
        all_intact(&group.finish()?)?;
        w.finish()?;
    }
    Ok(())
}
