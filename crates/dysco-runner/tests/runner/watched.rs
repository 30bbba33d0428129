//! A runner that is watched, in a process of its own.

use std::io::Write;
use std::time::{Duration, Instant};

use dysco_runner::protocol::{Client, listen};
use dysco_runner::{STUCK, run_with, watch};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::confined::child;
use crate::lab::{Runner, Session, read};
use crate::services::registry;

/// Interval of the interrupts. A child may get no processor for as long.
const INTERVAL: Duration = Duration::from_millis(500);

/// Starts a watched runner in a child.
fn watched() -> (Pid, Runner) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runner");
    let listener = listen(&path).unwrap();
    let (client, other) = Client::pair().unwrap();
    let child = child(|| {
        watch(INTERVAL).map_err(|error| error.to_string())?;
        run_with(registry(), other, Some(listener)).map_err(|error| error.to_string())
    });
    // The child has a copy of `client`, so that only another connection can be closed.
    let runner = Runner::new(Client::connect(&path).unwrap());
    drop(client);
    (child, runner)
}

#[test]
fn a_service_that_does_not_return_ends_its_process() {
    let (child, runner) = watched();
    let session = Session::open();
    runner.put(1, &["stuck"], &session);
    (&session.opener).write_all(b"1").unwrap();
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, STUCK)));
}

#[test]
fn services_that_return_go_on() {
    let (child, runner) = watched();
    let session = Session::open();
    runner.put(1, &["count"], &session);
    // Busy, and then quiet, for several intervals.
    let begin = Instant::now();
    while begin.elapsed() < 3 * INTERVAL {
        (&session.opener).write_all(b"1").unwrap();
        read(&session.other, 1);
    }
    assert_eq!(
        waitpid(child, Some(nix::sys::wait::WaitPidFlag::WNOHANG)),
        Ok(WaitStatus::StillAlive)
    );
    drop((session, runner));
    assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
}
