//! Client, proxy and server are on fewer than three hosts.

use std::net::SocketAddr;

use crate::world::fates::SETTLED;
use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, Lab, Process, Role, wait};
use serde_json::Value;

const MIB: u64 = 1 << 20;
const MODES: [&str; 4] = ["bypass", "local", "return", "auto"];
/// Reason for which a proxy stays in all sessions of [`PLACES`].
const HERE: &str = "is on the middlebox's own host";

/// Places of client and server, with the address of the proxy and that of the server.
const PLACES: [(Role, &str, Role, &str); 6] = [
    (Role::Proxy, "10.0.2.1:8081", Role::Server, "10.0.3.1:9001"),
    (Role::Proxy, "127.0.0.1:8082", Role::Server, "10.0.3.1:9002"),
    (Role::Client, "10.0.2.1:8083", Role::Proxy, "10.0.2.1:9003"),
    (Role::Client, "10.0.2.1:8084", Role::Proxy, "127.0.0.1:9004"),
    (Role::Proxy, "127.0.0.1:8085", Role::Proxy, "127.0.0.1:9005"),
    (Role::Proxy, "10.0.2.1:8086", Role::Proxy, "10.0.2.1:9006"),
];

fn at(text: &str) -> Result<SocketAddr> {
    text.parse().with_context(|| format!("no address: {text}"))
}

/// Builds a world whose proxy's daemon has these interfaces.
fn world(name: &str, links: &[&str]) -> Result<World> {
    let ends = [Role::Client, Role::Server];
    let mut w = World::with(Lab::builder(name), Family::V4, &ends, "", |c| c)?;
    let own = [Role::Proxy.address(Family::V4)];
    let host = &w.lab.proxy;
    let file = w.fleet.prepare_host(host, &own, links, DECLARED)?;
    let daemon = w.fleet.restart(&w.lab, Role::Proxy, &file)?;
    w.daemons.push((Role::Proxy, daemon));
    Ok(w)
}

/// Programs of a session, and the session itself. All of them end when this is dropped.
struct Placed {
    group: Group,
    server: Server,
    haproxy: Process,
}

fn place(w: &World, place: (Role, &str, Role, &str)) -> Result<Placed> {
    let (client, listen, end, server) = (place.0, at(place.1)?, place.2, at(place.3)?);
    let name = format!("haproxy{}", listen.port());
    let haproxy = Config::tcp(listen, server).named(&name);
    let haproxy = haproxy.start(&w.lab.proxy, |p| w.fleet.under_shim(p))?;
    let server = Server::start(w.lab.host(end), server)?;
    let group = Group::open(w.lab.host(client), &server, listen, 1, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    Ok(Placed {
        group,
        server,
        haproxy,
    })
}

/// Returns the first reasons of all sessions that a request did not serve.
fn reasons(done: &Value) -> Vec<String> {
    let of = |item: &Value| item["reason"].to_string();
    let list = |key: &str| done[key].as_array().cloned().unwrap_or_default();
    let refused = list("removals").iter().map(of).collect::<Vec<_>>();
    let left = list("left").into_iter().flat_map(|item| {
        let sessions = item["sessions"].as_u64().unwrap_or_default() as usize;
        vec![of(&item); sessions]
    });
    refused.into_iter().chain(left).collect()
}

/// Requests a removal until this number of sessions is refused for a reason.
fn refused(w: &World, words: &[&str], count: usize, why: &str) -> Result<()> {
    let mut done = Value::Null;
    wait::until("the true reason", SETTLED, || {
        done = w.remove(words).ok()?;
        let told = reasons(&done);
        (told.len() == count && told.iter().all(|r| r.contains(why))).then_some(())
    })
    .with_context(|| format!("{words:?}: {done:#}\n{}", w.state()))?;
    let changed = |key: &str| done["summary"][key].as_u64().unwrap_or(0);
    ensure!(changed("removed") + changed("removable") == 0, "{done:#}");
    Ok(())
}

/// Checks that the listing has that reason for each session that a proxy passes on, and no other.
fn listed(w: &World) -> Result<()> {
    let table = w.fleet.dyscoctl(&w.lab.proxy, &["sessions"])?;
    let passed_on = || table.lines().filter(|line| line.contains(" middlebox "));
    ensure!(passed_on().count() > 0, "{table}");
    let told = |line: &str| line.contains(HERE);
    ensure!(passed_on().all(told), "{table}");
    Ok(())
}

#[test]
fn a_proxy_with_its_client_or_server_on_its_own_host_stays() -> Result<()> {
    for links in [&["eth0"][..], &["eth0", "lo"]] {
        let w = world("samehost", links)?;
        let placed: Vec<_> = PLACES
            .iter()
            .map(|p| place(&w, *p))
            .collect::<Result<_>>()?;
        for mode in MODES {
            for more in [&["--dry-run"][..], &[]] {
                let words = [&["--all", "--mode", mode][..], more].concat();
                refused(&w, &words, PLACES.len(), HERE).with_context(|| format!("{links:?}"))?;
            }
        }
        listed(&w)?;
        for Placed {
            group,
            server,
            haproxy,
        } in placed
        {
            group.wait_progress(MIB)?;
            group.rest()?;
            all_intact(&group.finish()?)?;
            drop((server, haproxy));
        }
        w.finish()?;
    }
    Ok(())
}

/// The proxy's host is another one, so that it can relay.
#[test]
fn client_and_server_on_one_host_lose_their_proxy_in_local_alone() -> Result<()> {
    let mut w = world("onehost", &["eth0"])?;
    drop(w.haproxy.take());
    let together = (Role::Client, "10.0.2.1:8080", Role::Client, "10.0.1.1:9001");
    let placed = place(&w, together)?;
    let why = "client and server are both on the host 10.0.1.1";
    for mode in ["bypass", "return"] {
        for more in [&["--dry-run"][..], &[]] {
            let words = [&["--all", "--mode", mode][..], more].concat();
            refused(&w, &words, 1, why)?;
            refused(&w, &words, 1, "use --mode local")?;
        }
    }
    w.mode = "auto";
    let done = w.remove_all_of(1)?;
    ensure!(done["removals"][0]["mode"] == "local", "{done:#}");
    let Placed {
        group,
        server,
        haproxy,
    } = placed;
    group.wait_progress(MIB)?;
    drop(haproxy);
    group.wait_progress(MIB).with_context(|| w.state())?;
    w.no_resets()?;
    all_intact(&group.finish()?)?;
    drop(server);
    w.finish()
}
