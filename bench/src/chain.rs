//! What sessions carry through one middlebox's host that `dyscod` steers them
//! along, against plain forwarding by as many hosts.

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
/// How many sessions there are.
pub const COUNTS: [usize; 5] = [1, 4, 100, 1_000, 10_000];
/// The share of forwarding's goodput that the paper's prototype had at least.
const PAPER: f64 = 0.985;

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let counts = COUNTS
        .iter()
        .filter(|n| !effort.quick || [1, 100].contains(*n));
    for count in counts.copied() {
        let mut turns = Turns::new("forwarding");
        let rounds = match count {
            1 => effort.pick(5, 1),
            // Its turns differ most: 0.6 to 1.4 of what forwarding carries.
            10_000 => effort.pick(3, 1),
            _ => effort.pick(2, 1),
        };
        for round in 1..=rounds {
            effort.say(&format!("  {count} sessions, round {round} of {rounds}"));
            measure(effort, count, &mut turns)?;
        }
        let figure =
            |name: &str, kind| turns.figure(format!("{name}_{count}"), kind, 1e9, "Gbit/s");
        let ratio = figure("goodput_ratio", CHAINED);
        figures.push(ratio.goal(Goal::AtLeast(0.99)).paper(PAPER));
        figures.push(figure("empty_programs_goodput_ratio", EMPTY));
        figures.push(figure("control_goodput_ratio", CONTROL));
    }
    Ok(figures)
}

fn measure(effort: &Effort, count: usize, turns: &mut Turns<KINDS>) -> Result<()> {
    let ways = Ways::build(1)?;
    let open = |kind: usize| {
        // One kind at a time fills its own.
        Bulk::open(ways.between(kind, PORT), count, buffer_of(count * 3))
    };
    let sessions = [open(PLAIN)?, open(CONTROL)?, open(CHAINED)?, open(EMPTY)?];
    let pace = Pace::of(effort, count);
    for streams in &sessions {
        streams.measure(RUN_IN, pace.warm())?;
    }
    turns.bulk(&sessions, pace.turns(), pace.turn(), || Ok(Duration::ZERO))?;
    ways.end(sessions)
}
