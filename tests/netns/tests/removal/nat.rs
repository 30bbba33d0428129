//! Connection tracking and address translation on the proxy's own host, and a NAT that changes
//! during sessions: a session is relayed or stays, and no byte is ever wrong.

use std::net::TcpStream;
use std::time::Duration;

use crate::world::{DECLARED, World};
use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Close, Group, Plan, Side, all_intact};
use dysco_netns::{Family, Host, Lab, Role, echo, wait};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

fn world(name: &str) -> Result<World> {
    world_that(name, |c| c)
}

fn world_that(name: &str, change: impl FnOnce(Config) -> Config) -> Result<World> {
    let config = format!(
        "{DECLARED}[[listener]]\naddress = \":8090\"\ntransparent = true\n\
         [removal]\nmode = \"local\"\n"
    );
    World::with(
        Lab::builder(name),
        Family::V4,
        &[Role::Proxy],
        &config,
        change,
    )
}

/// Makes the proxy leave all its sessions, as they become removable. Returns the result.
fn drain(w: &World, time: &str) -> Result<Value> {
    let words = ["drain", "haproxy", "--timeout", time, "-o", "json"];
    let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
    let last = ran.stdout.lines().last().unwrap_or_default();
    serde_json::from_str(last).with_context(|| format!("{ran:?}"))
}

fn all_leave(w: &World, count: usize) -> Result<()> {
    let done = drain(w, "60s")?;
    ensure!(
        done["removed"] == count && done["left"] == 0,
        "{done:#}\n{}",
        w.state()
    );
    Ok(())
}

fn rules(host: &Host, text: &str) -> Result<()> {
    host.input("nft", &["-f", "-"], text).map(drop)
}

fn busy(w: &World, port: u16, close: Close) -> Result<Group> {
    let plan = Plan {
        rate: Some(2_000_000),
        close,
        ..Plan::default()
    };
    let group = w.open_at(port, 2, &plan)?;
    group.run();
    group.wait_progress(200_000)?;
    Ok(group)
}

const GENTLE: Close = Close::First(Side::Client);

/// The firewall admits only connections that it knows.
#[test]
fn a_firewall_with_connection_tracking() -> Result<()> {
    let mut w = world("ctlocal")?;
    rules(
        &w.lab.proxy,
        "table inet f {
           chain input {
             type filter hook input priority 0; policy drop
             iif lo accept
             ct state established,related accept
             tcp dport 8080 ct state new accept
           }
           chain forward { type filter hook forward priority 0; policy drop; }
           chain output {
             type filter hook output priority 0
             ct state invalid drop
           }
         }",
    )?;
    let group = busy(&w, crate::world::PROXY_PORT, GENTLE)?;
    all_leave(&w, 2)?;
    group.wait_progress(1 << 20)?;
    drop(w.haproxy.take());
    // The firewall forgets all connections, as it would in time.
    w.lab.proxy.output("conntrack", &["-F"])?;
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Checks that the sessions stay, and that the reason for each names the NAT, with a hint.
fn stay(w: World, port: u16) -> Result<()> {
    let group = busy(&w, port, GENTLE)?;
    let done = drain(&w, "10s")?;
    let all = done["sessions"].as_array().cloned().unwrap_or_default();
    let reasons = all.iter().map(|s| s["reason"].to_string());
    let told = |r: &String| {
        r.contains("NAT on this host") && r.contains("exclude these sessions from the NAT rules")
    };
    ensure!(
        done["removed"] == 0 && reasons.filter(told).count() == 2,
        "{done:#}\n{}",
        w.state()
    );
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

#[test]
fn the_proxys_port_is_reached_by_dnat() -> Result<()> {
    let w = world("dnat")?;
    rules(
        &w.lab.proxy,
        "table ip n {
           chain in { type nat hook prerouting priority -100; tcp dport 80 redirect to :8080; }
         }",
    )?;
    stay(w, 80)
}

#[test]
fn the_server_is_reached_by_snat() -> Result<()> {
    let w = world("snat")?;
    let address = ["addr", "add", "10.0.2.9/24", "dev", "eth0"];
    w.lab.proxy.output("ip", &address)?;
    rules(
        &w.lab.proxy,
        "table ip n {
           chain out {
             type nat hook postrouting priority 100
             ip daddr 10.0.3.1 tcp dport 9000 snat to 10.0.2.9
           }
         }",
    )?;
    stay(w, crate::world::PROXY_PORT)
}

/// A NAT before the client changes the port in the middle of relayed sessions: they end, as they
/// would without Dysco, and the data that arrived is correct.
#[test]
fn a_nat_before_the_client_changes_its_mind() -> Result<()> {
    let w = world("natchange")?;
    let nat = |ports: &str| {
        format!(
            "table ip n {{
               chain out {{
                 type nat hook postrouting priority 100
                 ip saddr 10.0.1.1 tcp dport 8080 snat to 10.0.2.254:{ports}
               }}
             }}"
        )
    };
    rules(&w.lab.router, &nat("20000-20999"))?;
    let lost = busy(&w, crate::world::PROXY_PORT, Close::Reset(Side::Client))?;
    all_leave(&w, 2)?;
    lost.wait_progress(200_000)?;
    rules(&w.lab.router, "delete table ip n")?;
    rules(&w.lab.router, &nat("30000-30999"))?;
    w.lab
        .router
        .output("conntrack", &["-D", "-p", "tcp", "--dport", "8080"])?;
    for outcome in lost.finish()? {
        // A reset cuts off the end; every byte before it is correct.
        outcome.intact()?;
    }
    // The host still works.
    let group = busy(&w, crate::world::PROXY_PORT, GENTLE)?;
    all_leave(&w, 2)?;
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Port of an echo server.
const ECHO: u16 = 9001;
const ECHO_PROXY: u16 = 8090;
/// Port that the client uses repeatedly.
const OWN: u16 = 45_678;

/// Sends data that returns unchanged.
fn talk(stream: &mut TcpStream, first: u8) -> Result<()> {
    echo::talk(stream, first, 50)
}

/// A client that has closed a session, or has vanished, may use its port again. The former session
/// is not confused with the new one.
#[test]
fn a_client_reuses_its_port() -> Result<()> {
    let at = |role: Role, port| role.at(Family::V4, port);
    let (proxy, server) = (at(Role::Proxy, ECHO_PROXY), at(Role::Server, ECHO));
    let w = world_that("reuse", |c| c.also("tcp", proxy, server))?;
    echo::serve(&w.lab.server, server)?;
    let mut said = 0;
    for vanishes in [false, true] {
        let mut stream = echo::connect(&w.lab.client, OWN, proxy)?;
        talk(&mut stream, said)?;
        all_leave(&w, 1)?;
        talk(&mut stream, said)?;
        let silence = "table ip silence {
                         chain f {
                           type filter hook forward priority -10
                           tcp sport 45678 drop
                         }
                       }";
        if vanishes {
            rules(&w.lab.router, silence)?;
        }
        echo::reset(stream)?;
        if vanishes {
            rules(&w.lab.router, "delete table ip silence")?;
        }
        said += 1;
        let mut again = echo::connect(&w.lab.client, OWN, proxy)?;
        talk(&mut again, said)?;
        all_leave(&w, 1).context("the second time")?;
        talk(&mut again, said)?;
        echo::reset(again)?;
    }
    wait::until("no change to be under way", LIMIT, || {
        let counters = w.counters(Role::Proxy).ok()?;
        (counters["changes_under_way"] == 0).then_some(())
    })?;
    w.finish()
}
