//! Runs of the program of the scenarios, and its reports.

use std::path::PathBuf;

use dysco_common::shim::report::{FORWARD_ENDLESS, IN_ACCEPTED, REVERSE_ENDLESS};
use dysco_common::shim::{Report, ReportKind};

use super::filter::Refused;
use super::{Daemon, Run, compile};

/// The program of the scenarios, and the path of the shim's socket.
pub(crate) struct Scene {
    program: PathBuf,
    pub socket: PathBuf,
    _dir: tempfile::TempDir,
}

impl Scene {
    pub(crate) fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        Scene {
            // The symbols are exported, because the shim must call a function of the program.
            program: compile(dir.path(), "tests/programs/scenario.c", &["-rdynamic"]),
            socket: dir.path().join("shim.sock"),
            _dir: dir,
        }
    }

    pub(crate) fn daemon(&self) -> Daemon {
        Daemon::start(&self.socket)
    }

    pub(crate) fn run(&self, scenario: &str) -> Run {
        Run::start(&self.program, &[scenario], &self.socket)
    }

    /// Runs a scenario in which the kernel refuses system calls from the start.
    pub(crate) fn refused(&self, scenario: &str, refused: Refused) -> Run {
        Run::changed(&self.program, &[scenario], &self.socket, |command| {
            refused.load_in(command);
        })
    }
}

/// Contents of a report without the pipes.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Said(pub ReportKind, pub u32, pub (i32, i32), pub (i64, i64));

pub(crate) fn said(r: &Report) -> Said {
    let kind = ReportKind::from_word(r.kind).unwrap();
    Said(
        kind,
        r.flags,
        (r.fd_in, r.fd_out),
        (r.delta_forward, r.delta_reverse),
    )
}

pub(crate) fn one_way(pair: (i32, i32), delta: i64) -> Said {
    Said(
        ReportKind::Paired,
        IN_ACCEPTED | FORWARD_ENDLESS,
        pair,
        (delta, 0),
    )
}

pub(crate) fn both_ways(pair: (i32, i32), delta: i64) -> Said {
    let flags = IN_ACCEPTED | FORWARD_ENDLESS | REVERSE_ENDLESS;
    Said(ReportKind::Paired, flags, pair, (delta, 0))
}

pub(crate) fn revoked(pair: (i32, i32)) -> Said {
    Said(ReportKind::Revoked, 0, pair, (0, 0))
}
