//! Ten thousand silent sessions leave HAProxy: `dyscoctl drain`, from the
//! command's start to its end, where the proxy's host alone runs `dyscod`.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use dysco_netns::haproxy::Config;
use dysco_netns::wait;
use serde_json::Value;

use crate::Effort;
use crate::apart::Between;
use crate::crowd::{Crowd, Order};
use crate::figure::{Figure, Goal};
use crate::stage::{PATIENCE, Stage, proxied, server};

const SESSIONS: usize = 10_000;
/// Messages each way, after which HAProxy is seen to splice and all is silent.
const MESSAGES: usize = 3;
const AT_ONCE: usize = 64;
/// A process may not have two sockets of each session on every machine, so that
/// there are two HAProxies that listen on the same port.
const EACH_AT_MOST: usize = 8_000;

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let sessions = effort.pick(SESSIONS, 500);
    let mut seconds = Vec::new();
    for round in 1..=effort.pick(3, 1) {
        effort.say(&format!("  {sessions} sessions, round {round}"));
        seconds.push(measure(sessions)?);
    }
    let figure = Figure::median("drain_idle_s", "s", seconds);
    let figure = figure.goal(Goal::AtMost(10.0));
    Ok(vec![figure.aside("sessions", sessions as f64)])
}

fn measure(count: usize) -> Result<f64> {
    let stage = Stage::alone_by("drain", "[removal]\nmode = \"local\"\n", |c| {
        c.connections(EACH_AT_MOST).pipes(512)
    })?;
    let second = Config::tcp(proxied(), server()).named("second");
    let second = second.connections(EACH_AT_MOST).pipes(512);
    let second = second.start(&stage.lab.proxy, |haproxy| stage.fleet.under_shim(haproxy))?;
    let between = Between {
        client: &stage.lab.client,
        to: proxied(),
        server: &stage.lab.server,
        at: server(),
    };
    let crowd = Crowd::open(between, count)?;
    let each = |rounds| {
        let sessions = 0..count;
        crowd.speak(Order {
            sessions,
            rounds,
            at_once: AT_ONCE,
        })
    };
    each(MESSAGES)?;
    wait::until("HAProxy to be seen splicing", PATIENCE, || {
        (stage.pairs().ok()? == count as u64).then_some(())
    })?;
    let start = Instant::now();
    let port = format!(":{}", proxied().port());
    let words = ["drain", &port, "--timeout", "120s", "-o", "json"];
    let ran = stage.fleet.try_dyscoctl(&stage.lab.proxy, &words)?;
    let took = start.elapsed().as_secs_f64();
    let last = ran.stdout.lines().last().unwrap_or_default();
    let done: Value = serde_json::from_str(last)
        .with_context(|| format!("dyscoctl printed no JSON: {} {}", ran.stdout, ran.stderr))?;
    let left = (done["removed"].as_u64(), done["left"].as_u64());
    ensure!(
        left == (Some(count as u64), Some(0)),
        "not all left HAProxy: {done}"
    );
    each(1).context("after the drain")?;
    drop((crowd, second));
    stage.end()?;
    Ok(took)
}
