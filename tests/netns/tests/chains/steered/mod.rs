//! A client, a server and two or four strict firewalls around one router, each with `dyscod`.
//! Sessions are steered through the firewalls' hosts, or past them.

pub mod beside;
pub mod faults;
pub mod forgotten;
pub mod left;
pub mod policy;
pub mod ways;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::fleet::built;
use dysco_netns::stream::{Group, Plan, Server};
use dysco_netns::{Family, Host, Process, Program, Ran, require_root, wait};
use serde_json::{Value, json};

pub const PORT: u16 = 9000;
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A host of the lab, other than the router.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    Client,
    Server,
    Fw1,
    Fw2,
    /// Exists only in a lab with a proxy.
    Proxy,
    /// Exists only in a lab with four firewalls.
    Fw3,
    /// Exists only in a lab with four firewalls.
    Fw4,
}

impl At {
    pub const ALL: [At; 4] = [At::Client, At::Server, At::Fw1, At::Fw2];
    pub const FIREWALLS: [At; 2] = [At::Fw1, At::Fw2];
    pub const FOUR: [At; 6] = [At::Client, At::Server, At::Fw1, At::Fw2, At::Fw3, At::Fw4];

    pub fn name(self) -> &'static str {
        match self {
            At::Client => "client",
            At::Server => "server",
            At::Fw1 => "fw1",
            At::Fw2 => "fw2",
            At::Proxy => "proxy",
            At::Fw3 => "fw3",
            At::Fw4 => "fw4",
        }
    }

    fn is_firewall(self) -> bool {
        matches!(self, At::Fw1 | At::Fw2 | At::Fw3 | At::Fw4)
    }

    pub fn address(self, family: Family) -> IpAddr {
        address(self, family, 1)
    }
}

/// Chains to take in sequence: one firewall, its replacement, two firewalls, none; one and none
/// again.
pub const TO_AND_FRO: [&[At]; 6] = [
    &[At::Fw1],
    &[At::Fw2],
    &[At::Fw2, At::Fw1],
    &[],
    &[At::Fw1],
    &[],
];

/// Hosts whose daemon dies in a change to the first firewall, each with the point.
pub const DEATHS: [(At, &str); 7] = [
    (At::Client, "die:Cut"),
    (At::Client, "die:Switched"),
    (At::Client, "die:Complete"),
    (At::Server, "die:Extended"),
    (At::Server, "die:Cut"),
    (At::Server, "die:Settled"),
    (At::Fw1, "die:Enlisted"),
];

fn address(at: At, family: Family, last: u8) -> IpAddr {
    let net = at as u8 + 1;
    match family {
        Family::V4 => IpAddr::from([10, 8, net, last]),
        Family::V6 => IpAddr::from([0xfd08, net.into(), 0, 0, 0, 0, 0, last.into()]),
    }
}

/// Rules that drop every packet of a connection that connection tracking did not see opening, and
/// count the dropped packets.
const FIREWALL: &str = "
table inet fw {
  counter dropped { }
  counter invalid { }
  counter passed { }
  chain forward {
    type filter hook forward priority 0; policy drop;
    meta l4proto != tcp accept
    ct state invalid counter name invalid drop
    ct state established counter name passed accept
    ct state new tcp flags & (fin|syn|rst|ack) == syn ct mark set 0x17 counter name passed accept
    counter name dropped
  }
}
";

pub struct Steered {
    all: Vec<At>,
    hosts: Vec<Host>,
    pub router: Host,
    daemons: Vec<Option<Process>>,
    traffic: Option<Server>,
    haproxy: Option<Process>,
    pub family: Family,
    dir: Option<tempfile::TempDir>,
}

impl Steered {
    pub fn new(family: Family) -> Result<Steered> {
        Steered::with_policy(family, "")
    }

    /// Builds a lab with four firewalls.
    pub fn of_four(family: Family) -> Result<Steered> {
        Steered::four_with_policy(family, "")
    }

    /// Builds a lab with four firewalls, and a policy on the client's host.
    pub fn four_with_policy(family: Family, policy: &str) -> Result<Steered> {
        Steered::of(&At::FOUR, family, policy, &[])
    }

    /// Builds a lab with a policy on the client's host.
    pub fn with_policy(family: Family, policy: &str) -> Result<Steered> {
        Steered::of(&At::ALL, family, policy, &[])
    }

    /// Builds a lab with a policy on the client's host, and no `dyscod` on the server's host.
    pub fn without_servers(family: Family, policy: &str) -> Result<Steered> {
        let daemons = [At::Client, At::Fw1, At::Fw2];
        Steered::with_daemons(&At::ALL, &daemons, family, policy, &[])
    }

    /// Builds a lab with settings of hosts: host, name and value.
    pub fn with_settings(
        family: Family,
        policy: &str,
        settings: &[(At, &str, &str)],
    ) -> Result<Steered> {
        Steered::of(&At::ALL, family, policy, settings)
    }

    /// Builds a lab with these hosts and settings.
    fn of(
        all: &[At],
        family: Family,
        policy: &str,
        settings: &[(At, &str, &str)],
    ) -> Result<Steered> {
        Steered::with_daemons(all, all, family, policy, settings)
    }

    fn with_daemons(
        all: &[At],
        daemons: &[At],
        family: Family,
        policy: &str,
        settings: &[(At, &str, &str)],
    ) -> Result<Steered> {
        require_root()?;
        let dir = tempfile::Builder::new()
            .prefix("dysco-steered-")
            .tempdir()?;
        let make = |name: &str| Host::new(name, &dir.path().join(name));
        let hosts = all.iter().map(|at| make(at.name()));
        let mut world = Steered {
            all: all.to_vec(),
            hosts: hosts.collect::<Result<_>>()?,
            router: make("router")?,
            daemons: Vec::new(),
            traffic: None,
            haproxy: None,
            family,
            dir: Some(dir),
        };
        world.connect(all)?;
        for (at, key, value) in settings {
            world.host(*at).sysctl(key, value)?;
        }
        let server = SocketAddr::new(At::Server.address(family), PORT);
        world.traffic = Some(Server::start(world.host(At::Server), server)?);
        world.start_daemons(daemons, policy)?;
        Ok(world)
    }

    /// Builds a lab with hosts whose daemons fail on purpose from their start on.
    pub fn failing(family: Family, policy: &str, faults: &[(At, &str)]) -> Result<Steered> {
        let mut world = Steered::with_daemons(&At::ALL, &[], family, policy, &[])?;
        for (at, words) in faults {
            world.set_faults(*at, words)?;
        }
        world.start_those(&At::ALL)?;
        Ok(world)
    }

    /// Builds a lab in which the interface of one host is a bridge, whose packets netfilter sees
    /// before the data plane.
    pub fn bridged(family: Family, at: At) -> Result<Steered> {
        let mut world = Steered::with_daemons(&At::ALL, &[], family, "", &[])?;
        let host = world.host(at);
        let mut ip = String::from(
            "link set eth0 down\nlink set eth0 name port0\nlink add eth0 type bridge\n\
             link set port0 master eth0\nlink set port0 up\nlink set eth0 up\n",
        );
        for (family, bits, nodad) in [(Family::V4, 24, ""), (Family::V6, 64, " nodad")] {
            let (own, gateway) = (address(at, family, 1), address(at, family, 254));
            ip += &format!("addr flush dev port0\naddr add {own}/{bits} dev eth0{nodad}\n");
            ip += &format!("route add default via {gateway}\n");
        }
        host.input("ip", &["-batch", "-"], &ip)?;
        world.filter_bridged(at, true)?;
        world.start_those(&At::ALL)?;
        Ok(world)
    }

    /// Sets whether a host's netfilter sees the packets of its bridges.
    pub fn filter_bridged(&self, at: At, on: bool) -> Result<()> {
        let value = if on { "1" } else { "0" };
        let keys = ["iptables", "ip6tables"].into_iter();
        let mut keys = keys.map(|key| format!("net.bridge.bridge-nf-call-{key}"));
        keys.try_for_each(|key| self.host(at).sysctl(&key, value))
    }

    pub fn host(&self, at: At) -> &Host {
        &self.hosts[self.place(at)]
    }

    /// Index of a host that this lab has.
    fn place(&self, at: At) -> usize {
        let place = self.all.iter().position(|a| *a == at);
        place.unwrap_or(usize::MAX)
    }

    /// Firewalls of this lab.
    pub fn firewalls(&self) -> impl Iterator<Item = At> + '_ {
        self.all.iter().copied().filter(|at| at.is_firewall())
    }

    fn connect(&self, all: &[At]) -> Result<()> {
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

    fn join(&self, at: At) -> Result<()> {
        let (host, port) = (self.host(at), at.name());
        let netns = host.netns().display();
        let mut far = format!("link add {port} type veth peer name eth0 netns {netns}\n");
        let mut near = String::from("link set eth0 up\n");
        for (family, bits, nodad) in [(Family::V4, 24, ""), (Family::V6, 64, " nodad")] {
            let (own, gateway) = (address(at, family, 1), address(at, family, 254));
            far += &format!("addr add {gateway}/{bits} dev {port}{nodad}\n");
            near += &format!("addr add {own}/{bits} dev eth0{nodad}\n");
            near += &format!("route add default via {gateway}\n");
        }
        far += &format!("link set {port} up\n");
        self.router.input("ip", &["-batch", "-"], &far)?;
        host.input("ip", &["-batch", "-"], &near).map(drop)
    }

    /// Sets the MTU of a host's link in both directions.
    pub fn set_mtu(&self, at: At, bytes: u32) -> Result<()> {
        let bytes = bytes.to_string();
        for (host, link) in [(self.host(at), "eth0"), (&self.router, at.name())] {
            host.output("ip", &["link", "set", link, "mtu", &bytes])?;
        }
        Ok(())
    }

    fn start_daemons(&mut self, those: &[At], policy: &str) -> Result<()> {
        let authority = self.authority();
        let words = ["pki", "init", "--dir", &authority];
        self.router.output(&program("dyscoctl")?, &words)?;
        self.write_policy(policy)?;
        self.daemons.resize_with(self.all.len(), || None);
        self.start_those(those)
    }

    fn start_those(&mut self, those: &[At]) -> Result<()> {
        for at in those {
            self.configure(*at)?;
            let (place, daemon) = (self.place(*at), self.start(*at)?);
            self.daemons[place] = Some(daemon);
        }
        Ok(())
    }

    fn authority(&self) -> String {
        self.path("pki").display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        let dir = self.dir.as_ref().map(|dir| dir.path().to_owned());
        dir.unwrap_or_default().join(name)
    }

    fn policy_file(&self) -> PathBuf {
        self.path("policy.toml")
    }

    fn configure(&self, at: At) -> Result<()> {
        let (host, authority) = (self.host(at), self.authority());
        let keys = host.dir().join("pki").display().to_string();
        let own = [Family::V4, Family::V6].map(|family| at.address(family).to_string());
        let mut words = vec!["pki", "issue", "--dir", &authority, "--name", at.name()];
        words.extend(["--out", &keys, "--address", &own[0], "--address", &own[1]]);
        host.output(&program("dyscoctl")?, &words)?;
        let policy = match at {
            At::Client => format!("[chain]\npolicy = \"{}\"\n", self.policy_file().display()),
            At::Proxy => left::DECLARED.to_owned(),
            _ => String::new(),
        };
        let text = format!(
            "[host]\naddresses = {own:?}\ninterfaces = [\"eth0\"]\n\n\
             [control]\npki_dir = \"{keys}\"\n\n{policy}"
        );
        fs::write(host.dir().join("dyscod.toml"), text).context("failed to write a configuration")
    }

    /// Starts a host's `dyscod`, which may fail on purpose.
    fn start(&self, at: At) -> Result<Process> {
        let host = self.host(at);
        let faults = host.dir().join("faults").display().to_string();
        let program_ = Program::new(program("dyscod")?)
            .arg("--config")
            .arg(host.dir().join("dyscod.toml"))
            .env("DYSCOD_FAULTS", format!("@{faults}"));
        let mut daemon = host.spawn(program_)?;
        daemon.wait_ready("dyscod to answer", || self.ctl(at, &["status"]).is_ok())?;
        Ok(daemon)
    }

    /// Sets the faults of a host's daemon and its successors.
    pub fn set_faults(&self, at: At, words: &str) -> Result<()> {
        let dir = self.host(at).dir();
        let (file, new) = (dir.join("faults"), dir.join("faults.new"));
        fs::write(&new, words)?;
        fs::rename(&new, &file).context("failed to write the faults")
    }

    /// Waits until a host's `dyscod` has died.
    pub fn wait_dead(&mut self, at: At) -> Result<()> {
        wait::until("dyscod to die", PATIENCE, || {
            self.ctl(at, &["status"]).is_err().then_some(())
        })?;
        let place = self.place(at);
        drop(self.daemons[place].take());
        Ok(())
    }

    /// Ends a host's `dyscod` as a crash would.
    pub fn kill(&mut self, at: At) -> Result<()> {
        let place = self.place(at);
        drop(self.daemons[place].take());
        Ok(())
    }

    /// Starts a host's `dyscod` again.
    pub fn restart(&mut self, at: At) -> Result<()> {
        let daemon = self.start(at)?;
        let place = self.place(at);
        self.daemons[place] = Some(daemon);
        Ok(())
    }

    pub fn ctl(&self, at: At, words: &[&str]) -> Result<String> {
        self.host(at).output(&program("dyscoctl")?, words)
    }

    pub fn try_ctl(&self, at: At, words: &[&str]) -> Result<Ran> {
        self.host(at).ran(&program("dyscoctl")?, words)
    }

    pub fn json(&self, at: At, words: &[&str]) -> Result<Value> {
        let text = self.ctl(at, &[words, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Returns the JSON of a command, whatever its exit code.
    pub fn try_json(&self, at: At, words: &[&str]) -> Result<Value> {
        let ran = self.try_ctl(at, &[words, &["-o", "json"]].concat())?;
        serde_json::from_str(&ran.stdout).with_context(|| format!("no JSON: {ran:?}"))
    }

    pub fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let server = self.traffic.as_ref().context("no server")?;
        let to = SocketAddr::new(At::Server.address(self.family), PORT);
        Group::open(self.host(At::Client), server, to, count, plan)
    }

    /// Name of a session on the client's host.
    pub fn name(&self, local: SocketAddr) -> String {
        let to = SocketAddr::new(At::Server.address(self.family), PORT);
        format!("{local}>{to}")
    }

    pub fn ip(&self, at: At) -> String {
        at.address(self.family).to_string()
    }

    /// Gives one session another chain. Returns the report, whatever the outcome.
    pub fn reconfigure(&self, session: &str, chain: &[At], more: &[&str]) -> Result<Value> {
        self.reconfigure_on(At::Client, session, chain, more)
    }

    /// Gives one session another chain, by a request on any host.
    pub fn reconfigure_on(
        &self,
        at: At,
        session: &str,
        chain: &[At],
        more: &[&str],
    ) -> Result<Value> {
        let hosts: Vec<_> = chain.iter().map(|at| self.ip(*at)).collect();
        let hosts = hosts.join(",");
        let words = ["reconfigure", session, "--chain", &hosts, "--wait"];
        let done = self.try_json(at, &[&words[..], more].concat())?;
        Ok(done["changes"][0].clone())
    }

    /// Gives one session another chain, which must succeed.
    pub fn rechain(&self, session: &str, chain: &[At]) -> Result<Value> {
        let done = self.reconfigure(session, chain, &[])?;
        ensure!(
            done["outcome"] == "changed",
            "{session} to {chain:?}: {done:#}\n{}",
            self.logs()
        );
        Ok(done)
    }

    /// Sessions that a host lists.
    pub fn sessions(&self, at: At) -> Result<Vec<Value>> {
        let all = self.json(at, &["sessions"])?;
        Ok(all.as_array().cloned().unwrap_or_default())
    }

    pub fn counted(&self, fw: At, counter: &str) -> Result<u64> {
        let words = ["-j", "list", "counter", "inet", "fw", counter];
        let json: Value = serde_json::from_str(&self.host(fw).output("nft", &words)?)?;
        let mut items = json["nftables"].as_array().into_iter().flatten();
        let packets = items.find_map(|item| item["counter"]["packets"].as_u64());
        packets.context("nft did not say the packets")
    }

    /// Makes a firewall refuse new sessions: it admits only sessions that it knows.
    pub fn lets_in_the_known(&self, fw: At) -> Result<()> {
        let rule =
            "insert rule inet fw forward ct mark != 0x17 tcp dport 9000 counter name dropped drop";
        let words: Vec<_> = rule.split(' ').collect();
        self.host(fw).output("nft", &words).map(drop)
    }

    /// Replaces one firewall by another in the only session, with its state.
    pub fn replace_with_state(&self, old: At, new: At) -> Result<()> {
        self.replace_with_state_on(At::Client, old, new)
    }

    /// Replaces one firewall by another with its state, by a request on any host.
    pub fn replace_with_state_on(&self, at: At, old: At, new: At) -> Result<()> {
        let done = self.replace_on(at, old, new, "conntrack")?;
        ensure!(done["outcome"] == "changed", "{done:#}\n{}", self.logs());
        Ok(())
    }

    /// Replaces one firewall by another, with state of these kinds. Returns the report, whatever
    /// the outcome.
    pub fn replace_on(&self, at: At, old: At, new: At, kinds: &str) -> Result<Value> {
        let (old, new) = (self.ip(old), self.ip(new));
        let words = ["replace-middlebox", &old, "--with", &new, "--wait"];
        let done = self.try_json(at, &[&words[..], &["--state", kinds]].concat())?;
        Ok(done["changes"][0].clone())
    }

    /// Number of packets that a firewall has refused so far.
    pub fn refused(&self, fw: At) -> Result<u64> {
        Ok(self.counted(fw, "dropped")? + self.counted(fw, "invalid")?)
    }

    /// Waits until data takes this chain and no other.
    pub fn wait_only_through(&self, chain: &[At]) -> Result<()> {
        wait::until("the chain to carry it all", PATIENCE, || {
            let before: Vec<_> = self.passed().ok()?;
            let carried = self.traffic_moves().ok()?;
            let after: Vec<_> = self.passed().ok()?;
            let mut each = self.firewalls().zip(before.iter().zip(&after));
            let right = each.all(|(fw, (before, after))| chain.contains(&fw) == (before != after));
            (carried && right).then_some(())
        })
    }

    /// Number of packets that each firewall has passed so far.
    pub fn passed(&self) -> Result<Vec<u64>> {
        self.firewalls()
            .map(|fw| self.counted(fw, "passed"))
            .collect()
    }

    /// True if the client has sent anything between two looks.
    fn traffic_moves(&self) -> Result<bool> {
        let sum = |sessions: Vec<Value>| -> u64 {
            let sent = sessions.iter().map(|s| s["bytes_out"].as_u64());
            sent.map(Option::unwrap_or_default).sum()
        };
        let before = sum(self.sessions(At::Client)?);
        wait::until("data to move", PATIENCE, || {
            (sum(self.sessions(At::Client).ok()?) > before).then_some(())
        })?;
        Ok(true)
    }

    /// Ends of all logs, for the report of a failure.
    pub fn logs(&self) -> String {
        let mut all = String::new();
        for at in self.all.iter().copied() {
            let log = self.host(at).dir().join("dyscod.log");
            let text = fs::read_to_string(log).unwrap_or_default();
            let lines: Vec<_> = text.lines().rev().take(25).collect();
            let status = self.json(at, &["status"]).unwrap_or_default();
            let counters = status["counters"].as_object().cloned().unwrap_or_default();
            let telling = counters.iter().filter(|(name, value)| {
                **value != json!(0) && (name.starts_with("chain_") || name.contains("dropped"))
            });
            let telling: Vec<_> = telling.map(|(n, v)| format!("{n}={v}")).collect();
            all += &format!("--- {at:?} {}\n", telling.join(" "));
            // These commands show the state of the sockets and the firewalls.
            for words in ["ss -Htin", "conntrack -L -p tcp", "nft list counters"] {
                let mut words = words.split(' ');
                let program = words.next().unwrap_or_default();
                let words: Vec<_> = words.collect();
                all += &self.host(at).output(program, &words).unwrap_or_default();
            }
            let sessions = self.sessions(at).unwrap_or_default();
            for session in sessions {
                all += &format!("{session}\n");
            }
            for line in lines.into_iter().rev() {
                all += &format!("{line}\n");
            }
        }
        all
    }

    pub fn chain_of(&self, session: &str) -> Result<Value> {
        let (local, _) = session.split_once('>').context("no session's name")?;
        let all = self.sessions(At::Client)?;
        let found = all.iter().find(|s| s["local"] == local);
        let chain = found.with_context(|| format!("no {session} in {all:#?}"))?["chain"].clone();
        Ok(if chain.is_null() { json!([]) } else { chain })
    }
}

fn program(name: &str) -> Result<String> {
    Ok(built(name)?.display().to_string())
}
