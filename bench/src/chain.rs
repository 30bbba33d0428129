//! What sessions carry through one middlebox's host that `dyscod` steers them
//! along, against plain forwarding by as many hosts.

use std::time::Duration;

use anyhow::Result;

use crate::Effort;
use crate::bulk::Bulk;
use crate::figure::{Figure, Goal};
use crate::pair::buffer_of;
use crate::turns::Turns;
use crate::ways::{CHAINED, CONTROL, KINDS, Ways};

const PORT: u16 = 9000;
const COUNTS: [usize; 5] = [1, 4, 100, 1_000, 10_000];
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
            1 => effort.pick(6, 1),
            _ => effort.pick(3, 1),
        };
        for round in 1..=rounds {
            effort.say(&format!("  {count} sessions, round {round} of {rounds}"));
            measure(effort, count, &mut turns)?;
        }
        let figure =
            |name: &str, kind| turns.figure(format!("{name}_{count}"), kind, 1e9, "Gbit/s");
        let ratio = figure("goodput_ratio", CHAINED);
        figures.push(ratio.goal(Goal::AtLeast(0.99)).paper(PAPER));
        figures.push(figure("control_goodput_ratio", CONTROL));
    }
    Ok(figures)
}

fn measure(effort: &Effort, count: usize, turns: &mut Turns<KINDS>) -> Result<()> {
    let ways = Ways::build(1)?;
    let open = |kind: usize| {
        // The control's sessions end at another port of the same server.
        let between = ways.between(kind, PORT + kind as u16);
        Bulk::open(between, count, buffer_of(count * KINDS))
    };
    let sessions = [open(0)?, open(1)?, open(2)?];
    turns.bulk(&sessions, effort.turn(), || Ok(Duration::ZERO))?;
    ways.end(sessions)
}
