//! Interfaces on which the data plane would change a packet twice, or see none: dyscod refuses them
//! at the start, or reports them. Without a list of interfaces, it chooses them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::device::Kind;
use dysco_netns::fleet::{self, Daemon, Fleet};
use dysco_netns::haproxy::Config;
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::wire::open_as_ppp;
use dysco_netns::{Family, Lab, Ran, Role, wait};
use serde_json::Value;

use crate::services::OneEnd;

/// Runs `dyscod --check` on the proxy's host, with these interfaces.
fn check(lab: &Lab, fleet: &Fleet, interfaces: &[&str]) -> Result<Ran> {
    let file = fleet.prepare(lab, Role::Proxy, "")?;
    let text = std::fs::read_to_string(&file)?;
    let listed = format!("interfaces = {interfaces:?}");
    std::fs::write(&file, text.replace("interfaces = [\"eth0\"]", &listed))?;
    let (program, file) = (fleet::built("dyscod")?, file.display().to_string());
    let program = program.display().to_string();
    lab.proxy.ran(&program, &["--config", &file, "--check"])
}

#[test]
fn an_interface_and_what_it_is_made_of_are_refused() -> Result<()> {
    let lab = Lab::builder("stacked").build()?;
    let fleet = Fleet::new(&lab)?;
    let ip = |words: &str| {
        let words: Vec<_> = words.split_whitespace().collect();
        lab.proxy.output("ip", &words)
    };
    ip("link add port type veth peer name far")?;
    ip("link add br0 type bridge")?;
    ip("link set port master br0")?;
    ip("link add mac0 link eth0 type macvlan")?;
    for (both, what) in [
        (["port", "br0"], "br0 is a bridge over port"),
        (["eth0", "mac0"], "mac0 is a macvlan over eth0"),
    ] {
        let ran = check(&lab, &fleet, &both)?;
        let reported = ran.code == Some(2) && ran.stderr.contains(what);
        ensure!(reported, "{both:?}: {ran:?}");
    }
    // Two ends of a pair, and the bridge alone, pass each packet once.
    for well in [&["port", "far"][..], &["eth0", "br0"]] {
        let ran = check(&lab, &fleet, well)?;
        ensure!(ran.code == Some(0), "{well:?}: {ran:?}");
    }
    lab.finish(())
}

#[test]
fn an_interface_with_another_header_is_reported_everywhere() -> Result<()> {
    let lab = Lab::builder("header").build()?;
    let fleet = Fleet::new(&lab)?;
    let _device = lab.proxy.run(|| open_as_ppp("tun0"))?;
    let ran = check(&lab, &fleet, &["eth0", "tun0"])?;
    let warned = ran.stdout.contains("# warning: tun0");
    let reported = |text: &str| text.contains("with a header that dyscod does not read");
    ensure!(
        ran.code == Some(0) && warned && reported(&ran.stdout),
        "{ran:?}"
    );

    let file = lab.proxy.dir().join("dyscod.toml");
    let daemon = fleet.restart(&lab, Role::Proxy, &file)?;
    let status = fleet.json(&lab.proxy, &["status"])?;
    let interfaces = status["interfaces"].as_array();
    let mut troubled = interfaces
        .into_iter()
        .flatten()
        .filter(|i| i["trouble"].is_string());
    let one = troubled
        .next()
        .map(|i| (i["name"].clone(), i["trouble"].to_string()));
    let is_tun = one.is_some_and(|(name, trouble)| name == "tun0" && reported(&trouble));
    ensure!(is_tun && troubled.next().is_none(), "{status:#}");
    ensure!(reported(&fleet.dyscoctl(&lab.proxy, &["status"])?));
    let words = ["doctor", "--config", &file.display().to_string()];
    ensure!(reported(&fleet.dyscoctl(&lab.proxy, &words)?));
    lab.finish(daemon)
}

/// Two interfaces that were separate at the start are joined while the daemon runs.
#[test]
fn a_bridge_that_takes_an_interface_later_is_reported() -> Result<()> {
    let lab = Lab::builder("later").build()?;
    let fleet = Fleet::new(&lab)?;
    let ip = |words: &[&str]| lab.proxy.output("ip", words);
    ip(&["link", "add", "port", "type", "veth", "peer", "name", "far"])?;
    ip(&["link", "add", "br0", "type", "bridge"])?;
    ensure!(check(&lab, &fleet, &["eth0", "port", "br0"])?.code == Some(0));
    let file = lab.proxy.dir().join("dyscod.toml");
    let daemon = fleet.restart(&lab, Role::Proxy, &file)?;
    let status = fleet.dyscoctl(&lab.proxy, &["status"])?;
    ensure!(!status.contains("changed twice"), "{status}");
    ip(&["link", "set", "port", "master", "br0"])?;
    let status = fleet.dyscoctl(&lab.proxy, &["status"])?;
    ensure!(status.contains("br0 is a bridge over port"), "{status}");
    lab.finish(daemon)
}

/// A tc filter that is added later with the same preference runs first, and ends the run of each
/// packet.
#[test]
fn a_filter_that_comes_first_later_is_reported() -> Result<()> {
    let lab = Lab::builder("filter").build()?;
    let fleet = Fleet::new(&lab)?;
    let config = "[data_plane]\nattach = \"clsact\"\n";
    let daemon = fleet.start(&lab, Role::Proxy, config)?;
    let reported = |text: &str| text.contains("another program runs first (bpf)");
    let status = fleet.dyscoctl(&lab.proxy, &["status"])?;
    ensure!(!reported(&status), "{status}");
    // Classic BPF that returns 0 (`TC_ACT_OK`).
    let filter = "filter add dev eth0 egress pref 1 protocol all bpf bytecode 1,6|0|0|0, \
                  direct-action";
    let words: Vec<_> = filter
        .split(' ')
        .map(|word| word.replace('|', " "))
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    lab.proxy.output("tc", &words)?;
    let status = fleet.dyscoctl(&lab.proxy, &["status"])?;
    ensure!(
        reported(&status) && status.starts_with("degraded"),
        "{status}"
    );
    let file = lab.proxy.dir().join("dyscod.toml");
    let words = ["doctor", "--config", &file.display().to_string()];
    let doctor = fleet.try_dyscoctl(&lab.proxy, &words)?;
    ensure!(reported(&doctor.stdout), "{doctor:?}");
    lab.finish(daemon)
}

/// The handler sends to the local end by the Ethernet address of the interface.
#[test]
fn an_interface_may_get_another_address_meanwhile() -> Result<()> {
    let here = OneEnd::new("svcmac", Family::V4)?;
    let plan = Plan {
        rate: Some(1_000_000),
        ..Plan::default()
    };
    let group = here.open(1, &plan)?;
    here.change(&["put", "+null"], "put", 1)?;
    group.wait_progress(100_000)?;
    let words = ["link", "set", "eth0", "address", "02:00:00:00:00:77"];
    here.lab.client.output("ip", &words)?;
    group.wait_progress(1_000_000)?;
    here.change(&["take", "+null"], "taken", 1)?;
    group.wait_progress(100_000)?;
    all_intact(&group.finish()?)?;
    here.finish()
}

/// Starts a daemon whose configuration lists no interfaces.
fn start_without_list(lab: &Lab, fleet: &Fleet, role: Role) -> Result<Daemon> {
    let listener = "[[listener]]\naddress = \":8080\"\ntransparent = true\n";
    let file = fleet.prepare(lab, role, listener)?;
    let text = std::fs::read_to_string(&file)?;
    let lines = text.lines().filter(|line| !line.starts_with("interfaces"));
    std::fs::write(&file, lines.collect::<Vec<_>>().join("\n"))?;
    fleet.restart(lab, role, &file)
}

/// Removes a proxy from live sessions in this mode, which go on without it.
fn proxy_leaves(lab: &Lab, fleet: &Fleet, mode: &str) -> Result<()> {
    let (listen, to) = (
        Role::Proxy.at(Family::V4, 8080),
        Role::Server.at(Family::V4, 9000),
    );
    let server = Server::start(&lab.server, to)?;
    let haproxy = Config::tcp(listen, to).start(&lab.proxy, |p| fleet.under_shim(p))?;
    let group = Group::open(&lab.client, &server, listen, 3, &Plan::gentle())?;
    group.run();
    group.wait_progress(1 << 20)?;
    let remove = |more: &[&str]| -> Result<Value> {
        let words = ["remove-middlebox", "self", "--all", "--mode", mode];
        let words = [&words[..], more, &["-o", "json"]].concat();
        let ran = fleet.try_dyscoctl(&lab.proxy, &words)?;
        serde_json::from_str(&ran.stdout).with_context(|| format!("{ran:?}"))
    };
    let mut said = Value::Null;
    wait::until("the proxy to be removable", Duration::from_secs(60), || {
        said = remove(&["--dry-run"]).ok()?;
        (said["summary"]["removable"] == 3).then_some(())
    })
    .with_context(|| format!("{said:#}"))?;
    let done = remove(&["--wait", "--timeout", "120s"])?;
    ensure!(done["summary"]["removed"] == 3, "{done:#}");
    drop(haproxy);
    group.wait_progress(2 << 20)?;
    all_intact(&group.finish()?).map(drop)
}

/// The device that has the address is chosen, and not the one below it.
#[test]
fn an_interface_that_is_chosen_by_its_address() -> Result<()> {
    for kind in [Kind::Bridge, Kind::Vxlan] {
        for (mode, roles) in [("bypass", &Role::ALL[..]), ("local", &[Role::Proxy])] {
            let lab = Lab::builder("chosen").hosts(|host| host.kind(kind));
            let lab = lab.build()?;
            for role in Role::ALL.iter().filter(|_| kind == Kind::Bridge) {
                // Netfilter may see bridged packets by default: see `removal/bridged`.
                for key in ["iptables", "ip6tables"] {
                    let key = format!("net.bridge.bridge-nf-call-{key}");
                    lab.host(*role).sysctl(&key, "0")?;
                }
            }
            let fleet = Fleet::new(&lab)?;
            let start = |role: &Role| start_without_list(&lab, &fleet, *role);
            let daemons: Vec<_> = roles.iter().map(start).collect::<Result<_>>()?;
            for role in roles {
                let status = fleet.json(lab.host(*role), &["status"])?;
                let all = status["interfaces"].as_array().context("no interfaces")?;
                let names: Vec<_> = all.iter().map(|i| &i["name"]).collect();
                ensure!(names == ["eth0"], "{kind:?}: {status:#}");
            }
            proxy_leaves(&lab, &fleet, mode).with_context(|| format!("{kind:?}, {mode}"))?;
            lab.finish(daemons)?;
        }
    }
    Ok(())
}
