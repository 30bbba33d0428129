//! A proxy in a container, and `dyscod` on the container's host: each network namespace is served by
//! an instance, which takes the proxy out of live sessions there.

mod cluster;
mod network;
mod podman;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::all_intact;
use dysco_netns::{Family, Process, Program, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use network::{INNER, LIMIT, Start, World, dyscod, ip};

/// The proxy leaves, and its process ends. All bytes arrive.
fn leaves(name: &str, family: Family, start: Start, words: &[&str]) -> Result<()> {
    let mut w = World::new(name, family)?;
    w.make_inner()?;
    w.start("[\"web\"]")?;
    let inner = w.wait_served()?;
    ensure!(inner["state"] == "running", "{inner:#}");
    let haproxy = w.haproxy(start)?;
    let group = w.open(4)?;
    let done = w.remove(4, words)?;
    for removal in done["removals"].as_array().into_iter().flatten() {
        ensure!(removal["mode"] == "local", "{done:#}");
    }
    w.no_sockets()?;
    relayed(&w, 4)?;
    group.wait_progress(1 << 20)?;
    drop(haproxy);
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    w.finish()
}

/// Checks that the merged listing has sessions that the inner namespace relays, and that the host's
/// own listing has none of them.
fn relayed(w: &World, count: usize) -> Result<()> {
    let host = &w.lab.proxy;
    let all = w.fleet.json(host, &["sessions", "--all-namespaces"])?;
    let all = all.as_array().cloned().unwrap_or_default();
    let inner = all.iter().filter(|s| s["namespace"] == INNER);
    let relayed = inner.filter(|s| s["state"] == "relayed" && s["mode"] == "local");
    // Both sides of each.
    ensure!(relayed.count() == 2 * count, "{all:#?}");
    let own = w.fleet.json(host, &["sessions"])?;
    let own = own.as_array().cloned().unwrap_or_default();
    ensure!(own.iter().all(|s| s["namespace"].is_null()), "{own:#?}");
    ensure!(own.iter().all(|s| s["state"] != "relayed"), "{own:#?}");
    let table = w.fleet.dyscoctl(host, &["sessions", "--all-namespaces"])?;
    ensure!(table.starts_with("NAMESPACE"), "{table}");
    Ok(())
}

#[test]
fn a_proxy_in_a_container_leaves() -> Result<()> {
    leaves("inner4", Family::V4, Start::Shim, &["--namespace", INNER])
}

#[test]
fn a_proxy_in_a_container_leaves_ipv6() -> Result<()> {
    leaves("inner6", Family::V6, Start::Shim, &["--namespace", INNER])
}

/// The container shares no file with its host but the shim. The shim finds the instance by the name
/// of its abstract socket.
#[test]
fn a_shim_in_a_container_needs_no_mount() -> Result<()> {
    leaves(
        "innershim",
        Family::V4,
        Start::Mounts,
        &["--namespace", INNER],
    )
}

/// The process is named, and `dyscoctl` asks the instance that sees its sockets.
#[test]
fn a_proxy_in_a_container_without_the_shim_leaves() -> Result<()> {
    leaves("innerout", Family::V4, Start::Plain, &["--listen", ":8080"])
}

/// The near socket answers to the Ethernet address of the container's interface.
#[test]
fn services_come_into_a_session_in_a_container() -> Result<()> {
    let mut w = World::new("innersvc", Family::V4)?;
    w.make_inner()?;
    w.start("[\"web\"]")?;
    w.wait_served()?;
    let haproxy = w.haproxy(Start::Shim)?;
    let group = w.open(1)?;
    for (words, outcome) in [(["put", "+null"], "put"), (["take", "+null"], "taken")] {
        let filter = ["--filter", "port=8080", "--wait", "-o", "json"];
        let words = [&["--namespace", INNER, "service"], &words[..], &filter].concat();
        let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
        let done: Value = serde_json::from_str(&ran.stdout).with_context(|| format!("{ran:?}"))?;
        ensure!(done["sessions"][0]["outcome"] == outcome, "{done:#}");
        group.wait_progress(1 << 20)?;
    }
    all_intact(&group.finish()?)?;
    drop(haproxy);
    w.finish()
}

/// An instance whose namespace has no address yet reads its configuration once it has one.
#[test]
fn a_reload_leaves_an_instance_that_waits_for_an_address() -> Result<()> {
    let mut w = World::new("innerwait", Family::V4)?;
    ip(&w.lab, "netns add web")?;
    w.start("[\"web\"]")?;
    let pid = || {
        let all = w.namespaces().ok()?;
        let inner = all.into_iter().find(|n| n["name"] == INNER)?;
        let pid = inner["pid"].as_u64()?;
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        // It has this name from the moment on at which it enters the namespace.
        (comm == "dyscod\n").then_some(pid)
    };
    let first = wait::until("the instance to wait", LIMIT, pid)?;
    w.fleet.dyscoctl(&w.lab.proxy, &["reload"])?;
    w.connect_inner()?;
    let inner = w.wait_served()?;
    ensure!(inner["pid"] == first, "{first}: {inner:#}\n{}", w.log());
    w.finish()
}

#[test]
fn what_needs_a_channel_is_refused_with_the_reason() -> Result<()> {
    let mut w = World::new("innerno", Family::V4)?;
    w.make_inner()?;
    w.start("[\"web\"]")?;
    w.wait_served()?;
    let haproxy = w.haproxy(Start::Shim)?;
    let group = w.open(1)?;
    for mode in ["bypass", "return"] {
        let done = wait::until("the session to be known", LIMIT, || {
            let words = ["remove-middlebox", "self", "--all", "--wait", "-o", "json"];
            let words = [&words[..], &["--mode", mode, "--namespace", INNER]].concat();
            let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words).ok()?;
            let done: Value = serde_json::from_str(&ran.stdout).ok()?;
            (!done["removals"][0].is_null()).then_some(done)
        })?;
        let why = done["removals"][0]["reason"].to_string();
        ensure!(why.contains("no channel to other hosts"), "{done:#}");
        ensure!(why.contains("--mode local"), "{done:#}");
    }
    let words = ["--namespace", "other", "status"];
    let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &words)?;
    ensure!(ran.code == Some(5), "{ran:?}");
    ensure!(ran.stderr.contains("name one of these: web"), "{ran:?}");
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    drop(haproxy);
    w.finish()
}

/// Returns the names in a directory of the container host.
fn names(w: &World, dir: &str) -> Vec<String> {
    let listed = w.lab.proxy.output("ls", &[dir]).unwrap_or_default();
    listed.lines().map(str::to_owned).collect()
}

#[test]
fn a_namespace_that_comes_is_served_and_one_that_goes_leaves_nothing() -> Result<()> {
    let mut w = World::new("innerlate", Family::V4)?;
    w.start("[\"web\"]")?;
    ensure!(w.namespaces()?.is_empty());
    ensure!(
        w.log().contains("/run/netns/web cannot be served now"),
        "{}",
        w.log()
    );
    w.make_inner()?;
    let inner = w.wait_served()?;
    let inode = inner["inode"].to_string();
    let dirs = ["/run/dysco/ns", "/sys/fs/bpf/dysco/ns"];
    for dir in dirs {
        ensure!(names(&w, dir) == [inode.as_str()], "{dir}");
    }
    ip(&w.lab, "netns delete web")?;
    wait::until("the instance and its directories to go", LIMIT, || {
        let gone = w.namespaces().is_ok_and(|all| all.is_empty());
        (gone && dirs.iter().all(|dir| names(&w, dir).is_empty())).then_some(())
    })
    .with_context(|| w.log())?;
    // Another namespace of the name is served as well.
    ip(&w.lab, "netns add web")?;
    ip(&w.lab, "netns delete web")?;
    wait::until("the host to be free of veths", LIMIT, || {
        let links = w.lab.proxy.output("ip", &["link"]).ok()?;
        (!links.contains("outer")).then_some(())
    })?;
    w.make_inner()?;
    w.wait_served()?;
    w.finish()
}

/// The daemon of the host is killed, and its instances end with it. Sessions go on, and the next
/// instance finds them.
#[test]
fn a_daemon_that_is_killed_finds_the_sessions_again() -> Result<()> {
    let mut w = World::new("innerkill", Family::V4)?;
    w.make_inner()?;
    w.start("[\"web\"]")?;
    let before = w.wait_served()?;
    let haproxy = w.haproxy(Start::Shim)?;
    let group = w.open(2)?;
    w.remove(2, &["--namespace", INNER])?;
    drop(haproxy);
    let pid = before["pid"].as_u64().context("no pid")?;
    let lives =
        || std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c == "dyscod\n");
    ensure!(lives(), "{before:#}");
    let daemon = w.daemon.as_mut().context("no daemon")?;
    // The daemon alone, not its process group.
    daemon.process.signal(Signal::SIGKILL)?;
    wait::until("the instance to end", Duration::from_secs(20), || {
        (!lives()).then_some(())
    })?;
    group.wait_progress(1 << 20)?;
    w.start("[\"web\"]")?;
    let after = w.wait_served()?;
    ensure!(after["pid"] != before["pid"], "{after:#}");
    ensure!(after["inode"] == before["inode"], "{after:#}");
    relayed(&w, 2)?;
    group.wait_progress(1 << 20)?;
    // The daemon that is asked to stop ends its instances, too.
    let daemon = w.daemon.as_mut().context("no daemon")?;
    daemon.process.stop()?;
    let pid = after["pid"].as_u64().context("no pid")?;
    ensure!(!std::fs::exists(format!("/proc/{pid}"))?, "{}", w.log());
    group.wait_progress(1 << 20)?;
    // Nothing is taken from sessions of the inner namespace.
    let file = w.lab.proxy.dir().join("dyscod.toml").display().to_string();
    let uninstall = ["uninstall", "--config", &file];
    let ran = w.fleet.try_dyscoctl(&w.lab.proxy, &uninstall)?;
    ensure!(
        ran.code == Some(5) && ran.stderr.contains("sessions need it"),
        "{ran:?}"
    );
    group.wait_progress(1 << 20)?;
    all_intact(&group.finish()?)?;
    let forced = [&uninstall[..], &["--force"]].concat();
    w.fleet.dyscoctl(&w.lab.proxy, &forced)?;
    for dir in ["/run/dysco", "/sys/fs/bpf/dysco"] {
        ensure!(names(&w, dir).is_empty(), "{dir}: {:?}", names(&w, dir));
    }
    w.finish()
}

/// `dyscod` sees the processes of a PID namespace of its own, so that "all" has no others.
#[test]
fn all_are_those_of_the_processes_that_dyscod_sees() -> Result<()> {
    let w = World::new("innerall", Family::V4)?;
    w.make_inner()?;
    let file = w.configure("\"all\"")?;
    let inside = "unshare --net sleep 1000 & exec \"$@\"";
    let program = dyscod(&file)?.behind("sh".as_ref(), &["-c", inside, "sh"]);
    let words = ["--pid", "--fork", "--kill-child", "--mount-proc"];
    let program: Program = program.behind("unshare".as_ref(), &words).named("dyscod");
    let daemon: Process = w.lab.proxy.spawn(program)?;
    w.wait_served()?;
    let all = w.namespaces()?;
    let told: Vec<_> = all.iter().map(|n| n["state"].as_str()).collect();
    ensure!(told == [Some("no_address"), Some("running")], "{all:#?}");
    let name = all[0]["name"].as_str().unwrap_or_default();
    ensure!(name == format!("net:[{}]", all[0]["inode"]), "{all:#?}");
    drop(daemon);
    w.finish()
}

#[test]
fn a_configuration_that_cannot_work_is_refused() -> Result<()> {
    let w = World::new("innerbad", Family::V4)?;
    let check = |namespaces: &str, capabilities: &[&str]| {
        let file = w.configure(namespaces)?;
        let program = dyscod(&file)?.arg("--check");
        let program = match capabilities {
            [] => program,
            words => program.behind("setpriv".as_ref(), words),
        };
        let log = w.lab.proxy.dir().join("check.log");
        let _ = std::fs::remove_file(&log);
        let mut ran = w.lab.proxy.spawn(program.named("check"))?;
        wait::until("the check to end", LIMIT, || (!ran.runs()).then_some(()))?;
        Ok::<_, anyhow::Error>(ran.log())
    };
    let missing = check("[\"web\"]", &[])?;
    ensure!(
        missing.contains("# warning: the network namespace /run/netns/web"),
        "{missing}"
    );
    let other = check("[\"/proc/self/status\"]", &[])?;
    ensure!(other.contains("is no namespace"), "{other}");
    let rights = ["--bounding-set", "-sys_admin"];
    let rights = check("\"all\"", &rights)?;
    ensure!(rights.contains("CAP_SYS_ADMIN is missing"), "{rights}");
    w.finish()
}
