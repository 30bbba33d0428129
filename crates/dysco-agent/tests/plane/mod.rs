//! A data plane to try things on.

use std::path::PathBuf;
use std::process::Command;

use dysco_agent::{Agent, AgentConfig, Attach, Xdp};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// A data plane on the loopback of a network of this thread's own.
pub fn plane() -> (Agent, dysco_agent::Events) {
    unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).expect("this test needs root");
    let none = None::<&str>;
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, private, none).unwrap();
    mount(none, "/sys/fs/bpf", Some("bpf"), MsFlags::empty(), none).unwrap();
    let up = ["link", "set", "lo", "up"];
    assert!(Command::new("ip").args(up).status().unwrap().success());
    let config = AgentConfig {
        pin_dir: PathBuf::from("/sys/fs/bpf/alias"),
        max_sessions: 64,
        interfaces: vec!["lo".into()],
        attach: Attach::Auto,
        xdp: Xdp::Auto,
        rules: Vec::new(),
        ports: (61000, 1000),
        addresses: Vec::new(),
    };
    Agent::start(&config).expect("the data plane starts as root")
}
