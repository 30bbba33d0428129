//! Remains of an earlier run, and of other programs, on interfaces: a packet passes each
//! program once, and those that are not configured pass none.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};
use dysco_agent::{Agent, Attach, InterfaceChange, LAYOUT, Leftover};
use plane::{alone, ip, start};

const NONE: (usize, usize) = (0, 0);
const METHODS: [Attach; 2] = [Attach::Tcx, Attach::Clsact];

/// Numbers of our programs on an interface, by TCX and by clsact.
fn programs(interface: &str) -> (usize, usize) {
    let (_, links) = SchedClassifier::query_tcx(interface, TcAttachType::Egress).unwrap();
    let words = ["filter", "show", "dev", interface, "egress"];
    let listed = Command::new("tc").args(words).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    (links.len(), listed.matches("name dysco_egress").count())
}

/// Waits until programs are on an interface by one method alone, or by none. The kernel ends a link a
/// moment after its pin is removed.
fn wait_for(interface: &str, expected: (usize, usize), what: &str) {
    let until = Instant::now() + Duration::from_secs(20);
    while programs(interface) != expected {
        let found = programs(interface);
        assert!(
            Instant::now() < until,
            "{interface}: {found:?}, not {expected:?}: {what}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The expected numbers for programs that are there by one method.
fn once(how: Attach) -> (usize, usize) {
    match how {
        Attach::Clsact => (0, 1),
        Attach::Tcx | Attach::Auto => (1, 0),
    }
}

fn on(name: &str, how: Attach, interfaces: &[&str]) -> Agent {
    let (agent, _) = start(name, |config| {
        config.interfaces = interfaces.iter().map(|&i| i.into()).collect();
        config.attach = how;
    });
    agent
}

fn make(names: &[&str]) {
    for name in names {
        // The other end has any name that is free.
        ip(&format!("link add {name} type veth"));
    }
}

fn remove(names: &[&str]) {
    for name in names {
        ip(&format!("link del {name}"));
    }
}

#[tokio::test]
async fn an_interface_that_is_not_configured_any_more_has_no_programs() {
    alone();
    for how in METHODS {
        make(&["one", "two", "three"]);
        let other = on("other", how, &["three"]);
        drop(on("own", how, &["one", "two"]));
        let agent = on("own", how, &["two"]);
        wait_for("one", NONE, &format!("{how:?}"));
        wait_for("two", once(how), &format!("{how:?}"));
        wait_for("three", once(how), "another data plane's stay");
        drop((agent, other));
        remove(&["one", "two", "three"]);
    }
}

/// The programs that a run finds on an interface can be taken off as its own.
#[tokio::test]
async fn an_interface_is_left_by_the_next_run() {
    alone();
    for how in METHODS {
        make(&["one"]);
        drop(on("own", how, &["one", "lo"]));
        let agent = on("own", how, &["one", "lo"]);
        wait_for("one", once(how), &format!("{how:?}"));
        agent.remove_interface("one");
        wait_for("one", NONE, &format!("{how:?}"));
        drop(agent);
        remove(&["one"]);
    }
}

#[tokio::test]
async fn another_method_replaces_the_one_before() {
    alone();
    make(&["one"]);
    for how in [Attach::Clsact, Attach::Tcx, Attach::Clsact] {
        let agent = on("own", how, &["one"]);
        wait_for("one", once(how), &format!("{how:?}"));
        drop(agent);
    }
    remove(&["one"]);
}

/// Another interface has the name of one that was renamed while no process ran.
#[tokio::test]
async fn a_renamed_interface_is_not_taken_for_the_new_one() {
    alone();
    for how in METHODS {
        make(&["one"]);
        drop(on("own", how, &["one"]));
        ip("link set one name renamed");
        make(&["one"]);
        let agent = on("own", how, &["one"]);
        wait_for("one", once(how), &format!("{how:?}"));
        wait_for("renamed", NONE, &format!("{how:?}"));
        // The same while a process runs.
        ip("link set one name other");
        make(&["one"]);
        let changes = agent.look_at_interfaces();
        let anew = matches!(
            &changes[..],
            [(_, InterfaceChange::Attached { anew: true, .. })]
        );
        assert!(anew, "{changes:?}");
        wait_for("one", once(how), &format!("{how:?}"));
        wait_for("other", NONE, &format!("{how:?}"));
        drop(agent);
        remove(&["one", "renamed", "other"]);
    }
}

#[tokio::test]
async fn programs_that_another_takes_off_are_attached_again() {
    alone();
    for how in METHODS {
        make(&["one"]);
        let agent = on("own", how, &["one"]);
        assert!(agent.look_at_interfaces().is_empty());
        let link = Path::new("/sys/fs/bpf/own").join(LAYOUT);
        match how {
            Attach::Clsact => {
                let words = ["qdisc", "del", "dev", "one", "clsact"];
                assert!(Command::new("tc").args(words).status().unwrap().success());
            }
            _ => std::fs::remove_file(link.join("link_one_dysco_egress")).unwrap(),
        }
        wait_for("one", NONE, &format!("{how:?}"));
        let changes = agent.look_at_interfaces();
        let again = matches!(
            &changes[..],
            [(_, InterfaceChange::Attached { anew: false, .. })]
        );
        assert!(again, "{changes:?}");
        wait_for("one", once(how), &format!("{how:?}"));
        assert!(agent.look_at_interfaces().is_empty());
        drop(agent);
        remove(&["one"]);
    }
}

/// As the name of a VLAN.
#[tokio::test]
async fn an_interface_may_have_a_dot_in_its_name() {
    alone();
    for how in METHODS {
        make(&["one.5"]);
        drop(on("own", how, &["one.5"]));
        let agent = on("own", how, &["one.5"]);
        assert_eq!(agent.attached()[0].attach, how);
        wait_for("one.5", once(how), &format!("{how:?}"));
        drop(agent);
        let agent = on("own", how, &["lo"]);
        wait_for("one.5", NONE, &format!("{how:?}"));
        drop(agent);
        remove(&["one.5"]);
    }
}

#[tokio::test]
async fn an_uninstallation_leaves_the_filters_of_another_data_plane() {
    alone();
    make(&["one", "two", "dysco-s0"]);
    let other = on("other", Attach::Clsact, &["two"]);
    let agent = on("own", Attach::Clsact, &["one"]);
    agent.attach_handler("dysco-s0").unwrap();
    drop(agent);
    let found = Leftover::find(Path::new("/sys/fs/bpf/own")).unwrap();
    let mut names: Vec<_> = found
        .interfaces()
        .map(|(name, _)| name.to_owned())
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["dysco-s0", "one"]);
    let handlers = ["dysco-s0".to_owned(), "dysco-s1".to_owned()];
    // It waits for netlink requests, which a runtime does not allow. The thread is in this namespace.
    let removed = std::thread::spawn(move || found.remove(&handlers));
    removed.join().unwrap().unwrap();
    assert_eq!((programs("one"), programs("two")), ((0, 0), (0, 1)));
    assert!(nix::net::if_::if_nametoindex("dysco-s0").is_err());
    drop(other);
    remove(&["one", "two"]);
}
