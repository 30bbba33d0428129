//! Requests to nginx along chains of 1 to 4 middleboxes' hosts, against plain
//! forwarding by as many.

use anyhow::Result;
use dysco_netns::nginx::Nginx;

use crate::Effort;
use crate::apart::Between;
use crate::figure::{Figure, Goal};
use crate::turns::{Brought, Turns};
use crate::ways::{CHAINED, CONTROL, EMPTY, KINDS, PLAIN, Ways};
use crate::wrk;

const PORT: u16 = 80;
/// The share of forwarding's requests that the paper's prototype had at least.
const PAPER: f64 = 0.982;

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for middleboxes in effort.pick(1, 4)..=4 {
        effort.say(&format!("  {middleboxes} middleboxes"));
        let count = match middleboxes {
            4 => effort.pick(12, 3),
            _ => 6,
        };
        let turns = measure(middleboxes, count)?;
        let figure = |name: &str, kind| {
            turns.figure(format!("{name}_{middleboxes}mb"), kind, 1.0, "requests/s")
        };
        let ratio = figure("requests_ratio", CHAINED);
        figures.push(ratio.goal(Goal::AtLeast(0.99)).paper(PAPER));
        figures.push(figure("empty_programs_requests_ratio", EMPTY));
        figures.push(figure("control_requests_ratio", CONTROL));
    }
    Ok(figures)
}

fn measure(middleboxes: usize, count: usize) -> Result<Turns<KINDS>> {
    let mut turns = Turns::new("forwarding");
    let ways = Ways::build(middleboxes)?;
    let start = |kind: usize| Nginx::start(ways.line(kind).server(), PORT);
    let servers = [
        start(PLAIN)?,
        start(CONTROL)?,
        start(CHAINED)?,
        start(EMPTY)?,
    ];
    let ask = |kind: usize| {
        let Between { client, to, .. } = ways.between(kind, PORT);
        let value = wrk::ask(client, to, wrk::SESSIONS, true)?;
        Ok(Brought {
            value,
            ..Brought::default()
        })
    };
    turns.each(count, ask)?;
    ways.end(servers)?;
    Ok(turns)
}
