//! Sessions that are older than `dyscod`: it starts under their traffic, and removes the proxy from
//! them. Every byte is checked, and both streams' SHA-256.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Group, Plan, all_intact};
use dysco_netns::{Family, Host, HostOptions, Lab, Process, Role, counters, relays, wait};
use serde_json::Value;

use crate::world::{DECLARED, PROXY_PORT, SERVER_PORT, World};

const PORT: u16 = 8090;
const LIMIT: Duration = Duration::from_secs(60);
const ALL: [Role; 3] = [Role::Client, Role::Proxy, Role::Server];

/// Returns a plan with so much traffic that data is in flight at all times.
fn busy() -> Plan {
    Plan {
        rate: Some(10_000_000),
        ..Plan::default()
    }
}

/// Builds a world in which no `dyscod` runs yet.
fn before(name: &str, family: Family) -> Result<World> {
    let mut w = World::with(Lab::builder(name), family, &[], "", |c| c)?;
    w.mode = "local";
    Ok(w)
}

fn late(w: &mut World, roles: &[Role], config: &str) -> Result<()> {
    for role in roles {
        let daemon = w.fleet.start(&w.lab, *role, config)?;
        w.daemons.push((*role, daemon));
    }
    Ok(())
}

fn running(w: &World, port: u16, plans: &[Plan]) -> Result<Vec<Group>> {
    let run = |plan| {
        let group = w.open_at(port, 1, plan)?;
        group.run();
        group.wait_progress(1 << 20)?;
        Ok(group)
    };
    plans.iter().map(run).collect()
}

fn adopted(w: &World, role: Role) -> Result<u64> {
    let status = w.fleet.json(w.lab.host(role), &["status"])?;
    let count = status["sessions"]["adopted"].as_u64();
    count.context("no count of adopted sessions")
}

/// Waits until this number of sessions is known and listed as adopted.
fn wait_adopted(w: &World, role: Role, count: u64) -> Result<()> {
    wait::until("sessions to be adopted", LIMIT, || {
        (adopted(w, role).ok()? >= count).then_some(())
    })
    .with_context(|| w.state())
}

/// Waits until the sockets of these sessions have vanished from the proxy's host.
fn no_socket(w: &World, groups: &[Group]) -> Result<()> {
    wait::until("the proxy's sockets to go", LIMIT, || {
        let sockets = w.lab.proxy.output("ss", &["-Htan"]).ok()?;
        let mut ends = groups.iter().flat_map(Group::locals);
        ends.all(|end| !sockets.contains(&end.to_string()))
            .then_some(())
    })
    .with_context(|| w.state())
}

fn removed(w: &World, done: &Value, count: usize, mode: &str) -> Result<()> {
    ensure!(
        done["summary"]["removed"] == count,
        "{done:#}\n{}",
        w.state()
    );
    for removal in done["removals"].as_array().into_iter().flatten() {
        ensure!(removal["mode"] == mode, "{done:#}");
    }
    Ok(())
}

/// Checks that all sessions continue, and end successfully.
fn go_on(w: World, groups: Vec<Group>, relay: Option<Process>) -> Result<()> {
    for group in &groups {
        group.wait_progress(1 << 20)?;
    }
    drop(relay);
    for group in &groups {
        group.wait_progress(1 << 20)?;
    }
    for host in [&w.lab.client, &w.lab.server] {
        let resets = counters::resets(host)?;
        ensure!(resets == 0, "{resets} resets\n{}", w.state());
    }
    for group in groups {
        all_intact(&group.finish()?)?;
    }
    w.finish()
}

type Start = fn(&Host, SocketAddr, SocketAddr) -> Result<Process>;

/// An unprepared relay leaves its sessions after the late start of a daemon.
fn leaves(name: &str, family: Family, start: Start, count: usize) -> Result<()> {
    let mut w = before(name, family)?;
    let to = Role::Server.at(family, SERVER_PORT);
    let relay = start(&w.lab.proxy, Role::Proxy.at(family, PORT), to)?;
    let groups = running(&w, PORT, &Plan::different(count))?;
    late(&mut w, &[Role::Proxy], "")?;
    wait_adopted(&w, Role::Proxy, 2 * count as u64)?;
    let listed = w.sessions(Role::Proxy)?;
    ensure!(listed.len() == 2 * count, "{listed:#?}");
    ensure!(listed.iter().all(|s| s["adopted"] == true), "{listed:#?}");

    let done = w.remove(&["--listen", ":8090", "--all", "--timeout", "60s"])?;
    removed(&w, &done, count, "local")?;
    no_socket(&w, &groups)?;
    go_on(w, groups, Some(relay))
}

#[test]
fn nginx_leaves_sessions_older_than_dyscod() -> Result<()> {
    leaves("adoptnginx", Family::V4, relays::nginx_stream, 3)
}

#[test]
fn nginx_leaves_older_sessions_of_ipv6() -> Result<()> {
    leaves("adoptnginx6", Family::V6, relays::nginx_stream, 2)
}

#[test]
fn socat_leaves_sessions_older_than_dyscod() -> Result<()> {
    leaves("adoptsocat", Family::V4, relays::socat, 2)
}

/// The shim has counted all the time, and reports when a daemon listens.
fn haproxy(name: &str, family: Family, roles: &[Role], mode: &'static str) -> Result<()> {
    let mut w = before(name, family)?;
    w.mode = mode;
    let groups = running(&w, PROXY_PORT, &vec![busy(); 3])?;
    late(&mut w, roles, DECLARED)?;
    for role in roles {
        let both_sides = if *role == Role::Proxy { 6 } else { 3 };
        wait_adopted(&w, *role, both_sides)?;
    }
    for group in &groups {
        w.wait_removable(&w.ends(group)?)?;
    }
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    removed(&w, &done, 3, mode)?;
    no_socket(&w, &groups)?;
    let relay = w.haproxy.take();
    go_on(w, groups, relay)
}

#[test]
fn haproxy_leaves_sessions_older_than_dyscod() -> Result<()> {
    haproxy("adoptha", Family::V4, &[Role::Proxy], "local")
}

#[test]
fn haproxy_leaves_older_sessions_of_ipv6() -> Result<()> {
    haproxy("adoptha6", Family::V6, &[Role::Proxy], "local")
}

#[test]
fn three_late_daemons_take_the_bypass() -> Result<()> {
    haproxy("adoptbypass", Family::V4, &ALL, "bypass")
}

#[test]
fn three_late_daemons_take_the_bypass_of_ipv6() -> Result<()> {
    haproxy("adoptbypass6", Family::V6, &ALL, "bypass")
}

/// A session that one host saw open and another host adopted is the same session.
#[test]
fn a_neighbour_that_saw_the_syns_and_one_that_did_not_agree() -> Result<()> {
    // Only one side offers these options, which a late daemon cannot know.
    let plain = |host: HostOptions| host.timestamps(false).window_scaling(false);
    let builder = Lab::builder("adoptmixed").host(Role::Proxy, plain);
    let mut w = World::with(builder, Family::V4, &[Role::Client], DECLARED, |c| c)?;
    let groups = running(&w, PROXY_PORT, &vec![busy(); 2])?;
    late(&mut w, &[Role::Proxy, Role::Server], DECLARED)?;
    wait_adopted(&w, Role::Proxy, 4)?;
    wait_adopted(&w, Role::Server, 2)?;
    ensure!(adopted(&w, Role::Client)? == 0);
    for group in &groups {
        w.wait_removable(&w.ends(group)?)?;
    }
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    removed(&w, &done, 2, "bypass")?;
    no_socket(&w, &groups)?;
    let relay = w.haproxy.take();
    go_on(w, groups, relay)
}

/// The daemon dies, and all its pins are lost: it starts under traffic as if it had never run.
#[test]
fn a_daemon_that_lost_everything_adopts_what_is_there() -> Result<()> {
    let mut w = World::with(
        Lab::builder("adoptlost"),
        Family::V4,
        &[Role::Proxy],
        DECLARED,
        |c| c,
    )?;
    w.mode = "local";
    let mut groups = running(&w, PROXY_PORT, &vec![busy(); 2])?;
    for round in 0..3 {
        w.daemon(Role::Proxy)?.kill()?;
        w.lab.proxy.output("rm", &["-r", "/sys/fs/bpf/dysco"])?;
        w.restart(Role::Proxy)?;
        let known = 2 * groups.len() as u64;
        wait_adopted(&w, Role::Proxy, known).with_context(|| format!("round {round}"))?;
        groups.extend(running(&w, PROXY_PORT, &[busy()])?);
    }
    for group in &groups {
        w.wait_removable(&w.ends(group)?)?;
    }
    let done = w.remove(&["--all", "--timeout", "120s"])?;
    removed(&w, &done, groups.len(), "local")?;
    no_socket(&w, &groups)?;
    let relay = w.haproxy.take();
    go_on(w, groups, relay)
}

/// A session without traffic.
struct Silent {
    client: TcpStream,
    server: TcpStream,
}

impl Silent {
    fn open(w: &World, port: u16) -> Result<Silent> {
        // This listener is separate from the world's own server.
        let at = Role::Server.at(w.family, port);
        let listener = w.lab.server.run(move || TcpListener::bind(at))?;
        let to = Role::Proxy.at(w.family, port);
        let client = w.lab.client.run(move || TcpStream::connect(to))?;
        let server = listener.accept()?.0;
        let mut silent = Silent { client, server };
        silent.talk(3)?;
        Ok(silent)
    }

    fn talk(&mut self, rounds: u8) -> Result<()> {
        for round in 0..rounds {
            carry(&mut self.client, &mut self.server, round)?;
            carry(&mut self.server, &mut self.client, round + 100)?;
        }
        Ok(())
    }
}

fn carry(from: &mut TcpStream, to: &mut TcpStream, byte: u8) -> Result<()> {
    to.set_read_timeout(Some(LIMIT))?;
    from.write_all(&[byte; 20_000])?;
    let mut got = [0; 20_000];
    to.read_exact(&mut got)?;
    ensure!(got.iter().all(|b| *b == byte), "other bytes came");
    Ok(())
}

/// No packet passes by itself: the ends are asked for one.
fn silent(name: &str, roles: &[Role], mode: &'static str) -> Result<()> {
    let mut w = before(name, Family::V4)?;
    w.mode = mode;
    let port = 8095;
    let to = Role::Server.at(w.family, port);
    let relay = w.proxy("silent", port, |c| c.to(to))?;
    let mut session = Silent::open(&w, port)?;
    let declared = "[[listener]]\naddress = \":8095\"\ntransparent = true\n";
    late(&mut w, roles, declared)?;
    for role in roles {
        let both_sides = if *role == Role::Proxy { 2 } else { 1 };
        wait_adopted(&w, *role, both_sides)?;
        let listed = w.sessions(*role)?;
        ensure!(
            listed.iter().all(|s| s["state"] == "adopted"),
            "{listed:#?}"
        );
    }
    wait::until("the shim to tell of it", LIMIT, || {
        let dry = w.remove(&["--all", "--dry-run"]).ok()?;
        (dry["summary"]["removable"] == 1).then_some(())
    })?;
    let done = w.remove(&["--all"])?;
    removed(&w, &done, 1, mode)?;
    session.talk(5)?;
    drop(relay);
    session.talk(5)?;
    drop(session);
    w.finish()
}

#[test]
fn silent_sessions_are_asked_for_a_packet() -> Result<()> {
    silent("adoptsilent", &[Role::Proxy], "local")
}

#[test]
fn silent_sessions_take_the_bypass_too() -> Result<()> {
    silent("adoptsilent3", &ALL, "bypass")
}

/// The proxy's host translates the listener's port: packets have another five-tuple than the
/// socket, so that no session may be changed by the socket's name.
#[test]
fn a_translated_session_is_never_changed() -> Result<()> {
    let mut w = before("adoptnat", Family::V4)?;
    let outside = 8096;
    let rules = format!(
        "table ip nat {{ chain in {{ type nat hook prerouting priority -100; tcp dport {outside} redirect to :{PROXY_PORT}; }}\n}}\n"
    );
    w.lab.proxy.input("nft", &["-f", "-"], &rules)?;
    let groups = running(&w, outside, &[busy()])?;
    late(&mut w, &[Role::Proxy], DECLARED)?;
    wait_adopted(&w, Role::Proxy, 2)?;
    let end = groups[0].locals()[0];
    let name = format!("{}>{end}", w.listen());
    let mut why = String::new();
    wait::until("the reason", LIMIT, || {
        let done = w.remove(&["--session", &name]).ok()?;
        why = done["removals"][0]["reason"].to_string();
        why.contains("NAT on this host").then_some(())
    })
    .with_context(|| format!("{why}\n{}", w.state()))?;
    let listed = w.sessions(Role::Proxy)?;
    let ours = listed.iter().find(|s| s["remote"] == end.to_string());
    ensure!(ours.is_some_and(|s| s["state"] == "adopted"), "{listed:#?}");
    go_on(w, groups, None)
}

#[test]
fn adoption_is_off_if_the_configuration_says_so_and_on_when_asked_for() -> Result<()> {
    let mut w = before("adoptoff", Family::V4)?;
    let groups = running(&w, PROXY_PORT, &[busy()])?;
    late(
        &mut w,
        &[Role::Proxy],
        "[data_plane]\nadopt = false\n[[track]]\nports = [\"8000-9999\"]\n",
    )?;
    let later = running(&w, PROXY_PORT, &[busy()])?;
    ensure!(w.sessions(Role::Proxy)?.len() == 2, "{}", w.state());
    let done = w.fleet.json(&w.lab.proxy, &["adopt"])?;
    ensure!(done["adopted"] == 2 && done["known"] == 2, "{done:#}");
    let again = w.fleet.json(&w.lab.proxy, &["adopt"])?;
    ensure!(again["adopted"] == 0 && again["known"] == 4, "{again:#}");
    ensure!(adopted(&w, Role::Proxy)? == 2);
    go_on(w, groups.into_iter().chain(later).collect(), None)
}
