//! The engine of `dyscod`: one task that owns the protocol machine. It carries the machine's
//! commands to the data plane and the proxy's side, and its messages to peers. All other tasks send
//! it inputs over channels.

mod adopt;
mod answers;
mod broken;
mod chains;
mod collect;
mod commands;
mod doubt;
mod events;
mod fault;
mod firewall;
mod gauges;
mod held;
mod history;
mod host;
mod install;
mod interfaces;
mod journal;
mod linger;
mod listing;
mod measure;
mod measured;
mod monitors;
mod neighbours;
mod on_link;
mod outside;
mod pace;
mod packets;
mod pages;
mod ports;
mod probe;
mod proof;
mod raw;
mod rechain;
mod relay;
mod reload;
mod removal;
mod sockets;
mod start;
mod state;
mod straight;
mod sweep;
mod take_up;
mod tally;
mod trial;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dysco_agent::Happened;
use dysco_config::Config;
use dysco_proto::{Machine, Message};
use dysco_scheduling::Turns;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Interval, MissedTickBehavior};

use crate::{api, metrics};

use answers::Answer;
use held::Held;
use host::ThisHost;
use removal::Removals;
use start::{Inputs, start};

/// Interval at which sessions are collected, and events are looked for that a full ring may have
/// lost. The table is swept in parts: a large one takes milliseconds, for which a removal would
/// have to wait.
const SWEEP: Duration = Duration::from_secs(1);
const SWEEP_PARTS: u32 = 16;
/// Interval at which the flag of a draining session is checked as well.
const DRAIN_SWEEP: Duration = Duration::from_millis(20);

/// The dispatcher, and the owners between which it passes everything on.
struct Engine {
    host: ThisHost,
    machine: Machine,
    removals: Removals,
    adopting: adopt::Adopting,
    /// Listings of sessions in progress.
    pages: pages::Pages,
    reload: reload::Reload,
    api: api::Server,
    metrics: metrics::Server,
    /// Counts of how changes ended.
    tally: tally::Tally,
    gauges: gauges::Gauges,
    turns: Turns,
}

/// Runs the daemon until a signal stops it. Sessions go on without it.
///
/// The configuration is read again from `file`.
pub async fn run(config: Config, file: PathBuf) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to wait for SIGINT")?;
    let (mut engine, mut inputs) = start(config, file)?;
    engine.take_up()?;
    engine.host.hold_ports();
    engine.adopt_sessions(None);
    engine.host.start_chains();
    crate::notify::notify_ready();
    tracing::info!(host = %engine.host.config.host.name, "ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        result = engine.serve(&mut inputs) => return result,
    }
    crate::notify::notify_stopping();
    tracing::info!("stopping; established sessions go on");
    engine.host.history.flush();
    engine.host.agent.release_quarantine();
    engine.host.control.shutdown().await;
    Ok(())
}

/// Returns ticks of which missed ones are not made up for. The work of a tick covers everything,
/// and a task that is late has no time to do it several times.
fn every(period: Duration) -> Interval {
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Engine {
    async fn serve(&mut self, inputs: &mut Inputs) -> anyhow::Result<()> {
        let mut sweep = every(SWEEP / SWEEP_PARTS);
        let mut parts = (0..SWEEP_PARTS).cycle();
        let mut drain_sweep = every(DRAIN_SWEEP);
        let mut happened = Happened::default();
        loop {
            let timer = self.machine.poll_timeout().map(|at| self.host.started + at);
            let turn = self.removals.next_turn();
            let undecided = self.removals.next_decision();
            let draining =
                self.host.held.values().any(Held::is_underway) || self.host.rechain.is_busy();
            tokio::select! {
                biased;
                Some(answer) = inputs.answers.recv() => self.take_answer(answer),
                event = inputs.control.recv() => {
                    self.take_control(event.context("the control channel has ended")?);
                }
                read = inputs.events.read(&mut happened) => {
                    read.context("failed to read the data plane's events")?;
                    self.host.take_events(&mut happened);
                }
                Some(call) = inputs.calls.recv() => self.take_call(call),
                // A reader that has left needs no answer.
                Some(scrape) = inputs.scrapes.recv() => drop(scrape.send(self.snapshot())),
                Some(()) = inputs.hang_up.recv() => self.reread(false, None),
                pair = inputs.pairs.recv() => self.take_pair(pair),
                () = sleep_until(timer) => {
                    let now = self.host.now();
                    self.machine().handle_timeout(now);
                }
                () = sleep_until(turn) => self.start_waiting(),
                () = sleep_until(undecided) => self.decide_waiting(),
                _ = drain_sweep.tick(), if draining => {
                    self.host.sweep_drains();
                    self.host.sweep_paths();
                }
                _ = sweep.tick() => {
                    inputs.events.take(&mut happened);
                    self.host.take_events(&mut happened);
                    self.sweep(parts.next().unwrap_or(0));
                }
                // Last: all other inputs have their turn before the next page.
                Some(begun) = inputs.pages.recv() => self.list_page(begun),
            }
            self.pump().await;
        }
    }

    /// Gives the machine all events of this host. Each is given before the machine is asked for or
    /// told anything else.
    fn feed_machine(&mut self) {
        let now = self.host.now();
        for event in self.host.events.drain(..) {
            self.machine.handle_event(now, event);
        }
    }

    /// Returns the machine, once it has all events of this host.
    fn machine(&mut self) -> &mut Machine {
        self.feed_machine();
        &mut self.machine
    }

    /// Carries out the machine's commands until it has none.
    async fn pump(&mut self) {
        self.act();
        if let Some(report) = self.machine.poll_report() {
            let at = Instant::now();
            // The messages leave first: other hosts wait for them, and no host for a log.
            tokio::task::yield_now().await;
            self.take_report(report, at);
        }
        self.pump_at_once();
    }

    /// Carries out the machine's commands without yielding to other tasks.
    fn pump_at_once(&mut self) {
        self.act();
        while let Some(report) = self.machine.poll_report() {
            self.take_report(report, Instant::now());
            self.act();
        }
        self.host.state.all_told();
    }

    /// Carries out all commands, then sends the messages, until there are none.
    fn act(&mut self) {
        loop {
            while let Some(command) = self.machine().poll_command() {
                if self.host.faults.pass(command.name()) {
                    self.host.execute(command);
                }
            }
            let Some((to, message)) = self.machine().poll_transmit() else {
                match self.host.have_expected(None) {
                    true => continue,
                    false => break,
                }
            };
            if self.host.faults.pass(message.name()) {
                self.host.send(to, &message);
            }
            if matches!(message, Message::Enlist { .. }) {
                // At once: the old host's export is on its way there.
                self.host.have_expected(Some(to));
            }
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_tick_is_made_up_for() {
        let mut ticks = every(DRAIN_SWEEP);
        ticks.tick().await;
        tokio::time::advance(100 * DRAIN_SWEEP).await;
        ticks.tick().await;
        assert!(futures::poll!(std::pin::pin!(ticks.tick())).is_pending());
    }
}
