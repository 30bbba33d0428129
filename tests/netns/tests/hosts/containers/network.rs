//! A container host: the proxy's host of a lab with a bridge, as Docker makes it. The proxy runs in
//! an inner network namespace behind the bridge. Its port is published by DNAT, and its connections
//! leave by masquerading.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::{self, Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan, Server};
use dysco_netns::{Family, Lab, Process, Program, Role, wait};
use serde_json::Value;

/// Name of the inner namespace.
pub(super) const INNER: &str = "web";
/// Published port, which is the same in the inner namespace.
pub(super) const PORT: u16 = 8080;
/// Port of the server.
pub(super) const SERVER: u16 = 9000;
/// Time limit for what a look of `dyscod` finds, and for the start of an instance.
pub(super) const LIMIT: Duration = Duration::from_secs(90);

/// Rules of the container host.
const PUBLISHED: &str = "
table ip published {
  chain inward {
    type nat hook prerouting priority dstnat
    iifname eth0 tcp dport 8080 dnat to 172.17.0.2:8080
  }
  chain outward {
    type nat hook postrouting priority srcnat
    ip saddr 172.17.0.0/16 oifname != br0 masquerade
  }
}
table ip6 published {
  chain inward {
    type nat hook prerouting priority dstnat
    iifname eth0 tcp dport 8080 dnat to [fd00:17::2]:8080
  }
  chain outward {
    type nat hook postrouting priority srcnat
    ip6 saddr fd00:17::/64 oifname != br0 masquerade
  }
}
";

/// Commands that make the network of the inner namespace.
const INWARD: [&str; 9] = [
    "link add outer type veth peer name eth0 netns web",
    "link set outer master br0 up",
    "-n web link set lo up",
    "-n web link set eth0 up",
    "-n web address add 172.17.0.2/16 dev eth0",
    "-n web address add fd00:17::2/64 dev eth0 nodad",
    "-n web route add default via 172.17.0.1",
    "-n web -6 route add default via fd00:17::1",
    "netns list",
];

/// Start of HAProxy in the inner namespace.
#[derive(Clone, Copy)]
pub(super) enum Start {
    /// Without the shim.
    Plain,
    /// Under the shim, by `dyscoctl run`.
    Shim,
    /// Under the shim, with mounts of its own in which no socket of `dyscod` is.
    Mounts,
}

pub(super) struct World {
    pub lab: Lab,
    pub fleet: Fleet,
    pub server: Server,
    pub daemon: Option<Daemon>,
    pub family: Family,
    /// Address to which clients connect.
    pub entry: SocketAddr,
    /// Address to which the proxy connects.
    pub backend: SocketAddr,
}

impl World {
    /// Builds the container host with a published port, without the inner namespace.
    pub(super) fn new(name: &str, family: Family) -> Result<World> {
        let world = World::unpublished(name, family)?;
        world.lab.proxy.input("nft", &["-f", "-"], PUBLISHED)?;
        Ok(world)
    }

    /// Builds the container host, without translation of addresses.
    pub(super) fn unpublished(name: &str, family: Family) -> Result<World> {
        let lab = Lab::builder(name).build()?;
        let host = &lab.proxy;
        for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
            host.sysctl(key, "1")?;
        }
        let outward = [
            "link add br0 type bridge",
            "link set br0 up",
            "address add 172.17.0.1/16 dev br0",
            "address add fd00:17::1/64 dev br0 nodad",
        ];
        outward.iter().try_for_each(|words| ip(&lab, words))?;
        let fleet = Fleet::new(&lab)?;
        let server = Server::start(&lab.server, Role::Server.at(family, SERVER))?;
        Ok(World {
            lab,
            fleet,
            server,
            daemon: None,
            family,
            entry: Role::Proxy.at(family, PORT),
            backend: Role::Server.at(family, SERVER),
        })
    }

    /// Makes the inner namespace.
    pub(super) fn make_inner(&self) -> Result<()> {
        ip(&self.lab, "netns add web")?;
        self.connect_inner()
    }

    /// Gives the inner namespace its network.
    pub(super) fn connect_inner(&self) -> Result<()> {
        INWARD.iter().try_for_each(|words| ip(&self.lab, words))
    }

    /// Writes the configuration of the host's `dyscod`, with this value of `namespaces`.
    pub(super) fn configure(&self, namespaces: &str) -> Result<PathBuf> {
        let file = self.fleet.prepare(&self.lab, Role::Proxy, "")?;
        let text = fs::read_to_string(&file)?;
        let host = format!("[host]\nnamespaces = {namespaces}\n");
        fs::write(&file, text.replacen("[host]\n", &host, 1))?;
        Ok(file)
    }

    /// Starts `dyscod` on the container host, in the host's own namespace.
    pub(super) fn start(&mut self, namespaces: &str) -> Result<()> {
        let file = self.configure(namespaces)?;
        self.daemon = Some(self.fleet.start_by(&self.lab.proxy, &file)?);
        Ok(())
    }

    /// Returns what `dyscod` tells of the namespaces.
    pub(super) fn namespaces(&self) -> Result<Vec<Value>> {
        let told = self.fleet.json(&self.lab.proxy, &["namespaces"])?;
        told.as_array().cloned().context("no list")
    }

    /// Waits until the instance for the inner namespace answers. Returns its report.
    pub(super) fn wait_served(&self) -> Result<Value> {
        wait::until("the instance to answer", LIMIT, || {
            let all = self.namespaces().ok()?;
            let inner = all.into_iter().find(|n| n["name"] == INNER)?;
            inner["sessions"].is_u64().then_some(inner)
        })
        .with_context(|| self.log())
    }

    /// Starts HAProxy in the inner namespace.
    pub(super) fn haproxy(&self, start: Start) -> Result<Process> {
        let listen = match self.family {
            Family::V4 => ([172, 17, 0, 2], PORT).into(),
            Family::V6 => format!("[fd00:17::2]:{PORT}").parse()?,
        };
        let config = Config::tcp(listen, self.backend);
        let program = config.command(&self.lab.proxy)?.named("haproxy");
        let program = match start {
            Start::Plain => program,
            Start::Shim => {
                let words = ["--namespace", INNER, "run", "--"];
                program.behind(self.fleet.dyscoctl_path(), &words)
            }
            Start::Mounts => {
                let shim = fleet::built("libdysco_splice_preload.so")?;
                let alone = "mount -t tmpfs none /run/dysco && exec env LD_PRELOAD=\"$0\" \"$@\"";
                let words = ["-c", alone, &shim.to_string_lossy()];
                let program = program.behind("sh".as_ref(), &words);
                program.behind("unshare".as_ref(), &["--mount"])
            }
        };
        let net = format!("--net=/run/netns/{INNER}");
        let program = program.behind("nsenter".as_ref(), &[&net]);
        let mut haproxy = self.lab.proxy.spawn(program)?;
        haproxy.wait_ready("HAProxy to listen", || {
            let sockets = self.inside("ss", &["-Htln"]);
            sockets.is_ok_and(|text| text.contains(&format!(":{PORT}")))
        })?;
        Ok(haproxy)
    }

    /// Runs a command in the inner namespace.
    pub(super) fn inside(&self, program: &str, args: &[&str]) -> Result<String> {
        let net = format!("--net=/run/netns/{INNER}");
        let words = [&[net.as_str(), program], args].concat();
        self.lab.proxy.output("nsenter", &words)
    }

    /// Opens sessions from outside.
    pub(super) fn open(&self, count: usize) -> Result<Group> {
        let plan = Plan {
            rate: Some(4_000_000),
            ..Plan::default()
        };
        let group = Group::open(&self.lab.client, &self.server, self.entry, count, &plan)?;
        group.run();
        group.wait_progress(1 << 20)?;
        Ok(group)
    }

    /// Runs `dyscoctl remove-middlebox self --all --wait` with these words on the container host,
    /// until all sessions are proven and removed.
    pub(super) fn remove(&self, count: usize, words: &[&str]) -> Result<Value> {
        let mut removed = 0;
        let all = ["remove-middlebox", "self", "--all", "--wait", "-o", "json"];
        let all = [&all, words].concat();
        let mut last = Value::Null;
        wait::until("the sessions to lose their proxy", LIMIT, || {
            let ran = self.fleet.try_dyscoctl(&self.lab.proxy, &all).ok()?;
            last = serde_json::from_str(&ran.stdout).unwrap_or_else(|_| ran.stderr.into());
            removed += last["summary"]["removed"].as_u64().unwrap_or_default();
            (removed == count as u64).then_some(())
        })
        .with_context(|| format!("{last:#}\n{}", self.log()))?;
        Ok(last)
    }

    /// Checks that no connection in the inner namespace belongs to HAProxy any more. The instance
    /// holds the ports of those to the server.
    pub(super) fn no_sockets(&self) -> Result<()> {
        let left = self.inside("ss", &["-Htnp", "state", "established"])?;
        ensure!(!left.contains("haproxy"), "{left}");
        Ok(())
    }

    /// Log of the host's `dyscod` and its instances.
    pub(super) fn log(&self) -> String {
        let log = fs::read_to_string(self.lab.proxy.dir().join("dyscod.log"));
        log.unwrap_or_default()
    }

    /// Ends everything, and checks that nothing is left.
    pub(super) fn finish(self) -> Result<()> {
        self.lab.finish((self.daemon, self.server))
    }
}

/// Runs `ip` on the container host.
pub(super) fn ip(lab: &Lab, words: &str) -> Result<()> {
    let words: Vec<_> = words.split_whitespace().collect();
    lab.proxy.output("ip", &words).map(drop)
}

/// Returns `dyscod` on a host with this configuration.
pub(super) fn dyscod(file: &std::path::Path) -> Result<Program> {
    Ok(Program::new(fleet::built("dyscod")?)
        .arg("--config")
        .arg(file))
}
