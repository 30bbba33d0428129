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
use dysco_netns::fleet::built;
use dysco_netns::stream::{Group, Plan, Server};
use dysco_netns::{Family, Host, Process, Program, Ran, require_root};
use serde_json::Value;

pub const PORT: u16 = 9000;
/// Port of the server as clients see it if the server's address is translated.
pub const SERVICE_PORT: u16 = 80;

/// One of the two firewalls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fw {
    One,
    Two,
}

impl Fw {
    pub fn other(self) -> Fw {
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

pub struct Firewalls {
    pub client: Host,
    pub server: Host,
    hosts: [Host; 2],
    daemons: Vec<Process>,
    traffic: Option<Server>,
    family: Family,
    translates: bool,
    dir: tempfile::TempDir,
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
    pub fn new(family: Family) -> Result<Firewalls> {
        Firewalls::with(family, false, "")
    }

    /// Builds firewalls that may translate both ends' addresses, with further rules in the table
    /// `inet fw`.
    pub fn with(family: Family, translates: bool, rules: &str) -> Result<Firewalls> {
        require_root()?;
        let dir = tempfile::Builder::new().prefix("dysco-state-").tempdir()?;
        let make = |name: &str| Host::new(name, &dir.path().join(name));
        let (client, server) = (make("client")?, make("server")?);
        let hosts = [make("fw1")?, make("fw2")?];
        let mut world = Firewalls {
            client,
            server,
            hosts,
            daemons: Vec::new(),
            traffic: None,
            family,
            translates,
            dir,
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

    fn start_daemons(&mut self) -> Result<()> {
        let authority = self.authority();
        self.client.output(
            &self.program("dyscoctl")?,
            &["pki", "init", "--dir", &authority],
        )?;
        for fw in [Fw::One, Fw::Two] {
            let own = self.control_address(fw);
            let daemon = self.start(self.host(fw), &own, &["client", "server"])?;
            self.daemons.push(daemon);
        }
        Ok(())
    }

    /// Starts `dyscod` on the client's host too, which holds an end of sessions.
    pub fn start_on_client(&mut self) -> Result<()> {
        let own = client_address(self.family).to_string();
        let daemon = self.start(&self.client, &own, &["fw1", "fw2"])?;
        self.daemons.push(daemon);
        Ok(())
    }

    fn start(&self, host: &Host, own: &str, interfaces: &[&str]) -> Result<Process> {
        let (dyscoctl, authority) = (self.program("dyscoctl")?, self.authority());
        let keys = host.dir().join("pki").display().to_string();
        let mut words = vec!["pki", "issue", "--dir", &authority, "--name", host.name()];
        words.extend(["--out", &keys, "--address", own]);
        host.output(&dyscoctl, &words)?;
        let file = host.dir().join("dyscod.toml");
        let text = format!(
            "[host]\naddresses = [\"{own}\"]\ninterfaces = {interfaces:?}\n\n\
             [control]\npki_dir = \"{keys}\"\n"
        );
        fs::write(&file, text)?;
        self.start_again(host)
    }

    /// Starts the `dyscod` of a host with an existing configuration.
    fn start_again(&self, host: &Host) -> Result<Process> {
        let program = Program::new(self.program("dyscod")?)
            .arg("--config")
            .arg(host.dir().join("dyscod.toml"));
        let dyscoctl = self.program("dyscoctl")?;
        let mut daemon = host.spawn(program)?;
        daemon.wait_ready("dyscod to answer", || {
            host.output(&dyscoctl, &["status"]).is_ok()
        })?;
        Ok(daemon)
    }

    /// Starts a firewall's `dyscod` again, with an extended configuration.
    pub fn restart_with(&mut self, fw: Fw, more: &str) -> Result<()> {
        self.kill_daemon(fw)?;
        let file = self.host(fw).dir().join("dyscod.toml");
        let text = fs::read_to_string(&file)? + more;
        fs::write(&file, text)?;
        self.daemons[fw as usize] = self.start_again(self.host(fw))?;
        Ok(())
    }

    fn authority(&self) -> String {
        self.dir.path().join("pki").display().to_string()
    }

    fn program(&self, name: &str) -> Result<String> {
        Ok(built(name)?.display().to_string())
    }

    pub fn host(&self, fw: Fw) -> &Host {
        &self.hosts[fw as usize]
    }

    /// Opens sessions from the client.
    pub fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let server = self.traffic.as_ref().context("no server")?;
        Group::open(&self.client, server, self.destination(), count, plan)
    }

    /// Address to which the client connects.
    pub fn destination(&self) -> SocketAddr {
        if self.translates {
            SocketAddr::new(service_address(self.family), SERVICE_PORT)
        } else {
            SocketAddr::new(server_address(self.family), PORT)
        }
    }

    /// Name of a session on the client.
    pub fn name(&self, local: SocketAddr) -> String {
        format!("{local}>{}", self.destination())
    }

    /// Runs `dyscoctl state …` on a firewall. Returns its result, whatever the exit code.
    pub fn try_state(&self, fw: Fw, words: &[&str]) -> Result<Ran> {
        let mut all = vec!["state"];
        all.extend(words);
        self.host(fw).ran(&self.program("dyscoctl")?, &all)
    }

    /// Runs `dyscoctl state …` on a firewall. Returns its output.
    pub fn state(&self, fw: Fw, words: &[&str]) -> Result<String> {
        let mut all = vec!["state"];
        all.extend(words);
        self.host(fw).output(&self.program("dyscoctl")?, &all)
    }

    /// Runs `dyscoctl state move …` on the client. Returns its result, whatever the exit code.
    pub fn try_move(&self, session: &str, from: Fw, words: &[&str]) -> Result<Ran> {
        let [from, to] = [from, from.other()].map(|fw| self.control_address(fw));
        let mut all = vec!["state", "move", session, "--from", &from, "--to", &to];
        all.extend(["-o", "json"]);
        all.extend(words);
        self.client.ran(&self.program("dyscoctl")?, &all)
    }

    /// Control address of a firewall's `dyscod`.
    pub fn control_address(&self, fw: Fw) -> String {
        address(self.family, 11 + fw as u8, 2).to_string()
    }

    /// Ends a host's `dyscod` as a crash would.
    pub fn kill_daemon(&mut self, fw: Fw) -> Result<()> {
        self.daemons[fw as usize].kill().map(drop)
    }

    /// Sessions that a firewall's host lists.
    pub fn listed(&self, fw: Fw) -> Result<Vec<Value>> {
        let words = ["sessions", "-o", "json"];
        let listed = self.host(fw).output(&self.program("dyscoctl")?, &words)?;
        serde_json::from_str(&listed).context("dyscoctl printed no JSON")
    }

    /// State of a session that a firewall has.
    pub fn export(&self, fw: Fw, session: &str) -> Result<Value> {
        let text = self.state(fw, &["export", session])?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Writes documents to a file for `install`.
    pub fn file(&self, documents: &Value) -> Result<PathBuf> {
        let file = self.dir.path().join("documents.json");
        fs::write(&file, documents.to_string())?;
        Ok(file)
    }

    /// Installs documents on a firewall. Returns the output of `dyscoctl`.
    pub fn install(&self, fw: Fw, session: &str, documents: &Value) -> Result<Value> {
        let file = self.file(documents)?.display().to_string();
        let text = self.state(fw, &["install", session, &file, "-o", "json"])?;
        serde_json::from_str(&text).with_context(|| format!("no JSON: {text}"))
    }

    /// Moves the state of sessions and then all their paths together. The old firewall keeps its
    /// state, for packets that are still in flight there.
    pub fn move_all(&self, sessions: &[String], from: Fw) -> Result<()> {
        for session in sessions {
            let documents = self.export(from, session)?;
            self.install(from.other(), session, &documents)?;
        }
        self.route(from.other())
    }

    /// Makes a firewall forget sessions.
    pub fn forget(&self, sessions: &[String], fw: Fw) -> Result<()> {
        for session in sessions {
            self.state(fw, &["remove", session])?;
        }
        Ok(())
    }

    /// Number of packets that a firewall's counter has counted.
    pub fn counted(&self, fw: Fw, counter: &str) -> Result<u64> {
        let text = self
            .host(fw)
            .output("nft", &["-j", "list", "counter", "inet", "fw", counter])?;
        let json: Value = serde_json::from_str(&text)?;
        let mut items = json["nftables"].as_array().into_iter().flatten();
        let packets = items.find_map(|item| item["counter"]["packets"].as_u64());
        packets.with_context(|| format!("nft did not say the packets: {text}"))
    }

    /// Number of packets that a firewall has refused so far, of known or unknown connections.
    pub fn refused(&self, fw: Fw) -> Result<u64> {
        Ok(self.counted(fw, "dropped")? + self.counted(fw, "invalid")?)
    }
}
