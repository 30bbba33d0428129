//! Resolution of a report to the kernel's sockets. This takes many system calls, during which the
//! registry is not locked, because the engine would wait for it.

use std::io;
use std::sync::{Arc, Mutex};

use dysco_common::shim::{Report, ReportKind, report};

use super::duplicate::Process;
use super::error::Refused;
use super::kernel::opened_here;
use super::lock;
use super::pair::{Direction, End, Pair, PairId, Witness};
use super::registry::Registry;
use super::sender::Sender;
use super::sys::{cookie, gone, key, of_our_network};

/// Processes one report, and counts it.
pub(crate) fn take(registry: &Mutex<Registry>, from: Sender, r: &Report) -> Result<(), Refused> {
    let taken = believe(registry, from, r);
    lock(registry).count(&taken);
    taken
}

fn believe(registry: &Mutex<Registry>, from: Sender, r: &Report) -> Result<(), Refused> {
    match ReportKind::from_word(r.kind) {
        Some(ReportKind::Hello) => {
            if known(registry, from)?.1 {
                lock(registry).stats.hellos += 1;
                let receipts = lock(registry).receipts();
                receipts.prepare();
            }
        }
        Some(kind @ (ReportKind::Paired | ReportKind::Called)) => {
            let (process, _) = known(registry, from)?;
            let pair = resolve(&process, from.pid, r)?;
            let receipts = lock(registry).receipts();
            let gone = lock(registry).take_gone();
            receipts.forget(&gone);
            // The sources are watched before the claim becomes visible.
            receipts.follow(&pair);
            let claimed = lock(registry).claim(pair, from.uid, kind == ReportKind::Called);
            if claimed.is_err() {
                receipts.forget(&[pair.a.cookie, pair.b.cookie]);
            }
            claimed?;
        }
        Some(ReportKind::Revoked) => lock(registry).revoked(from.pid, r),
        None => lock(registry).stats.malformed += 1,
    }
    Ok(())
}

/// Returns a handle on the process; the flag is true if the process is new.
fn known(registry: &Mutex<Registry>, from: Sender) -> Result<(Arc<Process>, bool), Refused> {
    let before = lock(registry).process(from.pid);
    if let Some(process) = before.filter(|p| !p.ended()) {
        return Ok((process, false));
    }
    let process = Arc::new(Process::open(from.pid)?);
    lock(registry).meet(from, &process)?;
    Ok((process, true))
}

/// Resolves the two sockets. Duplicating them from the sender proves that the sender has them.
/// Their cookies prove that the report means these sockets and not earlier ones with the same
/// descriptors.
fn resolve(process: &Process, pid: i32, r: &Report) -> io::Result<Pair> {
    let opened = r.flags & report::IN_ACCEPTED == 0;
    let one = end(process, r.fd_in, r.cookie_in, opened)?;
    let two = end(process, r.fd_out, r.cookie_out, true)?;
    if one.cookie == two.cookie {
        return Err(invalid("one socket twice"));
    }
    let way = |bit, delta, pipe: i32| Direction {
        endless: r.flags & bit != 0,
        declared: false,
        delta,
        pipe: (pipe >= 0).then_some(pipe),
    };
    let out = way(report::FORWARD_ENDLESS, r.delta_forward, r.pipe_forward);
    let back = way(report::REVERSE_ENDLESS, r.delta_reverse, r.pipe_reverse);
    let id = |fd_a, fd_b| PairId { pid, fd_a, fd_b };
    let keep = match (one.opened_here, two.opened_here) {
        (false, true) => true,
        (true, false) => false,
        _ => r.fd_in < r.fd_out,
    };
    Ok(if keep {
        Pair {
            id: id(r.fd_in, r.fd_out),
            a: one,
            b: two,
            forward: out,
            reverse: back,
            witness: Witness::Shim,
        }
    } else {
        Pair {
            id: id(r.fd_out, r.fd_in),
            a: two,
            b: one,
            forward: back,
            reverse: out,
            witness: Witness::Shim,
        }
    })
}

fn end(process: &Process, fd: i32, meant: u64, opened: bool) -> io::Result<End> {
    let fd = gone(process.socket(fd))?.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
    let cookie = cookie(&fd)?;
    if cookie != meant {
        return Err(invalid(
            "the descriptor is of another socket now than the one reported",
        ));
    }
    if !of_our_network(&fd)? {
        return Err(invalid(
            "a socket of another network namespace than dyscod's",
        ));
    }
    Ok(End {
        key: key(&fd)?,
        cookie,
        opened_here: opened_here(&fd)?.unwrap_or(opened),
    })
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}
