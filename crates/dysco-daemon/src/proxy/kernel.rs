//! The kernel's own numbers of a pair's sockets, and whether they bear out
//! what the shim claims.
//!
//! Read from A: bytes received (less one for its FIN) less what waits in the
//! receive queue. Written to B: bytes acknowledged (less one for our SYN, if we
//! opened it, and one for our FIN) and what waits in the send queue. All of
//! these only grow, so a set of readings that is the same before and after was
//! true at one moment.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::error::MeasureError;
use super::held::{Held, never_waits};
use super::pair::{Measured, Pair};
use super::pipes;
use super::sys::{count, option, upper_protocol};

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

/// `TCPI_OPT_USEC_TS` of kernel 6.7 (include/uapi/linux/tcp.h), which libc does not name.
const USEC_TS: u8 = 64;

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

/// What one socket says of itself.
struct Reading {
    info: libc::tcp_info,
    unread: i64,
    unacked: i64,
}

impl Reading {
    fn of(fd: &OwnedFd) -> io::Result<Reading> {
        Ok(Reading {
            info: info(fd)?,
            unread: count(fd, SIOCINQ)?,
            unacked: count(fd, SIOCOUTQ)?,
        })
    }
}

/// Both sockets of a pair, one after the other, and then its pipes.
struct Snapshot {
    /// A's and B's.
    ends: [Reading; 2],
    /// Bytes in the pipes, whoever's they are: pipes are pooled. Forward and reverse.
    piped: [i64; 2],
}

impl Snapshot {
    fn take(held: &Held, pipes: [Option<&OwnedFd>; 2]) -> io::Result<Snapshot> {
        let ends = [Reading::of(&held.a)?, Reading::of(&held.b)?];
        let bytes = |pipe: Option<&OwnedFd>| pipe.map_or(Ok(0), pipes::bytes);
        Ok(Snapshot {
            ends,
            piped: [bytes(pipes[0])?, bytes(pipes[1])?],
        })
    }

    /// The end that a direction is read from, and the one it is written to.
    fn of(&self, from: usize) -> (&Reading, &Reading) {
        (&self.ends[from], &self.ends[1 - from])
    }
}

/// One direction: forward, which is read from A, or reverse.
#[derive(Clone)]
struct Way {
    from: usize,
    to_opened: bool,
    claim: i64,
    met: bool,
    seen: Option<i64>,
}

impl Way {
    fn name(&self) -> &'static str {
        ["forward", "reverse"][self.from]
    }

    /// Takes what two snapshots in a row say, if nothing moved from the one to the
    /// other. An error is a lie: more was written than the claim allows, whatever may
    /// be on its way.
    fn judge(&mut self, before: &Snapshot, after: &Snapshot) -> Result<(), i64> {
        let (from_before, to_before) = before.of(self.from);
        let (from, to) = after.of(self.from);
        let still = same_in(&from_before.info, &from.info)
            && from_before.unread == from.unread
            && same_out(&to_before.info, &to.info)
            && to_before.unacked == to.unacked;
        if !still {
            return Ok(());
        }
        let delta = written(&to.info, to.unacked, self.to_opened) - read(&from.info, from.unread);
        self.seen = Some(delta);
        if delta > self.claim {
            return Err(delta);
        }
        // The pipe was looked at in between.
        self.met |= delta == self.claim || delta + before.piped[self.from] == self.claim;
        Ok(())
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
        for socket in [&held.a, &held.b] {
            let protocol = upper_protocol(socket)
                .map_err(|e| system(pair, "ask for the protocol above TCP", e))?;
            if !protocol.is_empty() {
                let pair = pair.id;
                return Err(MeasureError::Encoded { pair, protocol });
            }
            let options = info(socket)
                .map_err(|e| system(pair, "read the options", e))?
                .tcpi_options;
            if options & USEC_TS != 0 {
                return Err(MeasureError::Microseconds(pair.id));
            }
        }
        let mut ways = ways(pair);
        let pipes = held.pipes.each_ref().map(Option::as_deref);
        if look(pair, &held, pipes, &mut ways, PASSES)? || look_in_pipes(pair, &held, &mut ways)? {
            return numbers(pair, &held).map_err(|e| system(pair, "read the clocks", e));
        }
        if begin.elapsed() >= limit {
            return Err(match held.kept {
                true => MeasureError::Stalled(pair.id),
                false => never_still(pair, &ways, begin.elapsed()),
            });
        }
        drop(held);
        std::thread::sleep(PAUSE);
    }
}

/// Where a direction's reader is slow, a pipe holds what was read and not
/// written. Which one is the proxy's affair: pipes are pooled. One that holds
/// just what is missing accounts for it, if it still does in a still moment.
fn look_in_pipes(pair: &Pair, held: &Held, ways: &mut [Way; 2]) -> Result<bool, MeasureError> {
    if !(never_waits(&held.a) && never_waits(&held.b)) {
        return Ok(false);
    }
    let missing = ways
        .each_ref()
        .map(|w| w.seen.map_or(0, |seen| w.claim - seen));
    if missing.iter().all(|n| *n <= 0) {
        return Ok(false);
    }
    let mut met = ways.each_ref().map(|w| w.met);
    let filled = pipes::filled(pair.id.pid).map_err(|e| system(pair, "list the pipes", e))?;
    for pipe in filled {
        let Ok(holds) = pipes::bytes(&pipe) else {
            continue;
        };
        for way in (0..2).filter(|way| holds > 0 && holds == missing[*way]) {
            let (mut again, mut only) = (ways.clone(), [None; 2]);
            only[way] = Some(&*pipe);
            look(pair, held, only, &mut again, AGAIN)?;
            met[way] |= again[way].met;
        }
    }
    for (w, met) in ways.iter_mut().zip(met) {
        w.met = met;
    }
    Ok(met == [true; 2])
}

fn ways(pair: &Pair) -> [Way; 2] {
    let way = |from, to_opened, claim| Way {
        from,
        to_opened,
        claim,
        met: false,
        seen: None,
    };
    let (f, r) = (pair.forward.delta, pair.reverse.delta);
    [way(0, pair.b.opened_here, f), way(1, pair.a.opened_here, r)]
}

/// Both claims met, and no reading against them in [`AGAIN`] more?
fn look(
    pair: &Pair,
    held: &Held,
    pipes: [Option<&OwnedFd>; 2],
    ways: &mut [Way; 2],
    passes: usize,
) -> Result<bool, MeasureError> {
    let snapshot = || Snapshot::take(held, pipes).map_err(|e| system(pair, "read the counters", e));
    let mut before = snapshot()?;
    let mut after = 0;
    for _ in 0..passes {
        let now = snapshot()?;
        for w in ways.iter_mut() {
            let judged = w.judge(&before, &now);
            judged.map_err(|seen| mismatch(pair, w, seen))?;
        }
        before = now;
        if ways.iter().all(|w| w.met) {
            after += 1;
            if after > AGAIN {
                return Ok(true);
            }
        }
    }
    Ok(ways.iter().all(|w| w.met))
}

fn mismatch(pair: &Pair, way: &Way, seen: i64) -> MeasureError {
    MeasureError::DeltaMismatch {
        pair: pair.id,
        direction: way.name(),
        claimed: way.claim,
        seen,
    }
}

fn never_still(pair: &Pair, ways: &[Way; 2], waited: Duration) -> MeasureError {
    let w = ways.iter().find(|w| !w.met).unwrap_or(&ways[0]);
    MeasureError::NeverStill {
        pair: pair.id,
        direction: w.name(),
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
    // A tick is 1 ms: see [`MeasureError::Microseconds`].
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
