//! What the `dyscod` that runs says of itself, and who else is where it would be.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{IpAddr, UdpSocket};

use super::Finding;
use crate::api::{ClientError, PolicyReport, Reply, Request, StatusReport};
use crate::cli::context::Context;
use crate::cli::exit::CliError;
use crate::config::{Config, Control};

/// This program's own.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Counters that tell of a fault of this host, and what to do.
const TELLING: [(&str, &str, &str); 2] = [
    (
        "sessions_not_tracked_no_room",
        "sessions were not entered, since the table is full",
        "raise max_sessions under [data_plane]",
    ),
    (
        "ports_not_held",
        "ports of sessions that a proxy has left are not held",
        "raise the limit of open files of dyscod",
    ),
];

/// Asks the daemon; `config` is what it would start with.
pub fn examine(context: &Context, config: Option<&Config>) -> Vec<Finding> {
    // Where it is said to be, unless the user says otherwise.
    let socket = match (context.named, config) {
        (false, Some(config)) => config.api.socket.clone(),
        _ => context.socket.clone(),
    };
    let context = Context {
        socket,
        named: true,
        format: context.format,
    };
    let status = match ask(&context, &Request::Status) {
        Ok(Reply::Status(status)) => status,
        Ok(_) => return vec![Finding::of("dyscod", &CliError::Unexpected)],
        Err(error) => {
            let silent = matches!(&error, CliError::Client(ClientError::NoDaemon { .. }));
            let taken = config.filter(|_| silent).map(|c| &c.control);
            let taken = taken.and_then(who_listens);
            return [Finding::of("dyscod", &error)]
                .into_iter()
                .chain(taken)
                .collect();
        }
    };
    let mut findings = of_status(&status, config.map(|c| c.control.peers.as_slice()));
    if let Ok(Reply::Policy(policy)) = ask(&context, &Request::Policy) {
        findings.extend(of_policy(&policy));
    }
    findings
}

fn ask(context: &Context, request: &Request) -> Result<Reply, CliError> {
    Ok(context.ask(request)?.reply()?)
}

/// No `dyscod` runs: does somebody else have its port?
fn who_listens(control: &Control) -> Option<Finding> {
    let port = control.port;
    let taken = control.listen.iter().find(|ip| {
        let bound = UdpSocket::bind((**ip, port));
        bound.is_err_and(|error| error.kind() == ErrorKind::AddrInUse)
    })?;
    Some(Finding::ill(
        "control",
        format!("another process has the UDP port {port} of {taken}"),
        format!(
            "see who ('ss -ulpn sport = :{port}'), or set another port under [control] in the whole fleet"
        ),
    ))
}

/// What the daemon says of itself; `peers` are those that it should be connected with.
fn of_status(status: &StatusReport, peers: Option<&[IpAddr]>) -> Vec<Finding> {
    let mut findings = vec![version(&status.version)];
    findings.extend(status.interfaces.iter().map(|interface| {
        let (name, attach) = (&interface.name, &interface.attach);
        match interface.programs.is_empty() {
            false => Finding::well("interfaces", format!("{name}: programs by {attach}")),
            true => Finding::ill(
                "interfaces",
                format!("{name} has no programs: {attach}"),
                "make an interface of this name, or mend interfaces under [host]",
            ),
        }
    }));
    let up = status.peers.iter().filter(|peer| peer.up);
    let up: HashSet<_> = up.map(|peer| peer.address).collect();
    let down = peers
        .unwrap_or_default()
        .iter()
        .filter(|peer| !up.contains(peer));
    findings.extend(down.map(|peer| {
        Finding::doubtful(
            "peers",
            format!("there is no connection to {peer}"),
            "start dyscod there, and let the UDP port of [control] through",
        )
    }));
    if !up.is_empty() {
        findings.push(Finding::well("peers", format!("{} connected", up.len())));
    }
    let count = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let told = TELLING.iter().filter(|(name, ..)| count(name) > 0);
    findings.extend(told.map(|(name, what, mend)| {
        Finding::doubtful(
            "counters",
            format!("{what} ({name}: {})", count(name)),
            *mend,
        )
    }));
    findings
}

fn version(theirs: &str) -> Finding {
    match theirs == VERSION {
        true => Finding::well("dyscod", format!("{theirs} runs")),
        false => Finding::doubtful(
            "dyscod",
            format!("{theirs} runs, and this is dyscoctl {VERSION}"),
            "use both of one version",
        ),
    }
}

/// The rules in force.
fn of_policy(policy: &PolicyReport) -> Vec<Finding> {
    let unused = policy.error.iter().map(|error| {
        let file = policy.file.display();
        Finding::ill(
            "policy",
            format!("{file} is not in force: {error}"),
            format!("mend it; see 'dyscoctl policy check {file}'"),
        )
    });
    let missing: HashSet<_> = policy.rules.iter().flat_map(|rule| &rule.missing).collect();
    let mut missing: Vec<_> = missing.into_iter().collect();
    missing.sort_unstable();
    let missing = missing.into_iter().map(|host| {
        Finding::doubtful(
            "policy",
            format!("{host} of a chain is not there: its rules do what they say of that"),
            format!("start dyscod at {host}; see 'dyscoctl policy list'"),
        )
    });
    unused.chain(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{InterfaceReport, PeerReport};
    use crate::cli::doctor::Verdict;

    fn status() -> StatusReport {
        StatusReport {
            host: "fw1".into(),
            version: VERSION.into(),
            interfaces: vec![InterfaceReport {
                name: "eth0".into(),
                attach: "tcx".into(),
                xdp: false,
                programs: vec!["dysco_ingress".into()],
            }],
            peers: vec![PeerReport {
                address: [10, 0, 0, 1].into(),
                up: true,
                rtt_us: None,
            }],
            ..StatusReport::default()
        }
    }

    fn worst(findings: &[Finding]) -> (Verdict, String) {
        let worst = findings.iter().max_by_key(|f| f.verdict).unwrap();
        (worst.verdict, worst.found.clone())
    }

    #[test]
    fn a_daemon_that_is_well() {
        let found = of_status(&status(), Some(&[[10, 0, 0, 1].into()]));
        assert_eq!(worst(&found).0, Verdict::Well, "{found:?}");
    }

    #[test]
    fn each_fault_is_found() {
        type Fault = fn(&mut StatusReport);
        let faults: [(Fault, Verdict, &str); 5] = [
            (|s| s.version = "0.0.9".into(), Verdict::Doubtful, "0.0.9"),
            (
                |s| s.interfaces[0].programs.clear(),
                Verdict::Ill,
                "eth0 has no programs",
            ),
            (|s| s.peers[0].up = false, Verdict::Doubtful, "10.0.0.1"),
            (|s| s.peers.clear(), Verdict::Doubtful, "10.0.0.1"),
            (
                |s| s.counters = [("ports_not_held".to_owned(), 3)].into(),
                Verdict::Doubtful,
                "ports_not_held: 3",
            ),
        ];
        for (fault, verdict, word) in faults {
            let mut status = status();
            fault(&mut status);
            let (found, what) = worst(&of_status(&status, Some(&[[10, 0, 0, 1].into()])));
            assert_eq!(found, verdict, "{word}");
            assert!(what.contains(word), "{what}");
        }
    }

    #[test]
    fn a_port_that_another_has_is_found() {
        let other = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        let mut control = Control {
            listen: vec![[127, 0, 0, 1].into()],
            port: other.local_addr().unwrap().port(),
            peers: Vec::new(),
            pki: crate::config::PkiPaths::in_dir("/none".as_ref()),
        };
        assert!(who_listens(&control).is_some());
        drop(other);
        control.port = 0;
        assert_eq!(who_listens(&control), None);
    }
}
