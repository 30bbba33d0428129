//! Tests of the shim's reports about a program's calls. Needs root (for a network namespace) and
//! a C compiler.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod common;

use common::in_network;
use common::scene::{Said, Scene, both_ways, one_way, revoked, said};
use dysco_common::shim::ReportKind;
use dysco_common::shim::report::{IN_ACCEPTED, REVERSE_ENDLESS};

#[test]
fn a_relay_like_haproxys_is_known_direction_by_direction() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    for scenario in ["tcp", "sweep"] {
        let mut run = scene.run(scenario);
        let pair = run.pair();
        assert_eq!(
            daemon.any().map(|(pid, r)| (pid, r.kind)),
            Some((run.pid(), 1)),
            "no hello"
        );
        for want in [one_way(pair, 28), both_ways(pair, 28), revoked(pair)] {
            let (pid, r) = daemon.next();
            assert_eq!((pid, said(&r)), (run.pid(), want));
        }
        run.finish();
        assert_eq!(daemon.rest(), []);
        daemon.0.set_nonblocking(false).unwrap();
    }
}

/// Every report names the sockets by their cookies, also when the descriptors belong to others.
#[test]
fn each_report_names_its_sockets_by_their_cookies() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("again");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (pair, cookies) = run.named_pair();
        seen.push((pair, cookies));
        for want in [one_way(pair, 0), both_ways(pair, 0), revoked(pair)] {
            let (_, r) = daemon.next();
            assert_eq!(said(&r), want);
            assert_eq!((r.cookie_in, r.cookie_out), cookies);
        }
    }
    let [(first, before), (second, after)] = seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(first, second, "the numbers are used again");
    assert!(before.0 != after.0 && before.1 != after.1);
    run.finish();
}

#[test]
fn peeking_reads_nothing_and_draining_does() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("peek");
    let pair = run.pair();
    assert_eq!(said(&daemon.next().1), one_way(pair, -58));
    run.finish();
}

#[test]
fn a_pipe_serves_many_sessions() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("pooled");
    let (s, t) = (run.pair(), run.pair());
    run.finish();
    let all: Vec<Said> = daemon.rest().iter().map(|(_, r)| said(r)).collect();
    let last = |pair| all.iter().rfind(|x| x.2 == pair);
    assert_eq!(last(s), Some(&both_ways(s, 0)));
    assert_eq!(last(t), Some(&both_ways(t, 5)));
}

#[test]
fn what_is_not_endless_or_not_steady_is_never_claimed() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    for scenario in ["exact", "moving"] {
        scene.run(scenario).finish();
        assert_eq!(daemon.rest(), [], "{scenario}");
        daemon.0.set_nonblocking(false).unwrap();
    }
}

#[test]
fn a_claim_is_taken_back_when_bytes_go_by_hand_again() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("broken");
    let pair = run.pair();
    assert_eq!(said(&daemon.next().1), one_way(pair, 0));
    let Said(kind, flags, fds, _) = said(&daemon.next().1);
    assert_eq!((kind, flags, fds), (ReportKind::Paired, IN_ACCEPTED, pair));
    run.finish();
    let rest = daemon.rest();
    assert_eq!(rest.last().map(|(_, r)| said(r)), Some(revoked(pair)));
}

#[test]
fn a_duplicated_socket_is_not_trusted() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("aliased");
    let pair = run.pair();
    run.finish();
    let all: Vec<Said> = daemon.rest().iter().map(|(_, r)| said(r)).collect();
    assert_eq!(all, [one_way(pair, 0), revoked(pair)]);
}

#[test]
fn what_the_counters_do_not_follow_ends_the_word() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    for scenario in ["dup_fcntl", "raw_read", "stream", "message"] {
        let mut run = scene.run(scenario);
        let pair = run.pair();
        run.finish();
        let all: Vec<Said> = daemon.rest().iter().map(|(_, r)| said(r)).collect();
        assert_eq!(all, [one_way(pair, 0), revoked(pair)], "{scenario}");
        daemon.0.set_nonblocking(false).unwrap();
    }
}

#[test]
fn a_child_that_shares_the_memory_closes_nothing_of_its_parents() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("vforked");
    let pair = run.pair();
    assert_eq!(said(&daemon.next().1), one_way(pair, 0));
    let (pid, taken_back) = daemon.next();
    let Said(kind, flags, fds, _) = said(&taken_back);
    assert_eq!(pid, run.pid());
    assert_eq!((kind, flags, fds), (ReportKind::Paired, IN_ACCEPTED, pair));
    run.finish();
}

#[test]
fn what_such_a_child_takes_for_itself_its_parent_takes_back() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("given");
    let pair = run.pair();
    assert_eq!(said(&daemon.next().1), one_way(pair, 0));
    let (pid, r) = daemon.next();
    assert_eq!(pid, run.pid());
    let taken_back = Said(ReportKind::Paired, IN_ACCEPTED, pair, (0, 0));
    assert_eq!(said(&r), taken_back);
    run.finish();
}

#[test]
fn a_copy_that_libc_has_not_made_speaks_for_itself() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("copied");
    let pair = run.pair();
    let (pid, r) = daemon.next();
    assert_ne!(pid, run.pid());
    assert_eq!(said(&r), one_way(pair, 0));
    run.finish();
}

#[test]
fn many_messages_in_one_call_are_counted() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("messages");
    let pair = run.pair();
    assert_eq!(said(&daemon.next().1), one_way(pair, -20));
    run.finish();
}

#[test]
fn threads_serve_what_another_accepted() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("threads");
    let mut pairs: Vec<_> = (0..8).map(|_| run.pair()).collect();
    while !pairs.is_empty() {
        let s = said(&daemon.next().1);
        pairs.retain(|p| s != both_ways(*p, 0));
    }
    run.finish();
}

/// Reports that two threads come to owe at the same moment are all sent.
#[test]
fn threads_that_tell_at_once_lose_nothing() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("contended");
    let mut pairs: Vec<_> = (0..256).map(|_| run.pair()).collect();
    while !pairs.is_empty() {
        let s = said(&daemon.next().1);
        pairs.retain(|p| s != both_ways(*p, 0));
    }
    run.finish();
}

#[test]
fn a_fork_speaks_for_itself() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("forked");
    let pair = run.pair();
    let child: i32 = run.line().strip_prefix("child=").unwrap().parse().unwrap();
    assert_ne!(child, run.pid());
    for want in [one_way(pair, 0), both_ways(pair, 0)] {
        let (pid, r) = daemon.next();
        assert_eq!((pid, said(&r)), (child, want));
    }
    run.finish();
}

#[test]
fn without_a_daemon_all_works() {
    let scene = Scene::new();
    for scenario in [
        "tcp", "peek", "pooled", "exact", "threads", "forked", "sweep",
    ] {
        scene.run(scenario).finish();
    }
}

/// Two daemons start, one after the other, while a program is idle with a pair.
fn each_daemon_learns_of_the_pair(scenario: &str) {
    let scene = Scene::new();
    let mut run = scene.run(scenario);
    let pair = run.pair();
    for _ in 0..2 {
        let daemon = scene.daemon();
        assert_eq!(said(&daemon.next().1), both_ways(pair, 0));
        drop(daemon);
        std::fs::remove_file(&scene.socket).unwrap();
    }
    run.finish();
}

#[test]
fn a_daemon_that_starts_later_learns_of_idle_pairs() {
    each_daemon_learns_of_the_pair("idle_pair");
}

/// A part of the table that belongs to files is never mapped.
#[test]
fn a_daemon_learns_of_pairs_behind_many_files() {
    each_daemon_learns_of_the_pair("with_files");
}

/// The master connects the socket anew, which it shares with the worker.
#[test]
fn a_daemon_learns_of_the_pairs_of_a_worker_whose_master_found_it_first() {
    each_daemon_learns_of_the_pair("worker");
}

#[test]
fn a_daemon_that_is_slow_learns_of_all_pairs() {
    let scene = Scene::new();
    // The daemon's queue is far shorter than this number of reports.
    let daemon = scene.daemon();
    let mut run = scene.run("many");
    let mut pairs: Vec<_> = (0..60).map(|_| run.pair()).collect();
    assert_eq!(run.line(), "done");
    while !pairs.is_empty() {
        let s = said(&daemon.next().1);
        pairs.retain(|p| s != both_ways(*p, 0));
    }
    run.finish();
}

/// The shim tries at growing intervals, and its last report is the newest.
#[test]
fn a_daemon_that_does_not_read_costs_the_program_little() {
    // In a new network namespace the length of a queue has its default.
    in_network(|| {
        let scene = Scene::new();
        let daemon = scene.daemon();
        let mut run = scene.run("unread");
        let pairs: Vec<_> = (0..60).map(|_| run.pair()).collect();
        let mut tries = |key: &str| -> u32 {
            let line = run.line();
            line.strip_prefix(key).unwrap().parse().unwrap()
        };
        assert!(tries("first=") >= 60, "they are counted");
        // The number is that of 4,000 calls during which a report was owed.
        let then = tries("then=");
        assert!(then < 400, "{then} tries");
        assert_eq!(run.line(), "done");
        let flags = IN_ACCEPTED | REVERSE_ENDLESS;
        let broken = Said(ReportKind::Paired, flags, pairs[0], (3, 0));
        let mut missing: Vec<Said> = pairs[1..].iter().map(|p| both_ways(*p, 0)).collect();
        missing.push(broken);
        let mut last = None;
        while !missing.is_empty() {
            let s = said(&daemon.next().1);
            missing.retain(|m| *m != s);
            if s.2 == pairs[0] {
                last = Some(s);
            }
        }
        assert_eq!(
            last,
            Some(Said(ReportKind::Paired, flags, pairs[0], (3, 0)))
        );
        run.finish();
    });
}
