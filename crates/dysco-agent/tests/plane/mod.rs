//! A data plane for tests.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::PathBuf;
use std::process::Command;

use dysco_agent::{Agent, AgentConfig, Attach, Events, Xdp};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Gives this thread a network namespace of its own, and a BPF file system.
pub(crate) fn alone() {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("this test needs root");
    let none = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none).unwrap();
    mount(none, "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).unwrap();
    ip("link set lo up");
}

pub(crate) fn ip(words: &str) {
    let done = Command::new("ip").args(words.split(' ')).status().unwrap();
    assert!(done.success(), "ip {words}");
}

/// Starts a data plane on the loopback interface, pinned under this name.
pub(crate) fn start(name: &str, change: impl FnOnce(&mut AgentConfig)) -> (Agent, Events) {
    let mut config = AgentConfig {
        pin_dir: PathBuf::from("/sys/fs/bpf").join(name),
        max_sessions: 64,
        interfaces: vec!["lo".into()],
        attach: Attach::Auto,
        xdp: Xdp::Auto,
        rules: Vec::new(),
        ports: (61000, 1000),
        addresses: Vec::new(),
    };
    change(&mut config);
    Agent::start(&config).expect("the data plane starts as root")
}

/// Starts a data plane on the loopback interface of a network namespace of this thread's own.
pub(crate) fn plane() -> (Agent, Events) {
    alone();
    start("plane", |_| {})
}
