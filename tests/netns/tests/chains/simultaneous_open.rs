//! Both ends open a session at the same time (RFC 9293, section 3.5): their SYNs cross. One session
//! results, with one chain, whichever SYN arrives first.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::steered::{At, Steered};
use anyhow::{Context, Result, ensure};
use dysco_netns::{Family, wait};
use serde_json::json;
use socket2::{Domain, Socket, Type};

const PATIENCE: Duration = Duration::from_secs(60);
const ENDS: [At; 2] = [At::Client, At::Server];

/// Rules that keep an end's first SYN at the router until they are removed.
const HELD: &str = "
table inet client {
  chain forward {
    type filter hook forward priority -10
    iifname client tcp flags & (syn|ack) == syn drop
  }
}
table inet server {
  chain forward {
    type filter hook forward priority -10
    iifname server tcp flags & (syn|ack) == syn drop
  }
}
";

struct Crossing {
    world: Steered,
    family: Family,
    /// End whose chain is taken.
    stays: At,
    chain: &'static [At],
}

fn other(end: At) -> At {
    if end == At::Client {
        At::Server
    } else {
        At::Client
    }
}

impl Crossing {
    /// Builds hosts with the chains for sessions that the client opens and that the server opens.
    fn new(family: Family, chains: [Option<&'static [At]>; 2]) -> Result<Crossing> {
        let rule = |to: At, chain: Option<&[At]>| {
            let Some(chain) = chain else {
                return String::new();
            };
            let hosts: Vec<_> = { chain.iter() }
                .map(|at| at.address(family).to_string())
                .collect();
            let to = to.address(family);
            format!("[[rule]]\ndestination = \"{to}\"\nchain = {hosts:?}\n")
        };
        let [of_client, of_server] = chains;
        let mut world = Steered::with_policy(family, &rule(At::Server, of_client))?;
        give_policy(&mut world, At::Server, &rule(At::Client, of_server))?;
        for (end, chain) in ENDS.into_iter().zip(chains) {
            know_each_other(&world, end, chain.unwrap_or_default())?;
        }
        // Of two chains the one of the lower address is taken.
        let stays = if of_client.is_some() {
            At::Client
        } else {
            At::Server
        };
        let chain = of_client.or(of_server).unwrap_or_default();
        Ok(Crossing {
            world,
            family,
            stays,
            chain,
        })
    }

    /// Both ends open a session between these ports, and the SYN of one end arrives first.
    fn opens(&self, ports: [u16; 2], first: At) -> Result<()> {
        let world = &self.world;
        world.router.input("nft", &["-f", "-"], HELD)?;
        let address = |end: At, port| SocketAddr::new(end.address(self.family), port);
        let at = [address(ENDS[0], ports[0]), address(ENDS[1], ports[1])];
        let before = self.dropped(other(first))?;
        let sockets = [
            connect(world, At::Client, at[0], at[1])?,
            connect(world, At::Server, at[1], at[0])?,
        ];
        self.let_through(first)?;
        if first == self.stays {
            for socket in &sockets {
                connected(socket).with_context(|| world.logs())?;
            }
        } else {
            wait::until("the SYN to be dropped", PATIENCE, || {
                (self.dropped(other(first)).ok()? > before).then_some(())
            })
            .with_context(|| world.logs())?;
        }
        self.let_through(other(first))?;
        for socket in &sockets {
            connected(socket).with_context(|| world.logs())?;
        }
        let [client, server] = sockets;
        let ends = talk(client, server).with_context(|| world.logs())?;
        // The check must precede the end of the session: a retransmission from before could belong
        // to the next session afterwards.
        self.is_one(at)?;
        drop(ends);
        Ok(())
    }

    fn let_through(&self, end: At) -> Result<()> {
        let words = ["delete", "table", "inet", end.name()];
        self.world.router.output("nft", &words).map(drop)
    }

    fn dropped(&self, end: At) -> Result<u64> {
        let status = self.world.json(end, &["status"])?;
        let dropped = status["counters"]["dropped_syn_on_changed_session"].as_u64();
        dropped.context("no such counter")
    }

    /// Checks that each host has the session once, in the form in which the end whose chain is
    /// taken opened it.
    fn is_one(&self, [client, server]: [SocketAddr; 2]) -> Result<()> {
        let hosts: Vec<_> = self.chain.iter().map(|at| self.world.ip(*at)).collect();
        let whole = |end: At, mut all: Vec<serde_json::Value>| {
            let own = if end == At::Client { client } else { server };
            all.retain(|s| s["local"] == json!(own));
            all
        };
        for end in ENDS {
            let all = whole(end, self.world.sessions(end)?);
            let one = all.len() == 1 && all[0]["state"] == "chained";
            let (role, chain) = if end == self.stays {
                ("left_anchor", json!(hosts))
            } else {
                ("right_anchor", json!(null))
            };
            let right = one && all[0]["chain"] == chain && all[0]["role"] == role;
            ensure!(right, "{end:?}: {all:#?}\n{}", self.world.logs());
        }
        for fw in self.chain {
            let mut all = self.world.sessions(*fw)?;
            all.retain(|s| s["local"] == json!(client) || s["remote"] == json!(client));
            let two = all.len() == 2 && all.iter().all(|s| s["state"] == "chained");
            ensure!(two, "{fw:?}: {all:#?}\n{}", self.world.logs());
        }
        for fw in At::FIREWALLS {
            ensure!(self.world.refused(fw)? == 0, "{}", self.world.logs());
        }
        Ok(())
    }

    /// The SYN of either end arrives first.
    fn opens_both_ways(&self) -> Result<()> {
        self.opens([9101, 9201], At::Client)?;
        self.opens([9102, 9202], At::Server)
    }
}

/// Gives a host's `dyscod` its own policy.
fn give_policy(world: &mut Steered, at: At, text: &str) -> Result<()> {
    let dir = world.host(at).dir();
    let (policy, config) = (dir.join("policy.toml"), dir.join("dyscod.toml"));
    fs::write(&policy, text)?;
    let mut before = fs::read_to_string(&config)?;
    before += &format!("[chain]\npolicy = \"{}\"\n", policy.display());
    fs::write(&config, before)?;
    world.kill(at)?;
    world.restart(at)
}

/// Waits until an end can steer through a chain, and its hosts to each other.
fn know_each_other(world: &Steered, end: At, chain: &[At]) -> Result<()> {
    let whole = [&[end], chain, &[other(end)]].concat();
    for (place, at) in whole.iter().enumerate().take(chain.len() + 1) {
        // Each host has two addresses. The server's host needs no key for its neighbours.
        let beside = if place == 0 { 1 } else { 2 };
        wait::until("neighbours to have keys", PATIENCE, || {
            let status = world.json(*at, &["status"]).ok()?;
            let now = status["counters"]["chain_neighbours"].as_u64()?;
            (chain.is_empty() || now >= 2 * beside).then_some(())
        })
        .with_context(|| world.logs())?;
    }
    Ok(())
}

/// Begins to open a session. The SYN has been sent on return.
fn connect(world: &Steered, end: At, local: SocketAddr, to: SocketAddr) -> Result<Socket> {
    let begun = world.host(end).run(move || {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.bind(&local.into())?;
        socket.set_nonblocking(true)?;
        match socket.connect(&to.into()) {
            Err(e) if e.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            other => other.map(|()| socket),
        }
    });
    begun.with_context(|| format!("failed to open a session from {local}"))
}

fn connected(socket: &Socket) -> Result<()> {
    let done = wait::until("the session to open", PATIENCE, || {
        match socket.take_error() {
            Ok(Some(e)) | Err(e) => Some(Err(e)),
            Ok(None) => socket.peer_addr().is_ok().then_some(Ok(())),
        }
    })?;
    done.context("the session was refused")
}

/// Sends a message from each end to the other.
fn talk(client: Socket, server: Socket) -> Result<[TcpStream; 2]> {
    let mut ends = [client, server].map(TcpStream::from);
    for end in &ends {
        end.set_nonblocking(false)?;
        end.set_read_timeout(Some(PATIENCE))?;
    }
    for message in 0..40_u8 {
        let said = vec![message; 1000];
        ends[0].write_all(&said)?;
        let mut heard = vec![0; said.len()];
        ends[1].read_exact(&mut heard)?;
        ensure!(said == heard, "what came is not what was said");
        ends.reverse();
    }
    Ok(ends)
}

#[test]
fn through_a_host_of_both_chains() -> Result<()> {
    let both = Some(&[At::Fw1][..]);
    Crossing::new(Family::V4, [both, both])?.opens_both_ways()
}

#[test]
fn through_a_host_of_both_chains_v6() -> Result<()> {
    let both = Some(&[At::Fw1][..]);
    Crossing::new(Family::V6, [both, both])?.opens_both_ways()
}

/// Each chain has the same hosts in another order.
#[test]
fn through_two_hosts_of_both_chains() -> Result<()> {
    let chains = [&[At::Fw1, At::Fw2][..], &[At::Fw2, At::Fw1]];
    Crossing::new(Family::V4, chains.map(Some))?.opens_both_ways()
}

#[test]
fn where_the_chains_have_no_host_in_common() -> Result<()> {
    let chains = [&[At::Fw1][..], &[At::Fw2]];
    Crossing::new(Family::V4, chains.map(Some))?.opens_both_ways()
}

#[test]
fn where_only_one_end_has_a_rule() -> Result<()> {
    let chain = Some(&[At::Fw1][..]);
    for chains in [[chain, None], [None, chain]] {
        Crossing::new(Family::V4, chains)?.opens_both_ways()?;
    }
    Ok(())
}
