//! Interfaces that are deleted and made anew: the programs are attached to them again, and
//! sessions leave by them.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod plane;

use std::net::{TcpListener, TcpStream};
use std::os::fd::{FromRawFd, OwnedFd};
use std::process::Command;

use aya::programs::{SchedClassifier, TcAttachType};
use dysco_agent::common::{FlowKey, Translation};
use dysco_agent::{
    Agent, AgentConfig, AgentError, Attach, DetourLink, InterfaceChange, NewPath, Start,
};
use plane::{alone, ip, start};

const MAKE: &str = "link add one type veth peer name two";

/// Number of our programs that see the packets which an interface sends.
fn programs(how: Attach) -> usize {
    if how == Attach::Tcx {
        let (_, all) = SchedClassifier::query_tcx("one", TcAttachType::Egress).unwrap();
        return all.len();
    }
    let words = ["filter", "show", "dev", "one", "egress"];
    let listed = Command::new("tc").args(words).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    listed.matches("name dysco_egress").count()
}

fn index(agent: &Agent) -> Option<u32> {
    agent.attached()[0].index
}

fn is_attached_to_anew(name: &str, how: Attach) {
    ip(MAKE);
    let (agent, _events) = start(name, |config| {
        config.interfaces = vec!["one".into(), "lo".into()];
        config.attach = how;
    });
    let how = agent.attached()[0].attach;
    let first = index(&agent).unwrap();
    let changes = agent.look_at_interfaces();
    assert!(changes.is_empty(), "{changes:?}");

    let detoured = with_a_detour(&agent, first);
    assert_eq!(agent.leaving_by(first), 1);
    // A session that leaves by the interface.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let slot = agent.find(&key).unwrap();
    let end = |port| ([127, 0, 0, 1], port).into();
    let path = NewPath {
        key: FlowKey::new(end(61_500), end(9)),
        ifindex: first,
        translation: Translation::default(),
    };
    agent.prepare(slot, &path).unwrap();

    ip("link del one");
    let gone = agent.look_at_interfaces();
    assert!(
        matches!(&gone[..], [(name, InterfaceChange::Gone)] if name == "one"),
        "{gone:?}"
    );
    assert_eq!(index(&agent), None);
    assert!(agent.look_at_interfaces().is_empty(), "it is told once");

    for noticed in [true, false] {
        if !noticed {
            // Between two checks.
            ip("link del one");
        }
        ip(MAKE);
        let back = agent.look_at_interfaces();
        let anew = matches!(&back[..], [(_, InterfaceChange::Attached { .. })]);
        assert!(anew, "{back:?}");
        assert!(index(&agent).is_some_and(|index| index != first));
        assert_eq!(programs(how), 1);
        assert_eq!(Some(agent.session(slot).ifindex), index(&agent));
        assert_eq!(
            led_by(&agent, detoured),
            (index(&agent).unwrap(), address())
        );
        assert!(agent.look_at_interfaces().is_empty());
    }
    ip("link set one address 02:00:00:00:00:77");
    assert!(agent.look_at_interfaces().is_empty());
    assert_eq!(led_by(&agent, detoured).1, [2, 0, 0, 0, 0, 0x77]);
    drop((agent, opened, listener));
    ip("link del one");
}

/// Opens a session that has services, and whose packets come by this interface.
fn with_a_detour(agent: &Agent, interface: u32) -> u32 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let opened = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let key = FlowKey::new(opened.local_addr().unwrap(), opened.peer_addr().unwrap());
    let slot = agent.find(&key).unwrap();
    let link = DetourLink {
        handler: 1,
        interface,
        address: address(),
    };
    let at = agent.detour_numbers(slot);
    let start = Start {
        out: at.sent_out,
        back: at.sent_back,
        acked: None,
    };
    agent
        .enter_detour(slot, &start, &link, false, false)
        .unwrap();
    slot
}

/// The interface of a session with services, and the address that its packets have there.
fn led_by(agent: &Agent, slot: u32) -> (u32, [u8; 6]) {
    let d = agent.detour(slot).unwrap();
    (d.interface, d.address[..6].try_into().unwrap())
}

fn address() -> [u8; 6] {
    let all = dysco_agent::links::links().unwrap();
    let one = all.iter().find(|link| link.name == "one").unwrap();
    one.address.unwrap()
}

#[tokio::test]
async fn one_that_is_made_anew_has_the_programs_again() {
    alone();
    is_attached_to_anew("first", Attach::Auto);
    is_attached_to_anew("second", Attach::Clsact);
}

/// A packet would be changed on both.
#[tokio::test]
async fn one_that_is_made_anew_of_another_is_refused() {
    alone();
    ip(MAKE);
    ip("link add low type veth peer name far");
    let (agent, _events) = start("stacked", |config| {
        config.interfaces = vec!["one".into(), "low".into()];
    });
    ip("link del one");
    agent.look_at_interfaces();
    ip("link add one link low type macvlan");
    let refused = agent.look_at_interfaces();
    let [(name, InterfaceChange::Refused(AgentError::Stacked { upper, kind, lower }))] =
        &refused[..]
    else {
        panic!("{refused:?}")
    };
    assert_eq!(
        [&**name, upper, kind, lower],
        ["one", "one", "macvlan", "low"]
    );
    assert_eq!(index(&agent), None);
    assert!(agent.look_at_interfaces().is_empty(), "it is told once");
    drop(agent);
    ip("link del one");
    ip("link del low");
}

/// The `bpf` system call, for which the libraries here have no function.
fn bpf(command: i64, attributes: &mut [u8]) -> OwnedFd {
    // SAFETY: the attributes and all that they name live until the call has returned. The call
    // returns a descriptor that nothing else owns.
    unsafe {
        let fd = libc::syscall(
            libc::SYS_bpf,
            command,
            attributes.as_mut_ptr(),
            attributes.len(),
        );
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        OwnedFd::from_raw_fd(fd as i32)
    }
}

/// Attaches another program of this name to the ingress of an interface, at the end or at the
/// head (`BPF_F_BEFORE`).
fn another(name: &str, interface: &str, flags: u32) -> OwnedFd {
    use std::os::fd::AsRawFd;
    const PROG_LOAD: i64 = 5;
    const LINK_CREATE: i64 = 28;
    const SCHED_CLS: u32 = 3;
    const TCX_INGRESS: u32 = 46;
    // r0 = 0 (TCX_PASS, which ends the run); exit
    let code: [u64; 2] = [0xb7, 0x95];
    let license = c"GPL";
    let mut load = [0; 64];
    load[..4].copy_from_slice(&SCHED_CLS.to_ne_bytes());
    load[4..8].copy_from_slice(&2_u32.to_ne_bytes());
    load[8..16].copy_from_slice(&(code.as_ptr() as u64).to_ne_bytes());
    load[16..24].copy_from_slice(&(license.as_ptr() as u64).to_ne_bytes());
    load[48..48 + name.len()].copy_from_slice(name.as_bytes());
    let program = bpf(PROG_LOAD, &mut load);
    let index = nix::net::if_::if_nametoindex(interface).unwrap();
    let mut create = [0; 32];
    let words = [program.as_raw_fd() as u32, index, TCX_INGRESS, flags];
    for (at, word) in create.chunks_exact_mut(4).zip(words) {
        at.copy_from_slice(&word.to_ne_bytes());
    }
    bpf(LINK_CREATE, &mut create)
}

#[tokio::test]
async fn the_programs_come_first_and_say_who_came_before_them_since() {
    const AT_THE_HEAD: u32 = 1 << 3;
    alone();
    ip(MAKE);
    let there = another("there", "one", 0);
    let (agent, _events) = start("first", |config| {
        config.interfaces = vec!["one".into()];
    });
    let attached = agent.attached()[0].clone();
    assert_eq!(attached.attach, Attach::Tcx);
    assert!(agent.before_ours(&attached).is_empty());
    let since = another("since", "one", AT_THE_HEAD);
    assert_eq!(agent.before_ours(&attached), ["since"]);
    drop((there, since, agent));
    ip("link del one");
}

fn by_filters(config: &mut AgentConfig) {
    config.interfaces = vec!["one".into()];
    config.attach = Attach::Clsact;
}

/// Runs tc. A bar in a word stands for a space.
fn tc(words: &str) {
    let words = words.split(' ').map(|word| word.replace('|', " "));
    let run = Command::new("tc").args(words).output().unwrap();
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

/// Adds a filter that ends the run of each packet of a protocol: classic BPF that returns 0
/// (`TC_ACT_OK`).
fn filter(preference: &str, protocol: &str) {
    tc(&format!(
        "filter add dev one ingress pref {preference} protocol {protocol} bpf bytecode \
         1,6|0|0|0, direct-action"
    ));
}

#[tokio::test]
async fn filters_come_first_and_say_who_came_before_them_since() {
    alone();
    ip(MAKE);
    tc("qdisc add dev one clsact");
    filter("1", "all");
    filter("2", "ip");
    let (agent, _events) = start("first", by_filters);
    let attached = agent.attached()[0].clone();
    assert!(agent.before_ours(&attached).is_empty());
    filter("1", "all");
    assert_eq!(agent.before_ours(&attached), ["bpf"]);
    drop(agent);
    ip("link del one");
}

/// Filters of one priority are of one protocol: if those of priority 1 are of another, ours have
/// to run behind them.
#[tokio::test]
async fn filters_run_behind_those_of_another_protocol() {
    alone();
    ip(MAKE);
    tc("qdisc add dev one clsact");
    filter("1", "ip");
    let (agent, _events) = start("behind", by_filters);
    assert_eq!(agent.before_ours(&agent.attached()[0]), ["bpf"]);
    assert_eq!(programs(Attach::Clsact), 1);
    drop(agent);
    ip("link del one");
}
