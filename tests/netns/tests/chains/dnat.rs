//! A host of the chain translates destinations: sessions are opened to an address that no host has,
//! and that host chooses the server.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, wait};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
/// Port on which the server listens. Sessions are opened to `crate::steered::PORT`.
const PORT: u16 = 9090;

struct Balanced {
    world: Steered,
    server: Server,
    /// Address to which sessions are opened.
    service: SocketAddr,
    chain: &'static [At],
}

impl Balanced {
    /// Builds hosts of which the first firewall is the balancer.
    fn new(family: Family, chain: &'static [At]) -> Result<Balanced> {
        let service: IpAddr = match family {
            Family::V4 => IpAddr::from([10, 8, 99, 1]),
            Family::V6 => IpAddr::from([0xfd08, 99, 0, 0, 0, 0, 0, 1]),
        };
        let hosts: Vec<_> = chain
            .iter()
            .map(|at| at.address(family).to_string())
            .collect();
        let rule = format!("[[rule]]\ndestination = \"{service}\"\nchain = {hosts:?}\n");
        let world = Steered::with_policy(family, &rule)?;
        let to = SocketAddr::new(At::Server.address(family), PORT);
        let server = Server::start(world.host(At::Server), to)?;
        let service = SocketAddr::new(service, crate::steered::PORT);
        let kind = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let nat = format!(
            "table {kind} balance {{
               chain in {{
                 type nat hook prerouting priority -100
                 {kind} daddr {} tcp dport {} dnat to {to}
               }}
             }}",
            service.ip(),
            service.port()
        );
        world.host(At::Fw1).input("nft", &["-f", "-"], &nat)?;
        let balanced = Balanced {
            world,
            server,
            service,
            chain,
        };
        balanced.wait_neighbours()?;
        Ok(balanced)
    }

    /// Waits until the last host of the chain knows the server's host, which no rule names.
    fn wait_neighbours(&self) -> Result<()> {
        let world = &self.world;
        for at in [&[At::Client], self.chain].concat() {
            wait::until("neighbours to have keys", PATIENCE, || {
                let status = world.json(at, &["status"]).ok()?;
                let now = status["counters"]["chain_neighbours"].as_u64()?;
                (now >= 2).then_some(())
            })
            .with_context(|| world.logs())?;
        }
        Ok(())
    }

    fn open(&self, count: usize) -> Result<Group> {
        let client = self.world.host(At::Client);
        let plan = Plan::default();
        let group = Group::open(client, &self.server, self.service, count, &plan)
            .with_context(|| self.world.logs())?;
        group.run();
        group
            .wait_progress(1 << 20)
            .with_context(|| self.world.logs())?;
        Ok(group)
    }

    /// Sessions of the server's host that arrived by a chain.
    fn chained(&self) -> Result<Vec<Value>> {
        let mut all = self.world.sessions(At::Server)?;
        all.retain(|s| s["state"] == "chained");
        Ok(all)
    }

    /// Checks that the server's host knows the address to which the sessions were opened, and that
    /// firewalls have seen nothing invalid.
    fn is_right(&self, count: usize) -> Result<()> {
        let all = self.chained()?;
        let known = |s: &Value| {
            s["local"] == json!(self.server_address())
                && s["opened_as"]["local"] == json!(self.service)
        };
        ensure!(
            all.len() == count && all.iter().all(known),
            "{all:#?}\n{}",
            self.world.logs()
        );
        for fw in self.chain {
            let refused = self.world.refused(*fw)?;
            ensure!(
                refused == 0,
                "{fw:?} refused {refused}\n{}",
                self.world.logs()
            );
            ensure!(
                self.world.counted(*fw, "passed")? > 0,
                "{fw:?} has seen nothing"
            );
        }
        Ok(())
    }

    fn server_address(&self) -> SocketAddr {
        SocketAddr::new(At::Server.address(self.world.family), PORT)
    }

    /// The first session shows the balancer the server's host. The balancer's host knows it from
    /// then on.
    fn carries(self) -> Result<()> {
        let first = self.open(1)?;
        all_intact(&first.finish()?)?;
        let before = self.chained()?.len();
        let group = self.open(5)?;
        self.is_right(before + 5)?;
        // No host after the balancer has a name for the session that the client knows: the session
        // stays on its path.
        let session = format!("{}>{}", group.locals()[0], self.service);
        let not = self.world.reconfigure(&session, &[], &[])?;
        ensure!(not["outcome"] != "changed", "{not:#}");
        group
            .wait_progress(1 << 20)
            .with_context(|| self.world.logs())?;
        all_intact(&group.finish()?).map(drop)
    }
}

#[test]
fn a_host_of_the_chain_chooses_the_server() -> Result<()> {
    Balanced::new(Family::V4, &[At::Fw1])?.carries()
}

#[test]
fn a_host_of_the_chain_chooses_the_server_v6() -> Result<()> {
    Balanced::new(Family::V6, &[At::Fw1])?.carries()
}

#[test]
fn hosts_behind_have_the_session_by_its_server() -> Result<()> {
    Balanced::new(Family::V4, &[At::Fw1, At::Fw2])?.carries()
}
