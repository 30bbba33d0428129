//! Requests to nginx along chains of 1 to 4 middleboxes' hosts, compared with plain forwarding by
//! the same number of hosts. Short answers are limited by the processors, and pages by the links.

use anyhow::Result;
use dysco_netns::nginx::Nginx;

use crate::Effort;
use crate::apart::Between;
use crate::chain::RATE;
use crate::figure::{Figure, Goal};
use crate::turns::{Brought, Turns};
use crate::ways::{CHAINED, CONTROL, EMPTY, KINDS, PLAIN, Ways};
use crate::wrk;

const PORT: u16 = 80;
/// Minimum rate of requests of the paper's prototype, as a share of forwarding's.
const PAPER: f64 = 0.982;

/// Content of the requests.
struct Asked {
    prefix: &'static str,
    what: &'static str,
    /// Maximum rate of the links, in the syntax of tc.
    rate: Option<&'static str>,
}

const ASKED: [Asked; 2] = [
    Asked {
        prefix: "",
        what: wrk::PING,
        rate: None,
    },
    Asked {
        prefix: "linked_",
        what: "page",
        rate: Some(RATE),
    },
];

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for middleboxes in effort.pick(1, 4)..=4 {
        effort.say(&format!("  {middleboxes} middleboxes"));
        let ways = Ways::build(middleboxes)?;
        let start = |kind: usize| Nginx::start(ways.line(kind).server(), PORT);
        let servers = [
            start(PLAIN)?,
            start(CONTROL)?,
            start(CHAINED)?,
            start(EMPTY)?,
        ];
        for asked in &ASKED {
            figures.extend(asked.figures(effort, &ways, middleboxes)?);
        }
        ways.end(servers)?;
    }
    Ok(figures)
}

impl Asked {
    fn figures(&self, effort: &Effort, ways: &Ways, middleboxes: usize) -> Result<[Figure; 3]> {
        let count = match (self.rate, middleboxes) {
            (None, 4) => effort.pick(12, 3),
            (None, _) => 6,
            // The speed of the links is constant.
            (Some(_), _) => effort.pick(4, 2),
        };
        if let Some(rate) = self.rate {
            ways.limit(rate)?;
        }
        let mut turns = Turns::<KINDS>::new("forwarding");
        turns.each(count, |kind| self.ask(ways, kind))?;
        let figure = |name: &str, kind| {
            let name = format!("{}{name}_{middleboxes}mb", self.prefix);
            turns.figure(name, kind, 1.0, "requests/s")
        };
        let ratio = figure("requests_ratio", CHAINED);
        Ok([
            ratio.goal(Goal::AtLeast(0.99)).paper(PAPER),
            figure("empty_programs_requests_ratio", EMPTY),
            figure("control_requests_ratio", CONTROL),
        ])
    }

    fn ask(&self, ways: &Ways, kind: usize) -> Result<Brought> {
        let Between { client, to, .. } = ways.between(kind, PORT);
        let value = wrk::ask(client, to, self.what, wrk::SESSIONS, true)?;
        Ok(Brought {
            value,
            ..Brought::default()
        })
    }
}
