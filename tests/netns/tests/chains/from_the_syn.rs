//! Sessions are steered through a middlebox's host from their SYN on. The router drops direct
//! packets between client and server: packets that arrive have taken the chain, in both directions.

mod policy;

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use dysco_netns::fleet::{Daemon, Fleet};
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Builder, Family, Lab, Process, Role, wait};
use serde_json::Value;

const PORT: u16 = 9000;
const PATIENCE: Duration = Duration::from_secs(60);

/// Client, middlebox and server, each with `dyscod` unless a test leaves it out. The middlebox only
/// forwards.
struct Chained {
    lab: Lab,
    fleet: Fleet,
    daemons: Vec<Daemon>,
    server: Server,
    family: Family,
}

impl Chained {
    fn new(builder: Builder, family: Family) -> Result<Chained> {
        let chain = Role::Proxy.address(family);
        let server = Role::Server.address(family);
        let rule = format!("[[rule]]\ndestination = \"{server}\"\nchain = [\"{chain}\"]\n");
        let c = Chained::with(builder, family, &rule, &Role::ALL, |_| String::new())?;
        c.lab
            .add_rule("iifname client oifname server meta l4proto tcp drop")?;
        c.lab
            .add_rule("iifname server oifname client meta l4proto tcp drop")?;
        c.wait_neighbours(Role::Client, 2)?;
        c.wait_neighbours(Role::Proxy, 4)?;
        Ok(c)
    }

    /// Builds the hosts. `more` begins in the `[control]` section of a host's configuration.
    fn with(
        builder: Builder,
        family: Family,
        policy: &str,
        roles: &[Role],
        more: impl Fn(Role) -> String,
    ) -> Result<Chained> {
        let lab = builder
            .host(Role::Proxy, |h| {
                h.sysctl("net.ipv4.ip_forward", "1")
                    .sysctl("net.ipv6.conf.all.forwarding", "1")
            })
            .build()?;
        let fleet = Fleet::new(&lab)?;
        let file = lab.client.dir().join("policy.toml");
        fs::write(&file, policy).context("failed to write the policy")?;
        let configured = roles.iter().map(|role| {
            let mut extra = more(*role);
            if *role == Role::Client {
                extra += &format!("[chain]\npolicy = \"{}\"\n", file.display());
            }
            (*role, extra)
        });
        let daemons = fleet.start_all(&lab, configured)?;
        let server = Server::start(&lab.server, Role::Server.at(family, PORT))?;
        Ok(Chained {
            lab,
            fleet,
            daemons,
            server,
            family,
        })
    }

    fn counter(&self, role: Role, name: &str) -> Result<u64> {
        let status = self.fleet.json(self.lab.host(role), &["status"])?;
        status["counters"][name]
            .as_u64()
            .with_context(|| format!("no counter {name}: {status:#}"))
    }

    /// Waits until a host may steer to this number of addresses of other hosts.
    fn wait_neighbours(&self, role: Role, count: u64) -> Result<()> {
        wait::until("neighbours to have keys", PATIENCE, || {
            let now = self.counter(role, "chain_neighbours").ok()?;
            (now >= count).then_some(())
        })
    }

    fn open(&self, count: usize, plan: &Plan) -> Result<Group> {
        let to = Role::Server.at(self.family, PORT);
        Group::open(&self.lab.client, &self.server, to, count, plan)
    }

    fn sessions(&self, role: Role) -> Result<Vec<Value>> {
        let all = self.fleet.json(self.lab.host(role), &["sessions"])?;
        Ok(all.as_array().cloned().unwrap_or_default())
    }

    /// Checks that sessions with data in both directions arrive complete.
    fn carries(self, count: usize) -> Result<()> {
        let group = self.open(count, &Plan::default())?;
        group.run();
        group.wait_progress(1 << 20)?;
        let here = self.sessions(Role::Client)?;
        assert_eq!(here.len(), count, "{here:#?}");
        for session in &here {
            assert_eq!(session["state"], "chained", "{session:#}");
            let chain = Role::Proxy.address(self.family).to_string();
            assert_eq!(session["chain"], serde_json::json!([chain]));
        }
        let there = self.sessions(Role::Proxy)?;
        assert_eq!(there.len(), 2 * count, "{there:#?}");
        assert!(there.iter().all(|s| s["role"] == "middlebox"), "{there:#?}");
        all_intact(&group.finish()?)?;
        self.finish()
    }

    /// Ends a host's daemon and starts another one, with an action in between.
    fn renew(
        &mut self,
        role: Role,
        end: impl FnOnce(&mut Process) -> Result<()>,
        between: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let at = Role::ALL.iter().position(|r| *r == role);
        let at = at.context("no such host")?;
        end(&mut self.daemons[at].process)?;
        drop(self.daemons.remove(at));
        between()?;
        let file = self.lab.host(role).dir().join("dyscod.toml");
        let daemon = self.fleet.restart(&self.lab, role, &file)?;
        self.daemons.insert(at, daemon);
        Ok(())
    }

    fn finish(self) -> Result<()> {
        self.lab.finish((self.daemons, self.server))
    }
}

#[test]
fn one_middlebox_ipv4() -> Result<()> {
    Chained::new(Lab::builder("chain4"), Family::V4)?.carries(10)
}

#[test]
fn one_middlebox_ipv6() -> Result<()> {
    Chained::new(Lab::builder("chain6"), Family::V6)?.carries(10)
}

#[test]
fn without_offloads() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let lab = Lab::builder("chainoff").hosts(|h| h.offload(false));
        Chained::new(lab, family)?.carries(3)?;
    }
    Ok(())
}

#[test]
fn with_five_percent_loss() -> Result<()> {
    let c = Chained::new(Lab::builder("chainloss"), Family::V4)?;
    c.lab.set_loss(5.0)?;
    let group = c.open(20, &Plan::default())?;
    group.run();
    group.wait_progress(50_000)?;
    assert_eq!(c.sessions(Role::Client)?.len(), 20);
    assert_eq!(c.sessions(Role::Proxy)?.len(), 40);
    all_intact(&group.finish()?)?;
    c.finish()
}

const FIREWALL: &str = "
table inet fw {
  chain forward {
    type filter hook forward priority 0; policy drop;
    ct state invalid counter drop
    ct state new tcp dport 9000 counter accept
    ct state established accept
  }
}
";

/// The strictest firewall sees an ordinary session.
#[test]
fn through_a_strict_firewall() -> Result<()> {
    for family in [Family::V4, Family::V6] {
        let c = Chained::new(Lab::builder("chainfw"), family)?;
        c.lab.proxy.input("nft", &["-f", "-"], FIREWALL)?;
        c.lab
            .proxy
            .sysctl("net.netfilter.nf_conntrack_tcp_loose", "0")?;
        c.lab
            .proxy
            .sysctl("net.netfilter.nf_conntrack_tcp_be_liberal", "0")?;
        c.carries(5)?;
    }
    Ok(())
}

/// A NAT in the middle translates sessions to its own address.
#[test]
fn through_a_nat() -> Result<()> {
    let c = Chained::new(Lab::builder("chainnat"), Family::V4)?;
    let nat = "table ip nat {\n chain post {\n type nat hook postrouting priority 100\n masquerade\n }\n}\n";
    c.lab.proxy.input("nft", &["-f", "-"], nat)?;
    let group = c.open(5, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let middlebox = Role::Proxy.address(Family::V4).to_string();
    for session in c.sessions(Role::Server)? {
        let from = session["remote"].as_str().unwrap_or_default();
        assert!(from.starts_with(&middlebox), "{session:#}");
        assert_eq!(session["state"], "chained");
    }
    all_intact(&group.finish()?)?;
    c.finish()
}

/// Sessions continue to their ends after every daemon has been killed.
#[test]
fn sessions_outlive_their_daemons() -> Result<()> {
    let mut c = Chained::new(Lab::builder("chainkill"), Family::V4)?;
    let group = c.open(5, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 20)?;
    c.daemons.clear();
    group.wait_progress(2 << 20)?;
    all_intact(&group.finish()?)?;
    c.finish()
}

/// A daemon that starts again steers by the contents of its data plane before any peer has
/// answered: no session is refused, and no chain ends without an agent.
#[test]
fn sessions_open_whoever_starts_anew() -> Result<()> {
    let mut c = Chained::new(Lab::builder("chainanew"), Family::V4)?;
    for role in Role::ALL {
        c.renew(role, |daemon| daemon.kill().map(drop), || Ok(()))?;
        let group = c.open(3, &Plan::default())?;
        group.run();
        group.wait_progress(1 << 18)?;
        all_intact(&group.finish()?)?;
    }
    for (role, name) in [
        (Role::Client, "chain_refused_host_missing"),
        (Role::Client, "chain_direct_host_missing"),
        (Role::Proxy, "chain_ends_without_agent"),
        (Role::Proxy, "chain_refused_unknown_key"),
        (Role::Server, "chain_refused_unknown_key"),
    ] {
        assert_eq!(c.counter(role, name)?, 0, "{name}");
    }
    c.finish()
}

/// A host that no longer answers is not steered to.
#[test]
fn a_host_that_is_gone_at_the_start_is_missing() -> Result<()> {
    let mut c = Chained::new(Lab::builder("chainleft"), Family::V4)?;
    c.daemons[1].process.kill()?;
    c.renew(Role::Client, |daemon| daemon.kill().map(drop), || Ok(()))?;
    let missing = |c: &Chained| -> Option<usize> {
        let listed = c.fleet.json(&c.lab.client, &["policy", "list"]).ok()?;
        Some(listed["rules"][0]["missing"].as_array()?.len())
    };
    wait::until("the host to be missed", PATIENCE, || {
        (missing(&c)? == 1).then_some(())
    })?;
    c.renew(Role::Proxy, |_| Ok(()), || Ok(()))?;
    wait::until("the host to be there", PATIENCE, || {
        (missing(&c)? == 0).then_some(())
    })?;
    c.wait_neighbours(Role::Proxy, 4)?;
    c.carries(3)
}

/// A host of the chain is down: sessions are refused or go direct, as the rule says, and the reason
/// is reported.
#[test]
fn a_host_that_is_not_there() -> Result<()> {
    let server = Role::Server.address(Family::V4);
    for (otherwise, counter) in [
        ("refuse", "chain_refused_host_missing"),
        ("direct", "chain_direct_host_missing"),
    ] {
        let rule = format!(
            "[[rule]]\nname = \"web\"\ndestination = \"{server}\"\nchain = [\"10.0.2.77\"]\notherwise = \"{otherwise}\"\n"
        );
        let roles = [Role::Client, Role::Server];
        let c = Chained::with(Lab::builder("chainmiss"), Family::V4, &rule, &roles, |_| {
            String::new()
        })?;
        let explained = c.fleet.json(
            &c.lab.client,
            &["policy", "explain", "10.0.1.1", "10.0.3.1:9000"],
        )?;
        let text = explained["text"].as_str().unwrap_or_default();
        assert!(text.contains("web") && text.contains("10.0.2.77"), "{text}");
        if otherwise == "direct" {
            assert_eq!(explained["verdict"], "direct");
            let group = c.open(1, &Plan::default())?;
            group.run();
            group.wait_progress(1 << 20)?;
            all_intact(&group.finish()?)?;
        } else {
            assert_eq!(explained["verdict"], "refused");
            let to = Role::Server.at(Family::V4, PORT);
            let connected = c
                .lab
                .client
                .run(move || std::net::TcpStream::connect_timeout(&to, Duration::from_millis(300)));
            assert!(connected.is_err());
        }
        assert!(c.counter(Role::Client, counter)? >= 1);
        c.finish()?;
    }
    Ok(())
}

/// A host knows the hosts that its configuration names, even without a session.
#[test]
fn peers_are_known_before_a_session_needs_them() -> Result<()> {
    let peers = |role: Role| {
        let others = Role::ALL.into_iter().filter(|other| *other != role);
        let addresses: Vec<_> = others
            .flat_map(|other| [Family::V4, Family::V6].map(|f| other.address(f).to_string()))
            .collect();
        format!("peers = {addresses:?}\n")
    };
    let builder = Lab::builder("peers");
    let c = Chained::with(builder, Family::V4, "", &[Role::Client, Role::Proxy], peers)?;
    c.wait_neighbours(Role::Client, 2)?;
    c.wait_neighbours(Role::Proxy, 2)?;
    c.finish()
}

/// Sessions leave a table that is nearly full soon after their end.
#[test]
fn a_crowded_table_makes_room() -> Result<()> {
    const ROOM: usize = 64;
    let small = |role| match role {
        Role::Proxy => format!("[data_plane]\nmax_sessions = {ROOM}\n"),
        _ => String::new(),
    };
    let chain = Role::Proxy.address(Family::V4);
    let server = Role::Server.address(Family::V4);
    let rule = format!("[[rule]]\ndestination = \"{server}\"\nchain = [\"{chain}\"]\n");
    let c = Chained::with(Lab::builder("crowd"), Family::V4, &rule, &Role::ALL, small)?;
    c.wait_neighbours(Role::Client, 2)?;
    c.wait_neighbours(Role::Proxy, 4)?;
    // The middlebox's host has two entries per session.
    let group = c.open(ROOM * 9 / 20, &Plan::default())?;
    group.run();
    group.wait_progress(1 << 16)?;
    all_intact(&group.finish()?)?;
    let crowded = |entries: usize| entries * 4 > ROOM * 3;
    // This is half the time for which a host with free room keeps them.
    wait::until("ended sessions to go", PATIENCE / 2, || {
        let left = c.sessions(Role::Proxy).ok()?.len();
        (!crowded(left)).then_some(())
    })?;
    c.finish()
}
