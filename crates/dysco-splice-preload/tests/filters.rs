//! Tests of the shim in programs whose system calls a filter (seccomp) restricts, and of the
//! descriptors that programs close. Needs root (for a network namespace) and a C compiler.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod common;

use common::filter::Refused;
use common::scene::{Scene, both_ways, one_way, revoked, said};

/// Error of a call that the kernel lacks, or that most filters refuse.
const REFUSALS: [i32; 2] = [libc::ENOSYS, libc::EPERM];

#[test]
fn closefrom_closes_all_but_the_shims_where_close_range_is_refused() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    for errno in REFUSALS {
        let refused = Refused::all(libc::SYS_close_range, errno);
        let mut run = scene.refused("closes", refused);
        let before = run.pair();
        assert_eq!(run.line(), "left=0 sockets=1");
        let pair = run.pair();
        let all = [
            one_way(before, 0),
            revoked(before),
            one_way(pair, 28),
            both_ways(pair, 28),
            revoked(pair),
        ];
        for want in all {
            assert_eq!(said(&daemon.next().1), want, "{errno}");
        }
        run.finish();
    }
}

#[test]
fn what_no_call_has_closed_is_still_watched() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    for scenario in ["kept", "kept_by_number", "kept_by_flags"] {
        let refused = Refused::least(libc::SYS_close_range, 0, 0, libc::EPERM);
        let mut run = match scenario {
            "kept_by_flags" => scene.run(scenario),
            _ => scene.refused(scenario, refused),
        };
        let pair = run.pair();
        for want in [one_way(pair, 0), both_ways(pair, 0)] {
            assert_eq!(said(&daemon.next().1), want, "{scenario}");
        }
        run.finish();
    }
}

/// A socket that `dup3` has replaced is not relayed any more.
#[test]
fn a_descriptor_that_another_replaces_is_not_the_same_socket() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("replaced");
    let pair = run.pair();
    for want in [one_way(pair, 0), revoked(pair)] {
        assert_eq!(said(&daemon.next().1), want);
    }
    run.finish();
    assert_eq!(daemon.rest(), []);
}

/// The filter ends the program for any call that the shim makes.
#[test]
fn a_program_that_restricts_itself_goes_on_without_reports() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    for scenario in ["sealed", "sealed_by_number", "sealed_softly"] {
        let mut run = scene.run(scenario);
        let pair = run.pair();
        for want in [one_way(pair, 0), revoked(pair)] {
            assert_eq!(said(&daemon.next().1), want, "{scenario}");
        }
        assert_eq!(run.line(), "done");
        run.finish();
        assert_eq!(daemon.rest(), [], "{scenario}");
        daemon.0.set_nonblocking(false).unwrap();
    }
}

#[test]
fn a_filter_that_the_kernel_refuses_changes_nothing() {
    let scene = Scene::new();
    let daemon = scene.daemon();
    let mut run = scene.run("unsealed");
    let pair = run.pair();
    let all = [
        one_way(pair, 0),
        revoked(pair),
        one_way(pair, 0),
        both_ways(pair, 0),
    ];
    for want in all {
        assert_eq!(said(&daemon.next().1), want);
    }
    run.finish();
}

/// Calls that the shim makes and the scenarios do not make like this.
fn shims_calls(errno: i32) -> Vec<Refused> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let own_descriptor = 1000;
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let unix = size_of::<libc::sockaddr_in>() as i32 + 1;
    let block = 256 * 128;
    vec![
        Refused::equal(libc::SYS_socket, 0, libc::AF_UNIX, errno),
        Refused::least(libc::SYS_connect, 2, unix, errno),
        Refused::equal(libc::SYS_sendto, 3, flags, errno),
        Refused::equal(libc::SYS_getsockopt, 2, libc::SO_COOKIE, errno),
        Refused::equal(libc::SYS_fcntl, 1, libc::F_DUPFD_CLOEXEC, errno),
        Refused::equal(libc::SYS_newfstatat, 0, own_descriptor, errno),
        Refused::equal(libc::SYS_madvise, 2, libc::MADV_WIPEONFORK, errno),
        Refused::equal(libc::SYS_mmap, 3, shared, errno),
        Refused::equal(libc::SYS_mmap, 1, block, errno),
        Refused::all(libc::SYS_getpid, errno),
        Refused::all(libc::SYS_prlimit64, errno),
        Refused::all(libc::SYS_sched_yield, errno),
        Refused::all(libc::SYS_memfd_create, errno),
    ]
}

#[test]
fn a_program_whose_filter_refuses_the_shims_calls_goes_on() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    for refused in REFUSALS.into_iter().flat_map(shims_calls) {
        for scenario in ["tcp", "sweep", "worked"] {
            scene.refused(scenario, refused).finish();
        }
    }
}

#[test]
fn no_program_that_a_program_starts_has_the_shims_descriptor() {
    let scene = Scene::new();
    let _daemon = scene.daemon();
    let mut run = scene.run("heirs");
    // At first, and after the shim has replaced a lost socket.
    for _ in 0..2 {
        assert_eq!(run.line(), "left=0 sockets=1");
        for how in ["fork", "vfork", "closing", "spawn"] {
            assert_eq!(run.line(), "left=0 sockets=0", "{how}");
        }
    }
    run.finish();
}
