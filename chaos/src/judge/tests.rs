//! Constructed runs, and the verdicts on them.

use super::*;
use crate::kills::KillRun;
use crate::operators::Reported;
use crate::plan::{HostPlan, Link, Mode, Operation, Part, ProxyKind, ProxyPlan, SessionKind};
use crate::sessions::EndRun;
use crate::watch::{Mark, Watched};

fn plan() -> Plan {
    let host = |number, part| HostPlan {
        number,
        part,
        daemon: true,
        link: Link::Veth,
        sysctls: vec![],
        mtu: 1500,
    };
    Plan {
        seed: 1,
        live_ms: 5_000,
        hosts: vec![
            host(1, Part::Client),
            host(2, Part::Proxy),
            host(3, Part::Server),
        ],
        boxes: vec![],
        proxies: vec![ProxyPlan {
            host: 2,
            server: 3,
            kind: ProxyKind::Go,
            shim: false,
            declared: true,
            v6: false,
        }],
        sessions: vec![SessionPlan {
            id: 7,
            client: 1,
            proxy: Some(2),
            server: 3,
            v6: false,
            start_ms: 0,
            kind: SessionKind::Bulk { up: 1, down: 1 },
        }],
        operations: vec![],
        kills: vec![],
    }
}

fn local() -> SocketAddr {
    "10.0.1.1:4000".parse().expect("an address")
}

fn good() -> SessionRun {
    let end = EndRun {
        sent: 100,
        received: 100,
        eof: true,
        over: true,
        ..EndRun::default()
    };
    SessionRun {
        id: 7,
        local: Some(local()),
        trouble: None,
        ends: [end.clone(), end],
        watched: Watched::default(),
    }
}

fn run(session: SessionRun) -> Run {
    Run {
        sessions: vec![session],
        ..Run::default()
    }
}

fn removal(ended_ms: u64, outcome: &str, held: Vec<SocketAddr>) -> OperationRun {
    OperationRun {
        operation: Operation {
            at_ms: 2_000,
            host: 2,
            ask: Ask::Remove {
                mode: Mode::Bypass,
                listen: false,
                dry_run: false,
            },
            cancel_ms: None,
        },
        began_ms: 2_000,
        ended_ms,
        code: Some(0),
        reported: vec![Reported {
            local: local(),
            remote: "10.0.2.1:8080".parse().expect("an address"),
            outcome: outcome.into(),
            reason: None,
            mode: None,
        }],
        held,
        wrong: None,
        said: String::new(),
    }
}

fn kinds(run: &Run, controls: &Controls) -> Vec<Kind> {
    let found = judge(&plan(), run, controls);
    found.into_iter().map(|f| f.kind).collect()
}

fn of(undisturbed: SessionRun) -> Controls {
    Controls {
        undisturbed: vec![run(undisturbed)],
        with_kills: vec![],
    }
}

#[test]
fn a_good_run_has_no_findings() {
    assert!(kinds(&run(good()), &Controls::default()).is_empty());
    assert!(!needs_controls(&plan(), &run(good()), &Controls::default()));
}

#[test]
fn wrong_bytes_are_not_excused_by_a_reset() {
    let (mut wrong, mut reset) = (good(), good());
    wrong.ends[0].wrong_at = Some(5);
    reset.ends[0].error = Some("reset".into());
    assert_eq!(kinds(&run(wrong.clone()), &of(reset)), [Kind::WrongBytes]);
    assert!(kinds(&run(wrong.clone()), &of(wrong)).is_empty());
}

#[test]
fn what_the_network_does_alone_is_excused() {
    let mut hangs = good();
    hangs.ends[1].over = false;
    hangs.ends[1].received = 10;
    hangs.ends[1].eof = false;
    assert_eq!(kinds(&run(hangs.clone()), &of(good())), [Kind::Stall]);
    let controls = of(hangs.clone());
    assert!(kinds(&run(hangs.clone()), &controls).is_empty());
    assert_eq!(excused(&plan(), &run(hangs), &controls), 1);
}

#[test]
fn a_clean_end_with_bytes_missing_is_a_lost_session() {
    let mut cut = good();
    cut.ends[1].received = 60;
    assert_eq!(kinds(&run(cut), &of(good())), [Kind::Lost]);
}

#[test]
fn removed_and_still_at_the_proxy_is_false() {
    let mut seen = run(good());
    seen.operations
        .push(removal(2_100, "removed", vec![local()]));
    let found = kinds(&seen, &Controls::default());
    assert!(found.contains(&Kind::FalseRemoved));
    // An exit code that claims that nothing was left is also a false report.
    let mut left = run(good());
    left.operations
        .push(removal(2_100, "refused", vec![local()]));
    assert_eq!(kinds(&left, &Controls::default()), [Kind::FalseRemoved]);
    left.operations[0].code = Some(5);
    assert!(kinds(&left, &Controls::default()).is_empty());
}

#[test]
fn removed_and_never_moving_again_is_false() {
    let mut still = good();
    still.ends[1].over = false;
    still.ends[1].received = 60;
    still.ends[1].eof = false;
    let mark = |ms, received| Mark {
        ms,
        received: [100, received],
        sent: [100, 100],
    };
    still.watched.marks = vec![mark(2_000, 50), mark(2_200, 60)];
    let mut seen = run(still);
    seen.operations.push(removal(2_100, "removed", vec![]));
    assert_eq!(kinds(&seen, &of(good())), [Kind::Stall, Kind::FalseRemoved]);
    seen.sessions[0].ends[1].received = 61;
    assert_eq!(kinds(&seen, &of(good())), [Kind::Stall]);
}

#[test]
fn a_session_may_end_with_its_proxy_but_not_worse() {
    let mut reset = good();
    reset
        .ends
        .iter_mut()
        .for_each(|e| e.error = Some("reset".into()));
    let mut seen = run(reset.clone());
    seen.kills.push(KillRun {
        victim: Victim::Proxy { host: 2 },
        at_ms: 2_050,
        hit: true,
    });
    seen.operations.push(removal(2_300, "rolled_back", vec![]));
    seen.operations[0].code = Some(5);
    let controls = Controls {
        with_kills: vec![run(reset)],
        undisturbed: vec![run(good())],
    };
    assert!(kinds(&seen, &controls).is_empty());
    // A clean end despite missing bytes is worse.
    let ends = &mut seen.sessions[0].ends;
    (ends[1].error, ends[1].received) = (None, 60);
    assert_eq!(kinds(&seen, &controls), [Kind::Lost]);
    // A session that its proxy had left before does not end.
    let mut seen = run(seen.sessions[0].clone());
    seen.kills.push(KillRun {
        victim: Victim::Proxy { host: 2 },
        at_ms: 3_000,
        hit: true,
    });
    seen.operations.push(removal(2_300, "removed", vec![]));
    assert!(kinds(&seen, &controls).contains(&Kind::Lost));
}

#[test]
fn a_session_may_end_with_its_services_but_not_cleanly() {
    let mut reset = run(SessionRun {
        ends: [
            EndRun {
                error: Some("reset".into()),
                over: true,
                ..EndRun::default()
            },
            EndRun {
                error: Some("reset".into()),
                over: true,
                ..EndRun::default()
            },
        ],
        ..good()
    });
    let controls = of(good());
    assert_eq!(kinds(&reset, &controls), [Kind::Lost, Kind::Lost]);
    reset.kills.push(KillRun {
        victim: Victim::Handlers { host: 1 },
        at_ms: 1_000,
        hit: true,
    });
    // The session had no services.
    assert_eq!(kinds(&reset, &controls), [Kind::Lost, Kind::Lost]);
    let mut put = removal(900, "put", vec![]);
    (put.operation.host, put.began_ms) = (1, 800);
    put.operation.ask = Ask::Put {
        services: vec!["+count".into()],
    };
    reset.operations.push(put);
    assert!(kinds(&reset, &controls).is_empty());
    let [client, _] = &mut reset.sessions[0].ends;
    (client.eof, client.error) = (true, None);
    reset.sessions[0].ends[1].sent = 9;
    // The proxy has turned the reset into a clean end.
    assert!(kinds(&reset, &controls).is_empty());
    reset.operations.push(removal(900, "removed", vec![]));
    assert!(kinds(&reset, &controls).contains(&Kind::Lost));
}

fn killed(host: u8) -> KillRun {
    KillRun {
        victim: Victim::Proxy { host },
        at_ms: 2_050,
        hit: true,
    }
}

#[test]
fn no_death_of_a_proxy_explains_a_wrong_byte() {
    let mut wrong = good();
    wrong.ends[1].wrong_at = Some(5);
    let mut seen = run(wrong.clone());
    seen.kills.push(killed(2));
    let mut controls = of(good());
    controls.with_kills = vec![run(good())];
    assert_eq!(kinds(&seen, &controls), [Kind::WrongBytes]);
    controls.undisturbed = vec![run(wrong)];
    assert!(kinds(&seen, &controls).is_empty());
}

#[test]
fn a_command_at_any_host_of_a_session_may_make_its_end_worse() {
    let mut cut = good();
    cut.ends[1].received = 60;
    for host in [1, 2, 3] {
        let mut seen = run(cut.clone());
        seen.kills.push(killed(2));
        let mut controls = of(good());
        controls.with_kills = vec![run(good())];
        assert!(kinds(&seen, &controls).is_empty());
        let mut killed_half_way = removal(2_300, "refused", vec![]);
        killed_half_way.code = None;
        killed_half_way.operation.host = host;
        seen.operations.push(killed_half_way);
        assert_eq!(kinds(&seen, &controls), [Kind::Lost], "{host}");
    }
}

#[test]
fn a_fault_is_excused_by_one_of_its_kind_only() {
    let mut cut = good();
    cut.ends[1].received = 60;
    let mut hangs = cut.clone();
    (hangs.ends[1].eof, hangs.ends[1].over) = (false, false);
    let mut reset = good();
    reset.ends[0].error = Some("reset".into());
    let unopened = SessionRun {
        trouble: Some("no route".into()),
        ..good()
    };
    let is_excused = |seen: &SessionRun, by: &SessionRun| {
        let found = kinds(&run(seen.clone()), &of(by.clone()));
        found.is_empty()
    };
    for (seen, by, excused) in [
        (&cut, &cut, true),
        (&cut, &reset, false),
        (&hangs, &reset, false),
        (&hangs, &cut, false),
        (&reset, &hangs, false),
        (&reset, &unopened, true),
    ] {
        assert_eq!(is_excused(seen, by), excused, "{seen:?} {by:?}");
    }
}
