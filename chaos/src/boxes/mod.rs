//! Boxes on the paths of packets: rules of netfilter where these are sufficient, and otherwise a
//! device of user space.

mod device;
mod packet;

use anyhow::Result;
use dysco_netns::Host;
use dysco_netns::wire::{self, Wire};

use crate::plan::{BoxKind, BoxPlan, Place, address};
use crate::world::{DEVICE, World};
use device::Device;

/// Number of the first routing table of user-space boxes.
const TABLE: u32 = 1_000;

/// Places a box according to its plan. The box works as long as the returned wire lives.
pub(crate) fn place(world: &World, plan: &BoxPlan, seed: u64) -> Result<Option<Wire>> {
    match (plan.place, plan.kind) {
        (Place::Path { from, to }, BoxKind::Narrow { mtu }) => {
            narrow(world, Narrow { from, to, mtu }).map(|()| None)
        }
        (Place::Path { from, to }, kind) => match rules(kind) {
            Some(rules) => on_path(world, from, to, &rules).map(|()| None),
            None => in_user_space(&world.router, plan, (from, to), seed).map(Some),
        },
        (Place::Host { host }, kind) => match rules(kind) {
            Some(rules) => on_host(world.host(host)?, &rules).map(|()| None),
            None => Ok(None),
        },
    }
}

/// Rules of a box: rules for every packet before connection tracking, and rules after it.
struct Rules {
    early: Vec<String>,
    late: Vec<String>,
    /// True if the box needs strict connection tracking, which a sysctl sets.
    strict: bool,
}

const IS_SYN: &str = "tcp flags & (syn|ack) == syn";

/// Returns the netfilter rules of a kind, or `None` if netfilter cannot do it.
fn rules(kind: BoxKind) -> Option<Rules> {
    let late = |rule: String| {
        Some(Rules {
            early: vec![],
            late: vec![rule],
            strict: false,
        })
    };
    match kind {
        BoxKind::RejectByReset => late(format!("{IS_SYN} reject with tcp reset")),
        BoxKind::RejectByIcmp => late(format!("{IS_SYN} reject with icmpx admin-prohibited")),
        BoxKind::DropSyns => late(format!("{IS_SYN} drop")),
        BoxKind::Lose { permille } => late(format!("numgen random mod 1000 < {permille} drop")),
        BoxKind::DropInvalid => late("ct state invalid drop".into()),
        BoxKind::Stateful => Some(Rules {
            early: vec![],
            late: vec![
                "ct state invalid drop".into(),
                "ct state new tcp flags & (syn|ack) != syn drop".into(),
            ],
            strict: true,
        }),
        BoxKind::Synproxy => Some(Rules {
            early: vec![format!("{IS_SYN} notrack")],
            late: vec![
                "ct state invalid,untracked synproxy mss 1460 wscale 7 timestamp sack-perm".into(),
                "ct state invalid drop".into(),
            ],
            strict: true,
        }),
        _ => None,
    }
}

/// Adds rules at the router for packets between two hosts, in both directions.
fn on_path(world: &World, from: u8, to: u8, rules: &Rules) -> Result<()> {
    let mut text = String::new();
    for (a, b) in [(from, to), (to, from)] {
        for (v6, family) in [(false, "ip"), (true, "ip6")] {
            let (a, b) = (address(a, v6), address(b, v6));
            let pair = format!("{family} saddr {a} {family} daddr {b}");
            for rule in &rules.early {
                text +=
                    &format!("add rule inet chaos early iifname != \"{DEVICE}*\" {pair} {rule}\n");
            }
            for rule in &rules.late {
                text += &format!("add rule inet chaos boxes {pair} {rule}\n");
            }
        }
    }
    if rules.strict {
        world
            .router
            .sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
    }
    world.router.input("nft", &["-f", "-"], &text).map(drop)
}

/// Adds rules on a host for the packets that it receives.
fn on_host(host: &Host, rules: &Rules) -> Result<()> {
    let lines = |rules: &[String]| {
        let lines = rules
            .iter()
            .map(|rule| format!("meta l4proto tcp {rule}\n"));
        lines.collect::<String>()
    };
    let text = format!(
        "table inet guard {{\n\
         chain early {{ type filter hook prerouting priority raw\n{}}}\n\
         chain late {{ type filter hook input priority 0\n{}}}\n}}\n",
        lines(&rules.early),
        lines(&rules.late),
    );
    host.input("nft", &["-f", "-"], &text)?;
    if rules.strict {
        host.sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
    }
    Ok(())
}

/// A path that carries short packets only.
#[derive(Clone, Copy)]
pub(crate) struct Narrow {
    from: u8,
    to: u8,
    mtu: u32,
}

/// Makes the router's routes between two hosts narrow: the router answers longer packets with ICMP
/// errors. A link that is down has no routes, and gets them when it comes up.
fn narrow(world: &World, path: Narrow) -> Result<()> {
    world.remember(path);
    for (a, b) in path.ways() {
        let table = table(a, b);
        for (v6, family) in FAMILIES {
            // The routes apply only to packets from one of the two hosts.
            let (a, b) = (address(a, v6).to_string(), address(b, v6).to_string());
            let rule = [
                family, "rule", "add", "pref", "300", "from", &a, "to", &b, "lookup", &table,
            ];
            world.router.output("ip", &rule)?;
        }
    }
    let made = path.ways().map(|(_, b)| path.restore(&world.router, b));
    made.into_iter().collect()
}

const FAMILIES: [(bool, &str); 2] = [(false, "-4"), (true, "-6")];

fn table(a: u8, b: u8) -> String {
    (2 * TABLE + u32::from(a) * 16 + u32::from(b)).to_string()
}

impl Narrow {
    fn ways(self) -> [(u8, u8); 2] {
        [(self.from, self.to), (self.to, self.from)]
    }

    /// Makes the routes to a host narrow, if it is at one of the ends. The kernel has removed them if
    /// the host's link was down.
    pub(crate) fn restore(self, router: &Host, host: u8) -> Result<()> {
        let mtu = self.mtu.to_string();
        for (a, b) in self.ways().into_iter().filter(|(_, b)| *b == host) {
            let (table, port) = (table(a, b), format!("h{b}"));
            for (v6, family) in FAMILIES {
                let b = address(b, v6).to_string();
                let route = [
                    family, "route", "replace", &b, "dev", &port, "mtu", "lock", &mtu, "table",
                    &table,
                ];
                router.output("ip", &route)?;
            }
        }
        Ok(())
    }
}

/// Routes packets between two hosts through a device of this process.
fn in_user_space(router: &Host, plan: &BoxPlan, (from, to): (u8, u8), seed: u64) -> Result<Wire> {
    let name = format!("{DEVICE}{}", plan.number);
    let table = (TABLE + u32::from(plan.number)).to_string();
    let file = wire::device(router, &name)?;
    router.output("ip", &["link", "set", &name, "up", "txqueuelen", "20000"])?;
    router.sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "0")?;
    for (v6, family) in [(false, "-4"), (true, "-6")] {
        let route = [
            family, "route", "add", "default", "dev", &name, "table", &table,
        ];
        router.output("ip", &route)?;
        let back = [
            family, "rule", "add", "pref", "100", "iif", &name, "lookup", "main",
        ];
        router.output("ip", &back)?;
        for (a, b) in [(from, to), (to, from)] {
            let (a, b) = (address(a, v6).to_string(), address(b, v6).to_string());
            let rule = [
                family, "rule", "add", "pref", "200", "from", &a, "to", &b, "ipproto", "tcp",
                "lookup", &table,
            ];
            router.output("ip", &rule)?;
        }
    }
    let mut device = Device::new(plan.kind, seed ^ u64::from(plan.number));
    Wire::through(router, &name, file, move |bytes, out| {
        device.pass(bytes, out)
    })
}
