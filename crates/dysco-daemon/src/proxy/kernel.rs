//! The kernel's own numbers of a pair's sockets, and whether they bear out
//! what the shim claims.
//!
//! Read from A: bytes received (less one for its FIN) less what waits in the
//! receive queue. Written to B: bytes acknowledged (less one for our SYN, if we
//! opened it, and one for our FIN) and what waits in the send queue. All of
//! these only grow, so a set of readings that is the same before and after was
//! true at one moment.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::error::MeasureError;
use super::held::{Held, gone, never_waits};
use super::pair::{Measured, Pair};
use super::sys::{Process, count, option};

/// Readings in one go, before the duplicates are given back: a busy session is
/// still between two calls of its proxy, many times a millisecond.
const PASSES: usize = 32;
/// Readings that shall tell who opened a socket: once in its life.
const OPENING_PASSES: usize = 2_000;
/// Readings after the claim was met, to catch one that is met by chance.
const AGAIN: usize = 8;
/// Between goes.
const PAUSE: Duration = Duration::from_millis(2);

const SIOCINQ: libc::c_ulong = 0x541B;
const SIOCOUTQ: libc::c_ulong = 0x5411;
const SIOCOUTQNSD: libc::c_ulong = 0x894B;
const TCP_TIMESTAMP: i32 = 24;

/// States of `tcpi_state`.
mod state {
    pub const ESTABLISHED: u8 = 1;
    pub const FIN_WAIT1: u8 = 4;
    pub const FIN_WAIT2: u8 = 5;
    pub const CLOSE: u8 = 7;
    pub const CLOSE_WAIT: u8 = 8;
    pub const LAST_ACK: u8 = 9;
    pub const CLOSING: u8 = 11;
}

/// `TCP_INFO` of a socket.
pub fn info(fd: &OwnedFd) -> io::Result<libc::tcp_info> {
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
}

/// Is the socket still connected, at least half?
pub fn connected(fd: &OwnedFd) -> io::Result<bool> {
    Ok(info(fd)?.tcpi_state != state::CLOSE)
}

fn fin_received(i: &libc::tcp_info) -> i64 {
    use state::{CLOSE_WAIT, CLOSING, LAST_ACK};
    i64::from(matches!(i.tcpi_state, CLOSE_WAIT | CLOSING | LAST_ACK))
}

fn fin_sent(i: &libc::tcp_info) -> i64 {
    use state::{CLOSING, FIN_WAIT1, FIN_WAIT2, LAST_ACK};
    i64::from(matches!(
        i.tcpi_state,
        FIN_WAIT1 | FIN_WAIT2 | CLOSING | LAST_ACK
    ))
}

/// Did this host open the socket? The acknowledged bytes then count our SYN,
/// the sent ones do not. `None` if no moment tells.
pub fn opened_here(fd: &OwnedFd) -> io::Result<Option<bool>> {
    for _ in 0..OPENING_PASSES {
        let i = info(fd)?;
        if !matches!(i.tcpi_state, state::ESTABLISHED | state::CLOSE_WAIT) {
            return Ok(None);
        }
        let (waiting, unsent) = (count(fd, SIOCOUTQ)?, count(fd, SIOCOUTQNSD)?);
        let (waiting_again, then) = (count(fd, SIOCOUTQ)?, info(fd)?);
        let same = i.tcpi_bytes_acked == then.tcpi_bytes_acked
            && i.tcpi_bytes_sent == then.tcpi_bytes_sent
            && i.tcpi_bytes_retrans == then.tcpi_bytes_retrans
            && waiting == waiting_again;
        if same {
            let by_acks = i.tcpi_bytes_acked as i64 + waiting;
            let by_sent = (i.tcpi_bytes_sent as i64) - (i.tcpi_bytes_retrans as i64) + unsent;
            return Ok(match by_acks - by_sent {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            });
        }
    }
    Ok(None)
}

/// What a process has read from a socket and written to it since it was
/// opened; `None` if something moved between the readings.
pub fn counts(fd: &OwnedFd, opened: bool) -> io::Result<Option<(i64, i64)>> {
    let before = info(fd)?;
    let (unread, unacked) = (count(fd, SIOCINQ)?, count(fd, SIOCOUTQ)?);
    let after = info(fd)?;
    let still = same_in(&before, &after)
        && same_out(&before, &after)
        && (unread, unacked) == (count(fd, SIOCINQ)?, count(fd, SIOCOUTQ)?);
    Ok(still.then(|| (read(&after, unread), written(&after, unacked, opened))))
}

fn read(i: &libc::tcp_info, unread: i64) -> i64 {
    i.tcpi_bytes_received as i64 - fin_received(i) - unread
}

fn written(i: &libc::tcp_info, unacked: i64, opened: bool) -> i64 {
    i.tcpi_bytes_acked as i64 + unacked - i64::from(opened) - fin_sent(i)
}

/// One direction's sockets, and the pipe between if it is known.
struct Way<'a> {
    name: &'static str,
    from: &'a OwnedFd,
    to: &'a OwnedFd,
    to_opened: bool,
    pipe: Option<&'a OwnedFd>,
    claim: i64,
    met: bool,
    seen: Option<i64>,
}

/// What one moment showed.
struct Moment {
    /// Written less read.
    delta: i64,
    /// Bytes in the pipe, whoever's they are: pipes are pooled.
    piped: i64,
}

impl Way<'_> {
    /// Reads everything twice, inside out; `None` if anything moved meanwhile.
    fn moment(&self) -> io::Result<Option<Moment>> {
        let from = info(self.from)?;
        let unread = count(self.from, SIOCINQ)?;
        let to = info(self.to)?;
        let unacked = count(self.to, SIOCOUTQ)?;
        let piped = match self.pipe {
            Some(p) => count(p, SIOCINQ)?,
            None => 0,
        };
        let still = count(self.to, SIOCOUTQ)? == unacked
            && same_out(&to, &info(self.to)?)
            && count(self.from, SIOCINQ)? == unread
            && same_in(&from, &info(self.from)?);
        if !still {
            return Ok(None);
        }
        Ok(Some(Moment {
            delta: written(&to, unacked, self.to_opened) - read(&from, unread),
            piped,
        }))
    }

    /// Takes one reading. An error is a lie: more was written than the claim
    /// allows, whatever may be on its way.
    fn look(&mut self) -> io::Result<Result<(), i64>> {
        if let Some(m) = self.moment()? {
            self.seen = Some(m.delta);
            if m.delta > self.claim {
                return Ok(Err(m.delta));
            }
            self.met |= m.delta == self.claim || m.delta + m.piped == self.claim;
        }
        Ok(Ok(()))
    }
}

fn same_in(a: &libc::tcp_info, b: &libc::tcp_info) -> bool {
    a.tcpi_bytes_received == b.tcpi_bytes_received && a.tcpi_state == b.tcpi_state
}

fn same_out(a: &libc::tcp_info, b: &libc::tcp_info) -> bool {
    a.tcpi_bytes_acked == b.tcpi_bytes_acked && a.tcpi_state == b.tcpi_state
}

/// Looks for moments that bear out the claims of both directions, while the
/// proxy goes on. Blocks for up to `limit` and a few milliseconds.
pub fn measure(pair: &Pair, limit: Duration) -> Result<Measured, MeasureError> {
    let begin = Instant::now();
    loop {
        let held = Held::take(pair)
            .map_err(|e| system(pair, "take the descriptors", e))?
            .ok_or(MeasureError::Gone(pair.id))?;
        let mut ways = ways(pair, &held);
        if look(pair, &mut ways)? || look_in_pipes(pair, &held, &mut ways)? {
            return numbers(pair, &held).map_err(|e| system(pair, "read the clocks", e));
        }
        if begin.elapsed() >= limit {
            return Err(never_still(pair, &ways, begin.elapsed()));
        }
        drop(held);
        std::thread::sleep(PAUSE);
    }
}

/// Where a direction's reader is slow, a pipe holds what was read and not
/// written. Which one is the proxy's affair: pipes are pooled. One that holds
/// just what is missing accounts for it, if it still does in a still moment.
fn look_in_pipes(pair: &Pair, held: &Held, ways: &mut [Way<'_>; 2]) -> Result<bool, MeasureError> {
    if !(never_waits(&held.a) && never_waits(&held.b)) {
        return Ok(false);
    }
    let pipes = Pipes::of(pair.id.pid).map_err(|e| system(pair, "list the pipes", e))?;
    let mut met = [false; 2];
    for (w, met) in ways.iter_mut().zip(&mut met) {
        let missing = w.seen.map_or(0, |seen| w.claim - seen);
        let holding = |p: &&OwnedFd| missing > 0 && count(p, SIOCINQ).is_ok_and(|n| n == missing);
        *met = w.met;
        for pipe in pipes.0.iter().filter(holding) {
            let mut again = Way {
                pipe: Some(pipe),
                ..*w
            };
            for _ in 0..AGAIN {
                let lie = again
                    .look()
                    .map_err(|e| system(pair, "read the counters", e))?;
                lie.map_err(|seen| mismatch(pair, w, seen))?;
            }
            *met |= again.met;
        }
    }
    for (w, met) in ways.iter_mut().zip(met) {
        w.met = met;
    }
    Ok(met == [true; 2])
}

/// All pipes of a process. One measurement at a time looks at them: there may
/// be hundreds.
struct Pipes(
    Vec<OwnedFd>,
    #[expect(dead_code, reason = "held while the pipes are")] MutexGuard<'static, ()>,
);

impl Pipes {
    fn of(pid: i32) -> io::Result<Pipes> {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(process) = gone(Process::open(pid))? else {
            return Ok(Pipes(Vec::new(), one));
        };
        let mut seen = HashSet::new();
        let mut pipes = Vec::new();
        for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
            let Ok(target) = std::fs::read_link(entry.path()) else {
                continue;
            };
            let is_pipe = target.to_str().is_some_and(|t| t.starts_with("pipe:"));
            let fd = entry.file_name().to_str().and_then(|n| n.parse().ok());
            // Both ends are listed; either tells.
            let (true, Some(fd), true) = (is_pipe, fd, seen.insert(target)) else {
                continue;
            };
            pipes.extend(process.fd(fd).ok());
        }
        Ok(Pipes(pipes, one))
    }
}

fn ways<'a>(pair: &Pair, held: &'a Held) -> [Way<'a>; 2] {
    let way = |name, from, to, to_opened, pipe: &'a Option<OwnedFd>, claim| Way {
        name,
        from,
        to,
        to_opened,
        pipe: pipe.as_ref(),
        claim,
        met: false,
        seen: None,
    };
    let (f, r) = (pair.forward.delta, pair.reverse.delta);
    [
        way(
            "forward",
            &held.a,
            &held.b,
            pair.b.opened_here,
            &held.pipes[0],
            f,
        ),
        way(
            "reverse",
            &held.b,
            &held.a,
            pair.a.opened_here,
            &held.pipes[1],
            r,
        ),
    ]
}

/// Both claims met, and no reading against them in [`AGAIN`] more?
fn look(pair: &Pair, ways: &mut [Way<'_>; 2]) -> Result<bool, MeasureError> {
    let mut after = 0;
    for _ in 0..PASSES {
        for w in ways.iter_mut() {
            let lie = w.look().map_err(|e| system(pair, "read the counters", e))?;
            lie.map_err(|seen| mismatch(pair, w, seen))?;
        }
        if ways.iter().all(|w| w.met) {
            after += 1;
            if after > AGAIN {
                return Ok(true);
            }
        }
    }
    Ok(ways.iter().all(|w| w.met))
}

fn mismatch(pair: &Pair, way: &Way<'_>, seen: i64) -> MeasureError {
    MeasureError::DeltaMismatch {
        pair: pair.id,
        direction: way.name,
        claimed: way.claim,
        seen,
    }
}

fn never_still(pair: &Pair, ways: &[Way<'_>; 2], waited: Duration) -> MeasureError {
    let w = ways.iter().find(|w| !w.met).unwrap_or(&ways[0]);
    MeasureError::NeverStill {
        pair: pair.id,
        direction: w.name,
        claimed: w.claim,
        seen: w.seen,
        waited_ms: waited.as_millis() as u64,
    }
}

fn system(pair: &Pair, what: &'static str, source: io::Error) -> MeasureError {
    MeasureError::System {
        pair: pair.id,
        what,
        source,
    }
}

/// The confirmed deltas, and both clocks at the same tick.
fn numbers(pair: &Pair, held: &Held) -> io::Result<Measured> {
    let clock = |fd| option::<u32>(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP);
    let (mut clock_a, mut clock_b) = (clock(&held.a)?, clock(&held.b)?);
    // A tick is 1 ms (1 us where the route says so, never met by both).
    for _ in 0..16 {
        let again = clock(&held.a)?;
        if again == clock_a {
            break;
        }
        (clock_a, clock_b) = (again, clock(&held.b)?);
    }
    Ok(Measured {
        delta_forward: pair.forward.delta,
        delta_reverse: pair.reverse.delta,
        clock_a,
        clock_b,
        options_a: info(&held.a)?.tcpi_options,
        options_b: info(&held.b)?.tcpi_options,
    })
}
