//! Measurement: a check of the claim about a pair against the kernel's counts of its sockets.
//!
//! The bytes of a direction that is spliced endlessly are in pipes, which are counted. Its claim
//! is the delta with empty pipes. The claim about any other direction may stem from a moment at
//! which the process held bytes, so the process must be seen empty ([`super::empty`]).

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::claim::{Look, Snapshot, Way, ways};
use super::duplicate::Processes;
use super::error::{MeasureError, slow_and_fast};
use super::held::{self, Held, never_waits};
use super::infos::infos;
use super::kernel::{Reading, info};
use super::pair::{Measured, Pair};
use super::pipes;
use super::process::sleeps;
use super::sending::{Bytes, Sending};
use super::sys::{option, upper_protocol};

/// Readings in one pass, before the duplicates are closed. A busy session is still between two
/// calls of its proxy, many times a millisecond.
const PASSES: usize = 32;
/// Further readings after both claims were met or only need time, to detect one that is met by
/// chance.
const AGAIN: usize = 8;
/// Pause between passes.
const PAUSE: Duration = Duration::from_millis(2);
/// Pause while nothing moves and only time is missing. Many sessions of a busy proxy are measured at
/// once, and the proxy needs the processors in order to have its turn.
const LONG_PAUSE: Duration = Duration::from_millis(10);
/// Silence, in milliseconds, after which one look at a pair is enough.
const SILENT: u32 = 20;

const TCP_TIMESTAMP: i32 = 24;
/// `TCPI_OPT_USEC_TS` of kernel 6.7 (include/uapi/linux/tcp.h), which libc does not name.
const USEC_TS: u8 = 64;

/// Looks for moments that confirm the claims of both directions while the proxy continues. Blocks
/// for up to `limit` and some ten milliseconds.
pub(crate) fn measure(pair: &Pair, limit: Duration) -> Result<Measured, MeasureError> {
    let begin = Instant::now();
    let mut ways = ways(pair);
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
        for way in ways.iter_mut().filter(|w| w.empty.is_none()) {
            way.met = false;
        }
        let pipes = held.pipes.each_ref().map(Option::as_deref);
        if look(pair, &held, pipes, &mut ways, (begin, PASSES))?
            || look_asleep(pair, &held, pipes, &mut ways, begin)?
            || look_in_pipes(pair, &held, &mut ways, begin)?
        {
            return numbers(pair, [&held.a, &held.b])
                .map_err(|e| system(pair, "read the clocks", e));
        }
        if begin.elapsed() >= limit {
            return Err(match held.kept {
                true => MeasureError::Stalled(pair.id),
                false => never_still(pair, &ways, begin.elapsed()),
            });
        }
        drop(held);
        let at_rest = ways.iter().all(|w| w.met || w.has_rested(PAUSE));
        std::thread::sleep(match at_rest {
            true => LONG_PAUSE,
            false => PAUSE,
        });
    }
}

/// Looks once at each of many pairs. Returns `None` for a pair that one look does not confirm: it
/// has to be measured by itself.
pub(crate) fn glance(pairs: &[Pair]) -> Vec<Option<Measured>> {
    let mut processes = Processes::default();
    let looked = pairs.iter().map(|pair| {
        let process = processes.open(pair.id.pid).ok()?;
        let [a, b] = held::sockets(process, pair).ok()??;
        glance_at(pair, [&a, &b]).ok()?
    });
    looked.collect()
}

/// Confirms the claim about a pair whose sockets are silent. Nothing has moved for longer than the
/// readings of [`look`] take, so that two of them are enough, and no pipe is asked.
fn glance_at(pair: &Pair, ends: [&OwnedFd; 2]) -> io::Result<Option<Measured>> {
    let mut ways = ways(pair);
    for socket in ends {
        if !upper_protocol(socket)?.is_empty() {
            return Ok(None);
        }
    }
    let (before, after) = (Snapshot::of_sockets(ends)?, Snapshot::of_sockets(ends)?);
    let plain = |r: &Reading| r.is_silent(SILENT) && r.info.tcpi_options & USEC_TS == 0;
    if ![&before, &after].iter().all(|s| s.ends.iter().all(plain)) {
        return Ok(None);
    }
    let look = Look {
        at: Duration::ZERO,
        asleep: false,
    };
    let agrees = |w: &mut Way| w.judge(&before, &after, look).is_ok() && w.met;
    match ways.iter_mut().all(agrees) {
        true => numbers(pair, ends).map(Some),
        false => Ok(None),
    }
}

/// Returns the sending parameters of both sockets of each pair, or `None` if one of them no longer
/// exists or cannot be read.
pub(crate) fn sending(pairs: &[Pair]) -> Vec<Option<[Sending; 2]>> {
    let mut processes = Processes::default();
    let mut taken = |pair: &Pair| {
        let process = processes.open(pair.id.pid).ok()?;
        let [a, b] = held::sockets(process, pair).ok()??;
        let a = Sending::of(&a, pair.a.key.is_v6()).ok()?;
        let b = Sending::of(&b, pair.b.key.is_v6()).ok()?;
        Some([a, b])
    };
    let ends = pairs.iter().flat_map(|pair| [pair.a, pair.b]);
    let ends: Vec<_> = ends.map(|end| (end.key, end.cookie)).collect();
    // A kernel may have no sock_diag, or a socket be in another namespace.
    let told = infos(&ends).unwrap_or_default();
    let told = told.chunks(2).map(Some).chain(std::iter::repeat(None));
    let read = |pair: &Pair, told: Option<&[Option<Bytes>]>| {
        let [Some(a), Some(b)] = told? else {
            return None;
        };
        let a = Sending::read(a, pair.a.key.is_v6());
        Some([a, Sending::read(b, pair.b.key.is_v6())])
    };
    let of = |(pair, told)| read(pair, told).or_else(|| taken(pair));
    pairs.iter().zip(told).map(of).collect()
}

/// Looks for a pipe that holds the missing bytes. If a direction's reader is slow, a pipe holds
/// bytes that were read and not written. Pipes are pooled by the proxy, so any of them may be the
/// one. A pipe that holds exactly the missing number of bytes accounts for them, if it still does
/// in a still moment.
fn look_in_pipes(
    pair: &Pair,
    held: &Held,
    ways: &mut [Way; 2],
    begin: Instant,
) -> Result<bool, MeasureError> {
    if !(never_waits(&held.a) && never_waits(&held.b)) {
        return Ok(false);
    }
    let missing = ways.each_ref().map(|w| match w.seen {
        Some(seen) if w.counts_pipes() => w.claim - seen,
        _ => 0,
    });
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
            look(pair, held, only, &mut again, (begin, AGAIN))?;
            met[way] |= again[way].met;
        }
    }
    for (w, met) in ways.iter_mut().zip(met) {
        w.met = met;
    }
    Ok(met == [true; 2])
}

fn snapshot(
    pair: &Pair,
    held: &Held,
    pipes: [Option<&OwnedFd>; 2],
) -> Result<Snapshot, MeasureError> {
    Snapshot::take(held, pipes).map_err(|e| system(pair, "read the counters", e))
}

/// Number of readings in sequence after which both claims were met or only needed time.
#[derive(Default)]
struct Idle(usize);

impl Idle {
    /// Adds a reading, and returns true if more readings of this pass gain nothing. A movement
    /// begins the sequence anew: each moment of a flow counts.
    fn ends_pass(&mut self, gains_nothing: bool) -> bool {
        self.0 = if gains_nothing { self.0 + 1 } else { 0 };
        self.0 > AGAIN
    }
}

/// Returns true if both claims are met, and none of up to [`AGAIN`] further readings contradicts
/// them.
fn look(
    pair: &Pair,
    held: &Held,
    pipes: [Option<&OwnedFd>; 2],
    ways: &mut [Way; 2],
    (begin, passes): (Instant, usize),
) -> Result<bool, MeasureError> {
    let mut before = snapshot(pair, held, pipes)?;
    let mut idle = Idle::default();
    for _ in 0..passes {
        let now = snapshot(pair, held, pipes)?;
        let look = Look {
            at: begin.elapsed(),
            asleep: false,
        };
        judge(pair, ways, &before, &now, look)?;
        before = now;
        if idle.ends_pass(ways.iter().all(|w| w.met || w.needs_time())) {
            break;
        }
    }
    Ok(ways.iter().all(|w| w.met))
}

/// Takes one more look at a process that may be asleep, if sleep would show it empty.
fn look_asleep(
    pair: &Pair,
    held: &Held,
    pipes: [Option<&OwnedFd>; 2],
    ways: &mut [Way; 2],
    begin: Instant,
) -> Result<bool, MeasureError> {
    if !ways.iter().any(|w| !w.met && w.may_be_full()) {
        return Ok(false);
    }
    let before = snapshot(pair, held, pipes)?;
    let asleep = sleeps(pair.id.pid);
    let now = snapshot(pair, held, pipes)?;
    let at = begin.elapsed();
    judge(pair, ways, &before, &now, Look { at, asleep })?;
    Ok(ways.iter().all(|w| w.met))
}

fn judge(
    pair: &Pair,
    ways: &mut [Way; 2],
    before: &Snapshot,
    after: &Snapshot,
    look: Look,
) -> Result<(), MeasureError> {
    for w in ways.iter_mut() {
        let judged = w.judge(before, after, look);
        judged.map_err(|seen| mismatch(pair, w, seen))?;
    }
    Ok(())
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
    if w.may_be_full() {
        return MeasureError::MayHold {
            pair: pair.id,
            direction: w.name(),
            ends: slow_and_fast(w.from == 0),
            waited_ms: waited.as_millis() as u64,
        };
    }
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

/// Returns the confirmed deltas, and both clocks at the same tick.
fn numbers(pair: &Pair, [a, b]: [&OwnedFd; 2]) -> io::Result<Measured> {
    let clock = |fd| option::<u32>(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP);
    let (mut clock_a, mut clock_b) = (clock(a)?, clock(b)?);
    // A tick is 1 ms: see [`MeasureError::Microseconds`].
    for _ in 0..16 {
        let again = clock(a)?;
        if again == clock_a {
            break;
        }
        (clock_a, clock_b) = (again, clock(b)?);
    }
    Ok(Measured {
        delta_forward: pair.forward.delta,
        delta_reverse: pair.reverse.delta,
        clock_a,
        clock_b,
        options_a: info(a)?.tcpi_options,
        options_b: info(b)?.tcpi_options,
        sending_a: Sending::of(a, pair.a.key.is_v6())?,
        sending_b: Sending::of(b, pair.b.key.is_v6())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_is_read_to_the_end_of_the_pass() {
        let mut idle = Idle::default();
        assert!((0..AGAIN).all(|_| !idle.ends_pass(true)));
        assert!(idle.ends_pass(true));
        let mut idle = Idle::default();
        assert!((0..PASSES).all(|n| !idle.ends_pass(n % AGAIN != 0)));
    }
}
