//! Checks of the running `dyscod`, and of other programs that occupy its port.

use std::collections::HashSet;
use std::fs;
use std::net::IpAddr;

use dysco_api::{ClientError, KeysReport, Reply, Request, StatusReport};
use dysco_config::Config;
use dysco_explain::{Cause, Explain};

use super::Finding;
use super::namespaces::of_namespaces;
use super::policy::{of_fleet, of_policy};
use crate::context::Context;
use crate::exit::CliError;

/// Version of this program.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Counters that indicate a fault of this host, with hints.
const TELLING: [(&str, &str, &str); 2] = [
    (
        "sessions_not_tracked_no_room",
        "sessions were not entered, since the table is full",
        "raise max_sessions under [data_plane]; it counts once the pinned maps are made anew, as \
         after a reboot",
    ),
    (
        "ports_not_held",
        "ports of sessions that a proxy has left are not held",
        "raise the hard limit of open files of dyscod, and max_sessions where the table is \
         nearly full; before Linux 6.3 none is held",
    ),
];

/// Asks the daemon. `config` is the configuration that it would start with.
pub(super) fn examine(context: &Context, config: Option<&Config>) -> Vec<Finding> {
    // The socket is that of the configuration, unless the user names another.
    let socket = match (context.named, config) {
        (false, Some(config)) => config.api.socket.clone(),
        _ => context.socket.clone(),
    };
    let known = context.named || config.is_some();
    let context = Context {
        socket,
        named: true,
        format: context.format,
    };
    let status = match ask(&context, &Request::Status) {
        Ok(Reply::Status(status)) => status,
        Ok(_) => return vec![Finding::of("dyscod", &CliError::Unexpected)],
        Err(CliError::Client(error @ ClientError::NoDaemon { .. })) => {
            let port = config.map(|config| config.control.port);
            return vec![silent(&error.into(), known, port.filter(|p| is_taken(*p)))];
        }
        Err(error) => return vec![Finding::of("dyscod", &error)],
    };
    let mut findings = of_status(&status, config.map(|c| c.control.peers.as_slice()));
    if let Ok(Reply::Policy(policy)) = ask(&context, &Request::Policy) {
        findings.extend(of_policy(&policy));
    }
    if let Ok(Reply::Namespaces { namespaces }) = ask(&context, &Request::Namespaces) {
        findings.extend(of_namespaces(&namespaces));
    }
    findings
}

fn ask(context: &Context, request: &Request) -> Result<Reply, CliError> {
    Ok(context.ask(request)?.reply()?)
}

/// Returns a finding about a daemon that does not answer. Either it can be started, or another
/// process occupies its port.
fn silent(error: &CliError, known: bool, taken: Option<u16>) -> Finding {
    let reported = error.explain();
    let found = reported.found();
    match (known, taken) {
        (false, _) => {
            let hint =
                "correct the configuration, which names its socket, or name that with --socket";
            Finding::doubtful("dyscod", found, hint)
        }
        (true, None) => Finding::doubtful("dyscod", found, reported.hint.unwrap_or_default()),
        (true, Some(port)) => Finding::ill(
            "dyscod",
            format!("{found}; and something has the UDP port {port}"),
            format!(
                "if that is dyscod ('ss -ulpn sport = :{port}'), name its socket with --socket; \
                 else stop it"
            ),
        ),
    }
}

/// Returns true if a process occupies this UDP port. The port is not tried, because a daemon may
/// be starting.
fn is_taken(port: u16) -> bool {
    let files = ["/proc/net/udp", "/proc/net/udp6"].map(fs::read_to_string);
    let mut texts = files.iter().flatten();
    texts.any(|text| has_port(text, port))
}

/// Returns true if lines such as `  12: 0100007F:1D32 00000000:0000 07 …` contain this local port
/// (Documentation/networking/proc_net_tcp.rst).
fn has_port(text: &str, port: u16) -> bool {
    let local = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.rsplit_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    text.lines().skip(1).any(|line| local(line) == Some(port))
}

/// Returns findings about a daemon's status. `peers` are those that it should be connected with.
pub(super) fn of_status(status: &StatusReport, peers: Option<&[IpAddr]>) -> Vec<Finding> {
    let mut findings = vec![version(&status.version)];
    findings.extend(status.interfaces.iter().map(|interface| {
        let (name, attach) = (&interface.name, &interface.attach);
        match interface.programs.is_empty() {
            false => match &interface.trouble {
                Some(what) => {
                    let hint = interface.hint.as_deref().unwrap_or_default();
                    Finding::doubtful("interfaces", format!("{name}: {what}"), hint)
                }
                None => Finding::well("interfaces", format!("{name}: programs by {attach}")),
            },
            true => Finding::ill(
                "interfaces",
                format!("{name} has no programs: {attach}"),
                "make an interface of this name, or correct interfaces under [host]",
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
        let known = status.peers.iter().find(|known| known.address == *peer);
        no_connection(*peer, known.and_then(|known| known.reason.as_ref()))
    }));
    if !up.is_empty() {
        findings.push(Finding::well(
            "peers",
            format!("connected with {} addresses", up.len()),
        ));
    }
    findings.extend(status.fleet.iter().flat_map(of_fleet));
    findings.extend(status.keys.as_ref().and_then(of_keys));
    let count = |name: &str| status.counters.get(name).copied().unwrap_or(0);
    let reported = TELLING.iter().filter(|(name, ..)| count(name) > 0);
    findings.extend(reported.map(|(name, what, hint)| {
        Finding::doubtful(
            "counters",
            format!("{what} ({name}: {})", count(name)),
            *hint,
        )
    }));
    findings
}

/// Returns a finding about a peer that is not connected, for this reason if one is known.
fn no_connection(peer: IpAddr, reason: Option<&Cause>) -> Finding {
    let found = format!("there is no connection to {peer}");
    match reason {
        Some(Cause { why, hint }) => {
            let hint = hint.as_deref().unwrap_or("see the log of dyscod there");
            Finding::doubtful("peers", format!("{found}: {why}"), hint)
        }
        None => Finding::doubtful(
            "peers",
            found,
            "start dyscod there, and let the UDP port of [control] through",
        ),
    }
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

/// Returns a finding about keys that the daemon uses and that have ended, or end soon.
fn of_keys(keys: &KeysReport) -> Option<Finding> {
    let Cause { why, hint } = keys.trouble()?;
    let hint = hint.unwrap_or_default();
    let hint = format!("{hint}; if that is done, only 'dyscoctl reload'");
    Some(match keys.has_ended() {
        true => Finding::ill("dyscod", why, hint),
        false => {
            let found = format!("it uses keys that end soon: {why}");
            Finding::expiring("dyscod", found, hint)
        }
    })
}

#[cfg(test)]
mod tests {
    use dysco_api::{FleetReport, InterfaceReport, PeerReport};

    use super::*;
    use crate::doctor::Verdict;

    fn status() -> StatusReport {
        StatusReport {
            host: "fw1".into(),
            version: VERSION.into(),
            interfaces: vec![InterfaceReport {
                name: "eth0".into(),
                attach: "tcx".into(),
                xdp: false,
                programs: vec!["dysco_ingress".into()],
                trouble: None,
                hint: None,
            }],
            peers: vec![PeerReport {
                address: [10, 0, 0, 1].into(),
                up: true,
                rtt_us: None,
                reason: None,
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
    fn keys_that_end_soon_are_told_from_those_that_have_ended() {
        let with = |authority_days, certificate_days| {
            let status = StatusReport {
                keys: Some(KeysReport {
                    authority_days,
                    certificate_days,
                }),
                ..status()
            };
            let found = of_status(&status, Some(&[[10, 0, 0, 1].into()]));
            let expires = found.iter().any(|finding| finding.expires);
            (worst(&found).0, expires)
        };
        assert_eq!(with(400, 30), (Verdict::Well, false));
        assert_eq!(with(400, 29), (Verdict::Doubtful, true));
        assert_eq!(with(0, 400), (Verdict::Doubtful, true));
        assert_eq!(with(400, -1), (Verdict::Ill, false));
    }

    #[test]
    fn each_fault_is_found() {
        type Fault = fn(&mut StatusReport);
        let faults: [(Fault, Verdict, &str); 6] = [
            (
                |s| s.interfaces[0].trouble = Some("no Ethernet header; really".into()),
                Verdict::Doubtful,
                "eth0: no Ethernet header",
            ),
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
    fn a_peer_that_is_not_connected_is_reported_with_the_reason() {
        let peer = IpAddr::from([10, 0, 0, 1]);
        let mut status = status();
        status.peers[0].up = false;
        let found = |status: &StatusReport| {
            let mut found = of_status(status, Some(&[peer]));
            found.retain(Finding::is_trouble);
            assert_eq!(found.len(), 1, "{found:?}");
            found.remove(0)
        };
        assert!(found(&status).hint.contains("[control]"));
        let refused = "the TLS handshake failed: its certificate was not accepted here";
        status.peers[0].reason = Some(Cause::new(refused).hint("issue another"));
        let finding = found(&status);
        let expected = format!("there is no connection to 10.0.0.1: {refused}");
        assert_eq!(
            (finding.found, finding.hint),
            (expected, "issue another".into())
        );
    }

    #[test]
    fn etcd_and_its_policy_are_judged() {
        let with = |fleet: FleetReport| StatusReport {
            fleet: Some(fleet),
            ..status()
        };
        let well = FleetReport {
            key: "etcd:/dysco/policy".into(),
            connected: true,
            url: Some("https://10.0.0.5:2379".into()),
            ..FleetReport::default()
        };
        let found = of_status(&with(well.clone()), None);
        assert_eq!(worst(&found).0, Verdict::Well, "{found:?}");
        let lost = FleetReport {
            connected: false,
            for_s: 90,
            error: Some("connection refused".into()),
            ..well.clone()
        };
        let (verdict, what) = worst(&of_status(&with(lost), None));
        assert_eq!(verdict, Verdict::Doubtful);
        assert!(
            what.contains("lost for 1m 30s") && what.contains("connection refused"),
            "{what}"
        );
        let refused = FleetReport {
            refused: Some("line 1: no".into()),
            ..well
        };
        let (verdict, what) = worst(&of_status(&with(refused), None));
        assert_eq!(verdict, Verdict::Ill);
        assert!(
            what.contains("etcd:/dysco/policy is not in force: line 1: no"),
            "{what}"
        );
    }

    #[test]
    fn one_that_does_not_run_may_be_started_unless_its_port_is_taken() {
        let error = CliError::Client(ClientError::NoDaemon {
            socket: "/run/s".into(),
            source: std::io::ErrorKind::NotFound.into(),
        });
        let finding = silent(&error, true, None);
        assert_eq!(finding.verdict, Verdict::Doubtful);
        assert!(finding.hint.starts_with("start it"), "{finding:?}");
        assert!(silent(&error, false, None).hint.contains("configuration"));
        let finding = silent(&error, true, Some(7474));
        assert_eq!(finding.verdict, Verdict::Ill);
        assert!(finding.found.contains("7474"), "{finding:?}");
    }

    #[test]
    fn a_port_is_found_among_the_kernels() {
        let text = "  sl  local_address rem_address   st\n\
                    12: 0100007F:1D32 00000000:0000 07\n\
                    13: 00000000000000000000000000000000:0035 00000000000000000000000000000000:1D33 07\n";
        assert!(has_port(text, 7474) && has_port(text, 53));
        // The port of the remote end does not count.
        assert!(!has_port(text, 7475));
        assert!(!has_port("", 7474));
        let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        assert!(is_taken(socket.local_addr().unwrap().port()));
    }
}
