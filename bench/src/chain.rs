//! Goodput of sessions through one middlebox's host on a chain of `dyscod`, compared with plain
//! forwarding by the same number of hosts.

use std::time::Duration;

use anyhow::Result;

use crate::Effort;
use crate::bulk::Bulk;
use crate::contest::Pace;
use crate::figure::{Figure, Goal};
use crate::pair::buffer_of;
use crate::turns::{RUN_IN, Turns};
use crate::ways::{CHAINED, CONTROL, EMPTY, KINDS, PLAIN, Ways};

const PORT: u16 = 9000;
/// Numbers of sessions.
pub(crate) const COUNTS: [usize; 5] = [1, 4, 100, 1_000, 10_000];
/// Minimum goodput of the paper's prototype, as a share of forwarding's.
const PAPER: f64 = 0.985;
/// Rate of the links where they are the limit.
pub(crate) const RATE: &str = "2gbit";

/// Limit of the goodput.
struct Bound {
    prefix: &'static str,
    about: &'static str,
    /// Maximum rate of the links, in the syntax of tc.
    rate: Option<&'static str>,
}

/// Two limits. The first is the processors, which both ends and all hosts share here: time of the
/// programs is lost to all of them. The second is the links, as on the paper's hosts with 100
/// sessions and more.
const BOUNDS: [Bound; 2] = [
    Bound {
        prefix: "",
        about: "limited by the processors",
        rate: None,
    },
    Bound {
        prefix: "linked_",
        about: "over links of 2 Gbit/s",
        rate: Some(RATE),
    },
];

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for bound in &BOUNDS {
        let counts = COUNTS
            .iter()
            .filter(|n| !effort.quick || [1, 100].contains(*n));
        for count in counts.copied() {
            figures.extend(bound.figures(effort, count)?);
        }
    }
    Ok(figures)
}

impl Bound {
    fn figures(&self, effort: &Effort, count: usize) -> Result<Vec<Figure>> {
        let mut turns = Turns::new("forwarding");
        let rounds = self.rounds(effort, count);
        for round in 1..=rounds {
            let about = self.about;
            effort.say(&format!(
                "  {count} sessions {about}, round {round} of {rounds}"
            ));
            self.measure(effort, count, &mut turns)?;
        }
        let named = |name: &str| format!("{}{name}_{count}", self.prefix);
        let figure = |name: &str, kind| turns.figure(named(name), kind, 1e9, "Gbit/s");
        let ratio = figure("goodput_ratio", CHAINED);
        let mut figures = vec![
            ratio.goal(Goal::AtLeast(0.99)).paper(PAPER),
            figure("empty_programs_goodput_ratio", EMPTY),
            figure("control_goodput_ratio", CONTROL),
        ];
        if self.rate.is_some() {
            // With limited links the cost shows as processor time instead.
            let cpu = |name: &str, kind| turns.cost(named(name), kind, "seconds a GB");
            figures.push(cpu("cpu_ratio", CHAINED));
            figures.push(cpu("empty_programs_cpu_ratio", EMPTY));
        }
        Ok(figures)
    }

    fn rounds(&self, effort: &Effort, count: usize) -> usize {
        match (self.rate, count) {
            (Some(_), _) => 1,
            (None, 1) => effort.pick(5, 1),
            // The turns of this case differ most: 0.6 to 1.4 of forwarding's goodput.
            (None, 10_000) => effort.pick(3, 1),
            (None, _) => effort.pick(2, 1),
        }
    }

    fn measure(&self, effort: &Effort, count: usize, turns: &mut Turns<KINDS>) -> Result<()> {
        let ways = Ways::build(1)?;
        let open = |kind: usize| {
            // Only one kind at a time fills its buffers.
            Bulk::open(ways.between(kind, PORT), count, buffer_of(count * 3))
        };
        let sessions = [open(PLAIN)?, open(CONTROL)?, open(CHAINED)?, open(EMPTY)?];
        if let Some(rate) = self.rate {
            ways.limit(rate)?;
        }
        let pace = Pace::of(effort, count);
        for streams in &sessions {
            streams.measure(RUN_IN, pace.warm())?;
        }
        turns.bulk(&sessions, pace.turns(), pace.turn(), || Ok(Duration::ZERO))?;
        ways.end(sessions)
    }
}
