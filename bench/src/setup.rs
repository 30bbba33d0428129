//! Time to open a session through hosts on a chain of `dyscod`, compared with plain forwarding by
//! the same number of hosts. The same measurement while all daemons are stopped shows the cost of
//! the programs alone.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use dysco_netns::Host;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::ReceiveTimeout;
use nix::sys::time::{TimeVal, TimeValLike};

use crate::Effort;
use crate::apart::{Between, Parked};
use crate::figure::{Figure, Goal, median, rank, sorted};
use crate::pair::stay;
use crate::plot::{Panel, Plot};
use crate::turns::{Brought, RUN_IN, Turns};
use crate::ways::{self, CHAINED, CONTROL, EMPTY, PLAIN, Ways};

/// Number of connects in a turn.
const BLOCK: usize = 25;
const PORT: u16 = 9000;
/// Port of the sessions that exist before the measurement.
const OTHERS: u16 = 9001;
/// Kind of the sessions along the chain while its daemons are stopped.
const STOPPED: usize = ways::KINDS;
const KINDS: usize = ways::KINDS + 1;

/// Line of a kind.
fn line(kind: usize) -> usize {
    if kind == STOPPED { CHAINED } else { kind }
}

/// One path, and the other sessions on it.
struct Case {
    middleboxes: usize,
    offload: bool,
    others: usize,
    suffix: &'static str,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let others = effort.pick(20_000, 2_000);
    let case = |middleboxes, offload, others, suffix| Case {
        middleboxes,
        offload,
        others,
        suffix,
    };
    let cases = [
        case(1, true, 0, "1mb"),
        case(1, false, 0, "1mb_no_offload"),
        case(1, true, others, "1mb_among_others"),
        case(4, true, 0, "4mb"),
        case(4, false, 0, "4mb_no_offload"),
        case(4, true, others, "4mb_among_others"),
    ];
    let mut figures = Vec::new();
    for middleboxes in [1, 4] {
        let ways = Ways::build(middleboxes)?;
        for case in cases.iter().filter(|c| c.middleboxes == middleboxes) {
            effort.say(&format!("  {}", case.suffix));
            ways.set_offload(case.offload)?;
            case.measure(&ways, effort, &mut figures)?;
        }
        ways.end(())?;
    }
    Ok(figures)
}

impl Case {
    fn measure(&self, ways: &Ways, effort: &Effort, figures: &mut Vec<Figure>) -> Result<()> {
        let park = |kind| Parked::open(ways.between(kind, OTHERS), self.others);
        let others: Vec<_> = (0..ways::KINDS).map(park).collect::<Result<_>>()?;
        let serve = |kind| Accepting::start(ways.between(kind, PORT));
        let servers: Vec<_> = (0..ways::KINDS).map(serve).collect::<Result<_>>()?;
        let connects = effort.pick(1_000, 200);
        let all = Connects::measure(connects / BLOCK, |kind| block(ways, kind))?;
        servers.into_iter().for_each(Accepting::end);
        drop(others);
        self.figures(&all, figures);
        effort.plot(self.plot(&all));
        Ok(())
    }

    fn figures(&self, all: &Connects, figures: &mut Vec<Figure>) {
        let suffix = self.suffix;
        let added = |kind: usize| all.turns.differences(kind, |b| b.value);
        let [plain, chained] = [PLAIN, CHAINED].map(|kind| sorted(&all.times[kind]));
        let figure = Figure::median(format!("setup_added_us_{suffix}"), "µs", added(CHAINED))
            .aside("forwarding p50, µs", rank(&plain, 50))
            .aside("this p50, µs", rank(&chained, 50))
            .aside("sessions there before", self.others as f64);
        let figure = match self.middleboxes {
            4 => figure.goal(Goal::AtMost(40.0)),
            _ => figure,
        };
        // The hosts of the paper computed their checksums themselves.
        let figure = match (self.middleboxes, self.offload) {
            (4, false) => figure.paper(94.0),
            _ => figure,
        };
        figures.push(figure);
        figures.push(slowest(suffix, &plain, &chained));
        for (name, kind) in [
            ("stopped_daemons", STOPPED),
            ("empty_programs", EMPTY),
            ("control", CONTROL),
        ] {
            let name = format!("{name}_setup_added_us_{suffix}");
            figures.push(Figure::median(name, "µs", added(kind)));
        }
    }

    fn plot(&self, all: &Connects) -> Plot {
        let curve = |name, kind: usize| (name, all.times[kind].clone());
        let title = format!("cumulative share of connects by duration ({})", self.suffix);
        let lines = [
            curve("forwarding", PLAIN),
            curve("control: forwarding", CONTROL),
            curve("empty programs", EMPTY),
            curve("steered along a chain", CHAINED),
        ];
        let panel = Panel::distributions(&title, "µs", &lines);
        Plot::single(&format!("setup-{}", self.suffix), panel)
    }
}

/// Times of connects.
struct Connects {
    /// Medians of the turns.
    turns: Turns<KINDS>,
    /// All times in microseconds.
    times: [Vec<f64>; KINDS],
}

impl Connects {
    /// Measures `count` turns of connects of each kind.
    fn measure(count: usize, mut block: impl FnMut(usize) -> Result<Vec<f64>>) -> Result<Connects> {
        let mut turns = Turns::new("forwarding");
        let mut times: [Vec<f64>; KINDS] = Default::default();
        turns.each(count, |kind| {
            let took = block(kind)?;
            let value = median(&took);
            times[kind].extend(took);
            Ok(Brought {
                value,
                ..Brought::default()
            })
        })?;
        Ok(Connects { turns, times })
    }
}

/// Compares the slowest connects. It uses all connects together, because a turn has too few.
fn slowest(suffix: &str, plain: &[f64], chained: &[f64]) -> Figure {
    let [plain, chained] = [plain, chained].map(|all| rank(all, 99));
    let name = format!("setup_added_us_p99_{suffix}");
    Figure::new(name, "µs", chained - plain)
        .aside("forwarding p99, µs", plain)
        .aside("this p99, µs", chained)
}

/// Returns the times of a turn's connects.
fn block(ways: &Ways, kind: usize) -> Result<Vec<f64>> {
    let Between { client, to, .. } = ways.between(line(kind), PORT);
    if kind != STOPPED {
        return connects_of(client, to, BLOCK);
    }
    ways.stop(true)?;
    let times = connects_of(client, to, BLOCK);
    ways.stop(false)?;
    // The daemons process what they have missed before the next turn.
    std::thread::sleep(RUN_IN);
    times
}

/// Returns the times of `count` connects in sequence, in microseconds.
fn connects_of(client: &Host, to: SocketAddr, count: usize) -> Result<Vec<f64>> {
    let connecting = client.thread("connect", move || {
        stay(0);
        (0..count).map(|_| connect(to)).collect::<Result<_, _>>()
    })?;
    let times = connecting
        .join()
        .map_err(|_| anyhow!("a thread that connects panicked"))?;
    times.with_context(|| format!("failed to connect to {to}"))
}

/// Opens and closes a session. None of its packets is in flight when the next session is opened.
fn connect(to: SocketAddr) -> std::io::Result<f64> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(to)?;
    let took = start.elapsed();
    stream.shutdown(std::net::Shutdown::Write)?;
    stream.read_to_end(&mut Vec::new())?;
    Ok(took.as_secs_f64() * 1e6)
}

/// A server that accepts sessions, and ends sessions that the client has ended.
struct Accepting {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Accepting {
    fn start(between: Between<'_>) -> Result<Accepting> {
        let Between { server, at, .. } = between;
        let listener = server.run(move || TcpListener::bind(at));
        let listener = listener.with_context(|| format!("failed to listen on {at}"))?;
        setsockopt(&listener, ReceiveTimeout, &TimeVal::milliseconds(50))
            .context("failed to set up a listener")?;
        let ended = Arc::<AtomicBool>::default();
        let until = ended.clone();
        let thread = server.thread("accept", move || {
            stay(1);
            while !until.load(Ordering::Relaxed) {
                if let Ok((mut stream, _)) = listener.accept() {
                    let _ = stream.read_to_end(&mut Vec::new());
                }
            }
        })?;
        Ok(Accepting { ended, thread })
    }

    fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(middleboxes: usize, offload: bool, others: usize) -> Vec<Figure> {
        // Each connect along the chain takes 30 µs more, and the slowest take 470 µs more in
        // addition.
        let block = |kind: usize| {
            let (slower, slowest) = if kind == CHAINED {
                (30.0, 470.0)
            } else {
                (0.0, 0.0)
            };
            let mut block: Vec<_> = (0..BLOCK).map(|n| 100.0 + n as f64 + slower).collect();
            block[0] += slowest;
            Ok(block)
        };
        let all = Connects::measure(8, block).expect("times that are made up");
        let case = Case {
            middleboxes,
            offload,
            others,
            suffix: "x",
        };
        let mut figures = Vec::new();
        case.figures(&all, &mut figures);
        figures
    }

    #[test]
    fn the_paper_is_compared_where_its_hosts_were_equal() {
        let first = |middleboxes, offload, others| {
            let all = figures(middleboxes, offload, others);
            (all[0].goal.map(Goal::bound), all[0].paper)
        };
        assert_eq!(first(4, false, 0), (Some(40.0), Some(94.0)));
        assert_eq!(first(4, true, 0), (Some(40.0), None));
        assert_eq!(first(4, true, 20_000), (Some(40.0), None));
        assert_eq!(first(1, false, 0), (None, None));
    }

    #[test]
    fn the_slowest_connects_have_a_figure_of_their_own() {
        let all = figures(1, true, 0);
        let named = |name: &str| all.iter().find(|f| f.name == name);
        assert_eq!(
            named("setup_added_us_x").map(|f| f.value.round()),
            Some(31.0)
        );
        let p99 = named("setup_added_us_p99_x");
        assert_eq!(p99.map(|f| f.value), Some(600.0 - 124.0));
        assert_eq!(p99.map(|f| f.aside["this p99, µs"]), Some(600.0));
    }
}
