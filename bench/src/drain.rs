//! Ten thousand silent sessions leave HAProxy: `dyscoctl drain`, from the
//! command's start to its end, where the proxy's host alone runs `dyscod`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Effort;
use crate::figure::{Figure, Goal};
use crate::machine;
use crate::pair::{Listener, Pair};
use crate::stage::{Stage, proxied, server};

const SESSIONS: usize = 10_000;
/// Open files that are no sockets of sessions.
const OTHER_FILES: usize = 1_000;
/// Messages each way, after which HAProxy is seen to splice and all is silent.
const MESSAGES: usize = 3;
const MESSAGE: usize = 512;

/// Measures.
pub fn run(effort: &Effort) -> Result<Vec<Figure>> {
    // HAProxy has two sockets of each session, and so has this process.
    let room = machine::sockets()?.saturating_sub(OTHER_FILES) / 2;
    let sessions = effort.pick(SESSIONS, 500).min(room);
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
    let stage = Stage::alone("drain", "[removal]\nmode = \"local\"\n")?;
    let behind = Listener::start(&stage.lab, server())?;
    let open = |_| {
        let mut pair = behind.open(&stage.lab, proxied())?;
        for _ in 0..MESSAGES {
            exchange(&mut pair)?;
        }
        Ok(pair)
    };
    let mut pairs = (0..count).map(open).collect::<Result<Vec<Pair>>>()?;
    let pid = stage.haproxy.id().to_string();
    let start = Instant::now();
    let words = ["drain", &pid, "--timeout", "120s", "-o", "json"];
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
    pairs.iter_mut().try_for_each(exchange)?;
    drop((pairs, behind));
    stage.end()?;
    Ok(took)
}

/// A message each way.
fn exchange(pair: &mut Pair) -> Result<()> {
    let send = |from: &mut TcpStream, to: &mut TcpStream| {
        let mut heard = [0; MESSAGE];
        from.write_all(&[7; MESSAGE])?;
        to.read_exact(&mut heard)
    };
    send(&mut pair.client, &mut pair.server).context("a message was lost on its way up")?;
    send(&mut pair.server, &mut pair.client).context("a message was lost on its way down")
}
