//! `dyscoctl status`.

use dysco_api::{Exit, FleetReport, Reply, Request, StatusReport};
use serde::Serialize;

use super::context::Context;
use super::doctor::{Finding, of_status};
use super::exit::CliError;
use super::output::{list, listed, micros, number, or_dash, rendered, seconds, section, table};

/// Number of hosts that a line names.
const FEW: usize = 5;

/// Shows the status.
pub(crate) fn run(context: &Context) -> Result<Exit, CliError> {
    let mut client = context.ask(&Request::Status)?;
    let Reply::Status(status) = client.reply()? else {
        return Err(CliError::Unexpected);
    };
    let judged = Judged::of(*status);
    context.print(&judged, text)?;
    Ok(Exit::Done)
}

/// The status of the host with a verdict.
#[derive(Serialize)]
struct Judged {
    verdict: Verdict,
    problems: Vec<Problem>,
    #[serde(flatten)]
    status: StatusReport,
}

/// Verdict on the host, in a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// The daemon knows of no problem.
    Ok,
    /// There is a problem.
    Degraded,
}

/// A problem, and what to do.
#[derive(Debug, Serialize)]
struct Problem {
    what: String,
    hint: String,
}

impl Judged {
    fn of(status: StatusReport) -> Judged {
        let findings = of_status(&status).into_iter().filter(Finding::is_trouble);
        let mut problems: Vec<_> = findings
            .map(|finding| Problem {
                what: finding.found,
                hint: finding.hint,
            })
            .collect();
        if status.interfaces.is_empty() {
            problems.push(Problem {
                what: "dyscod is attached to no interface".into(),
                hint: "name some under [host] interfaces".into(),
            });
        }
        Judged {
            verdict: match problems.is_empty() {
                true => Verdict::Ok,
                false => Verdict::Degraded,
            },
            problems,
            status,
        }
    }

    /// Returns the verdict in one line.
    fn line(&self) -> String {
        let up = self.status.peers.iter().filter(|peer| peer.up).count();
        if self.verdict == Verdict::Degraded {
            let what: Vec<_> = self.problems.iter().map(|p| p.what.as_str()).collect();
            return format!("degraded: {}", what.join("; "));
        }
        let of = |n: u64, word: &str| match n {
            1 => format!("1 {word}"),
            n => format!("{} {word}s", number(n)),
        };
        let peers = match self.status.peers.len() {
            0 => "no peers yet".to_owned(),
            all => format!("{up} of {} answer", of(all as u64, "peer")),
        };
        format!(
            "ok: {}, {}, {peers}",
            of(self.status.sessions.live, "session"),
            of(self.status.interfaces.len() as u64, "interface"),
        )
    }
}

fn text(judged: &Judged) -> String {
    let status = &judged.status;
    let problems = judged
        .problems
        .iter()
        .map(|p| format!("! {}; {}\n", p.what, p.hint));
    let problems: String = problems.collect();
    let mut interfaces = table(["NAME", "ATTACHED", "RELAYS BY", "PROGRAMS"]);
    for interface in &status.interfaces {
        let programs = interface.programs.join(", ");
        let relays = if interface.xdp { "XDP, TC" } else { "TC" };
        let (name, attach) = (interface.name.clone(), interface.attach.clone());
        interfaces.add_row([name, attach, relays.into(), programs]);
    }
    let mut peers = table(["ADDRESS", "STATE", "ROUND TRIP", "REASON"]);
    for peer in &status.peers {
        let state = if peer.up { "up" } else { "down" };
        let rtt = or_dash(peer.rtt_us.map(micros));
        let reason = or_dash(peer.reason.as_ref().map(|reason| reason.why.clone()));
        peers.add_row([peer.address.to_string(), state.into(), rtt, reason]);
    }
    let mut counters = table(["NAME", "COUNT"]);
    for (name, count) in status.counters.iter().filter(|(_, count)| **count > 0) {
        counters.add_row([name.clone(), number(*count)]);
    }
    format!(
        "{}\n{problems}\n{}\n{}{}{}",
        judged.line(),
        rendered(&host(status)),
        section("Interfaces", &interfaces),
        section("Peers", &peers),
        section("Counters", &counters)
    )
}

/// Returns the state of etcd, its policy and its hosts, in one line.
fn fleet(fleet: &FleetReport) -> String {
    let url = fleet.url.as_deref().unwrap_or("etcd");
    let time = seconds(fleet.for_s as f64);
    let link = match fleet.connected {
        true => format!("connected to {url} for {time}"),
        false => format!("lost for {time}"),
    };
    let policy = match fleet.policy {
        Some(revision) => format!("policy of revision {revision}"),
        None => "no policy of etcd in force".into(),
    };
    let others = fleet
        .hosts
        .iter()
        .filter(|host| host.policy != fleet.policy);
    let names: Vec<_> = others.map(|host| host.name.as_str()).collect();
    let others = match names.as_slice() {
        [] => String::new(),
        few if few.len() <= FEW => format!("; another policy on {}", few.join(", ")),
        many => format!("; another policy on {} of them", many.len()),
    };
    let hosts = number(fleet.hosts.len() as u64);
    format!("{link}, {policy}, {hosts} hosts{others}")
}

/// Returns the host, and what it has, in numbers.
fn host(status: &StatusReport) -> comfy_table::Table {
    let sessions = &status.sessions;
    let fleet = status.fleet.iter().map(|report| ("etcd", fleet(report)));
    let rows = [
        (
            "host",
            format!("{} ({})", status.host, listed(&status.addresses)),
        ),
        (
            "dyscod",
            format!("{}, up {}", status.version, seconds(status.uptime_s as f64)),
        ),
        (
            "sessions",
            format!(
                "{} tracked, {} in a chain, {} changing, {} with a middlebox removed ({} bypass, {} return, {} local); {} adopted",
                number(sessions.tracked),
                number(sessions.chained),
                number(sessions.changing),
                number(sessions.removed),
                number(sessions.bypass),
                number(sessions.returned),
                number(sessions.local),
                number(sessions.adopted)
            ),
        ),
        (
            "shim",
            format!(
                "{} processes, {} pairs",
                number(status.shim_processes),
                number(status.pairs)
            ),
        ),
    ];
    list(rows.into_iter().chain(fleet))
}

#[cfg(test)]
mod tests {
    use dysco_api::{FleetHost, InterfaceReport, KeysReport, PeerReport};
    use dysco_explain::Cause;

    use super::*;

    fn status() -> StatusReport {
        let peer = |last| PeerReport {
            address: [10, 0, 0, last].into(),
            up: true,
            rtt_us: None,
            reason: None,
        };
        let mut status = StatusReport {
            version: env!("CARGO_PKG_VERSION").into(),
            interfaces: vec![InterfaceReport {
                name: "eth0".into(),
                attach: "tcx".into(),
                xdp: false,
                programs: vec!["dysco_ingress".into()],
                trouble: None,
                hint: None,
            }],
            peers: vec![peer(1), peer(2)],
            ..StatusReport::default()
        };
        status.sessions.live = 1234;
        status
    }

    #[test]
    fn a_host_that_is_well_is_reported_so_in_one_line() {
        let judged = Judged::of(status());
        let first = "ok: 1,234 sessions, 1 interface, 2 of 2 peers answer";
        assert_eq!(judged.line(), first);
        assert_eq!(text(&judged).lines().next(), Some(first));
        let json = serde_json::to_value(&judged).unwrap();
        assert_eq!(json["verdict"], "ok");
        assert_eq!(json["problems"], serde_json::json!([]));
        assert_eq!(json["sessions"]["live"], 1234, "all else is where it was");
        let alone = Judged::of(StatusReport {
            peers: Vec::new(),
            ..status()
        });
        assert!(alone.line().ends_with("no peers yet"), "{}", alone.line());
    }

    #[test]
    fn keys_that_end_soon_degrade_a_host() {
        let with = |certificate_days| {
            Judged::of(StatusReport {
                keys: Some(KeysReport {
                    authority_days: 400,
                    certificate_days,
                }),
                ..status()
            })
        };
        assert_eq!(with(30).verdict, Verdict::Ok);
        let judged = with(29);
        assert_eq!(judged.verdict, Verdict::Degraded);
        let why = "degraded: it uses keys that end soon: this host's certificate ends in 29 days";
        assert_eq!(judged.line(), why);
    }

    #[test]
    fn hosts_with_another_policy_are_named() {
        let host = |n: usize| FleetHost {
            name: format!("fw{n}"),
            addresses: Vec::new(),
            policy: (n > 0).then_some(7),
            refused: None,
        };
        let mut report = FleetReport {
            connected: true,
            url: Some("https://10.0.0.5:2379".into()),
            for_s: 3,
            policy: Some(7),
            hosts: (0..3).map(host).collect(),
            ..FleetReport::default()
        };
        let line = "connected to https://10.0.0.5:2379 for 3.0s, policy of revision 7, 3 hosts";
        assert_eq!(fleet(&report), format!("{line}; another policy on fw0"));
        report.hosts.remove(0);
        assert!(fleet(&report).ends_with("2 hosts"), "{}", fleet(&report));
        report.policy = None;
        report.connected = false;
        let text = fleet(&report);
        assert!(
            text.starts_with("lost for 3.0s, no policy of etcd in force"),
            "{text}"
        );
    }

    #[test]
    fn each_problem_is_in_the_verdict_with_its_hint_below() {
        type Fault = fn(&mut StatusReport);
        let faults: [(Fault, &str, &str); 5] = [
            (
                |s| s.peers[1].up = false,
                "no connection to 10.0.0.2",
                "start dyscod there",
            ),
            (
                |s| {
                    s.peers[1].up = false;
                    s.peers[1].reason = Some(Cause::new("Revoked").hint("issue another"));
                },
                "no connection to 10.0.0.2: Revoked",
                "issue another",
            ),
            (
                |s| s.interfaces[0].programs.clear(),
                "eth0 has no programs",
                "[host]",
            ),
            (
                |s| s.interfaces.clear(),
                "no interface",
                "[host] interfaces",
            ),
            (
                |s| {
                    s.counters
                        .extend([("sessions_not_tracked_no_room".into(), 3)])
                },
                "the table is full",
                "raise max_sessions",
            ),
        ];
        for (fault, what, hint) in faults {
            let mut status = status();
            fault(&mut status);
            let judged = Judged::of(status);
            let (line, text) = (judged.line(), text(&judged));
            assert!(
                line.starts_with("degraded: ") && line.contains(what),
                "{line}"
            );
            let reported = text.lines().find(|line| line.starts_with("! "));
            assert!(reported.is_some_and(|line| line.contains(hint)), "{text}");
            let json = serde_json::to_value(&judged).unwrap();
            assert_eq!(json["verdict"], "degraded");
            assert!(json["problems"][0]["what"].as_str().unwrap().contains(what));
        }
    }
}
