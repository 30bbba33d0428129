//! Two firewalls beside each other, between a client and a server:
//!
//! ```text
//!           ┌── fw1 ──┐
//!   client ─┤         ├─ server
//!           └── fw2 ──┘
//! ```
//!
//! Both are strict, and drop packets of unknown connections. The routes of the two ends select the
//! path, and `dyscod` runs on the firewalls.

mod network;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::stream::{Group, Plan, Server};
use dysco_netns::{Family, Folder, Host, Ran, require_root};
use serde_json::Value;

pub(crate) const PORT: u16 = 9000;
/// Port of the server as clients see it if the server's address is translated.
pub(crate) const SERVICE_PORT: u16 = 80;

/// One of the two firewalls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fw {
    One,
    Two,
}

impl Fw {
    pub(crate) fn other(self) -> Fw {
        match self {
            Fw::One => Fw::Two,
            Fw::Two => Fw::One,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Fw::One => "fw1",
            Fw::Two => "fw2",
        }
    }
}

pub(crate) struct Firewalls {
    pub client: Host,
    pub server: Host,
    hosts: [Host; 2],
    fleet: Fleet,
    daemons: Vec<Daemon>,
    traffic: Option<Server>,
    family: Family,
    translates: bool,
    folder: Folder,
}

fn address(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => IpAddr::from([10, 9, net, host]),
        Family::V6 => IpAddr::from([0xfd09, 0, 0, net.into(), 0, 0, 0, host.into()]),
    }
}

fn client_address(family: Family) -> IpAddr {
    address(family, 1, 1)
}

fn server_address(family: Family) -> IpAddr {
    address(family, 3, 1)
}

/// Address to which the firewalls translate the client's address.
fn masked_address(family: Family) -> IpAddr {
    address(family, 50, 1)
}

/// Address of the server as the client sees it.
fn service_address(family: Family) -> IpAddr {
    address(family, 60, 1)
}

impl Firewalls {
    /// Builds firewalls without address translation.
    pub(crate) fn new(family: Family) -> Result<Firewalls> {
        Firewalls::with(family, false, "")
    }

    /// Builds firewalls that may translate both ends' addresses, with further rules in the table
    /// `inet fw`.
    pub(crate) fn with(family: Family, translates: bool, rules: &str) -> Result<Firewalls> {
        require_root()?;
        let folder = Folder::make("state")?;
        let make = |name: &str| Host::new(name, &folder.path().join(name));
        let (client, server) = (make("client")?, make("server")?);
        let hosts = [make("fw1")?, make("fw2")?];
        let fleet = Fleet::new_in(folder.path().join("pki"), &client)?;
        let mut world = Firewalls {
            client,
            server,
            hosts,
            fleet,
            daemons: Vec::new(),
            traffic: None,
            family,
            translates,
            folder,
        };
        world.connect()?;
        for fw in [Fw::One, Fw::Two] {
            world.load(fw, rules)?;
        }
        world.route(Fw::One)?;
        world.traffic = Some(Server::start(
            &world.server,
            SocketAddr::new(server_address(family), PORT),
        )?);
        world.start_daemons()?;
        Ok(world)
    }

    /// Ends the lab, and lets its folder be removed. Returns an error if something still runs on a
    /// host.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.daemons.clear();
        self.traffic = None;
        let ends = [&self.client, &self.server];
        self.folder.finish(self.hosts.iter().chain(ends))
    }

    fn start_daemons(&mut self) -> Result<()> {
        let mut launched = Vec::new();
        for fw in [Fw::One, Fw::Two] {
            let own = self.control(fw);
            let file = self.configure(self.host(fw), own, &["client", "server"])?;
            launched.push(self.fleet.launch(self.host(fw), &file)?);
        }
        let launched = launched.into_iter().map(|daemon| daemon.ready());
        self.daemons = launched.collect::<Result<_>>()?;
        Ok(())
    }

    /// Starts `dyscod` on the client's host too, which holds an end of sessions.
    pub(crate) fn start_on_client(&mut self) -> Result<()> {
        let own = client_address(self.family);
        let file = self.configure(&self.client, own, &["fw1", "fw2"])?;
        let daemon = self.fleet.start_by(&self.client, &file)?;
        self.daemons.push(daemon);
        Ok(())
    }

    fn configure(&self, host: &Host, own: IpAddr, interfaces: &[&str]) -> Result<PathBuf> {
        self.fleet.prepare_host(host, &[own], interfaces, "")
    }

    /// Starts a firewall's `dyscod` again, with an extended configuration.
    pub(crate) fn restart_with(&mut self, fw: Fw, more: &str) -> Result<()> {
        self.kill_daemon(fw)?;
        let file = self.host(fw).dir().join("dyscod.toml");
        let text = fs::read_to_string(&file)? + more;
        fs::write(&file, text)?;
        self.daemons[fw as usize] = self.fleet.start_by(self.host(fw), &file)?;
        Ok(())
    }

    pub(crate) fn host(&self, fw: Fw) -> &Host {
        &self.hosts[fw as usize]
    }

    /// Opens sessions from the client.
    pub(crate) fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let server = self.traffic.as_ref().context("no server")?;
        Group::open(&self.client, server, self.destination(), count, plan)
    }

    /// Address to which the client connects.
    pub(crate) fn destination(&self) -> SocketAddr {
        if self.translates {
            SocketAddr::new(service_address(self.family), SERVICE_PORT)
        } else {
            SocketAddr::new(server_address(self.family), PORT)
        }
    }

    /// Name of a session on the client.
    pub(crate) fn name(&self, local: SocketAddr) -> String {
        format!("{local}>{}", self.destination())
    }

    /// Runs `dyscoctl state …` on a firewall. Returns its result, for any exit code.
    pub(crate) fn try_state(&self, fw: Fw, words: &[&str]) -> Result<Ran> {
        let mut all = vec!["state"];
        all.extend(words);
        self.fleet.try_dyscoctl(self.host(fw), &all)
    }

    /// Runs `dyscoctl state …` on a firewall. Returns its output.
    pub(crate) fn state(&self, fw: Fw, words: &[&str]) -> Result<String> {
        let mut all = vec!["state"];
        all.extend(words);
        self.fleet.dyscoctl(self.host(fw), &all)
    }

    /// Runs `dyscoctl state move …` on the client. Returns its result, for any exit code.
    pub(crate) fn try_move(&self, session: &str, from: Fw, words: &[&str]) -> Result<Ran> {
        let [from, to] = [from, from.other()].map(|fw| self.control_address(fw));
        let mut all = vec!["state", "move", session, "--from", &from, "--to", &to];
        all.extend(["-o", "json"]);
        all.extend(words);
        self.fleet.try_dyscoctl(&self.client, &all)
    }

    /// Control address of a firewall's `dyscod`.
    pub(crate) fn control_address(&self, fw: Fw) -> String {
        self.control(fw).to_string()
    }

    fn control(&self, fw: Fw) -> IpAddr {
        address(self.family, 11 + fw as u8, 2)
    }

    /// Ends a host's `dyscod` as a crash would.
    pub(crate) fn kill_daemon(&mut self, fw: Fw) -> Result<()> {
        self.daemons[fw as usize].process.kill().map(drop)
    }

    /// Sessions that a firewall's host lists.
    pub(crate) fn listed(&self, fw: Fw) -> Result<Vec<Value>> {
        let listed = self
            .fleet
            .dyscoctl(self.host(fw), &["sessions", "-o", "json"])?;
        serde_json::from_str(&listed).context("dyscoctl printed no JSON")
    }

    /// State of a session that a firewall has.
    pub(crate) fn export(&self, fw: Fw, session: &str) -> Result<Value> {
        let text = self.state(fw, &["export", session])?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Writes documents to a file for `install`.
    pub(crate) fn file(&self, documents: &Value) -> Result<PathBuf> {
        let file = self.folder.path().join("documents.json");
        fs::write(&file, documents.to_string())?;
        Ok(file)
    }

    /// Installs documents on a firewall. Returns the output of `dyscoctl`.
    pub(crate) fn install(&self, fw: Fw, session: &str, documents: &Value) -> Result<Value> {
        let file = self.file(documents)?.display().to_string();
        let text = self.state(fw, &["install", session, &file, "-o", "json"])?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Moves the state of sessions and then all their paths together. The old firewall keeps its
    /// state, for packets that are still in flight there.
    pub(crate) fn move_all(&self, sessions: &[String], from: Fw) -> Result<()> {
        for session in sessions {
            let documents = self.export(from, session)?;
            self.install(from.other(), session, &documents)?;
        }
        self.route(from.other())
    }

    /// Makes a firewall forget sessions.
    pub(crate) fn forget(&self, sessions: &[String], fw: Fw) -> Result<()> {
        for session in sessions {
            self.state(fw, &["remove", session])?;
        }
        Ok(())
    }

    /// Number of packets that a firewall's counter has counted.
    pub(crate) fn counted(&self, fw: Fw, counter: &str) -> Result<u64> {
        let text = self
            .host(fw)
            .output("nft", &["-j", "list", "counter", "inet", "fw", counter])?;
        let json: Value = serde_json::from_str(&text)?;
        let mut items = json["nftables"].as_array().into_iter().flatten();
        let packets = items.find_map(|item| item["counter"]["packets"].as_u64());
        packets.with_context(|| format!("nft did not say the packets: {text}"))
    }

    /// Number of packets that a firewall has refused so far, of known or unknown connections.
    pub(crate) fn refused(&self, fw: Fw) -> Result<u64> {
        Ok(self.counted(fw, "dropped")? + self.counted(fw, "invalid")?)
    }
}
