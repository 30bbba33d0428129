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
mod take_up;
mod tally;
mod trial;

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dysco_agent::{Agent, Happened, Routes};
use dysco_config::Config;
use dysco_control::Control;
use dysco_proto::{ChangeId, HostEvent, Machine, Message};
use dysco_proxy::ProxySide;
use dysco_scheduling::Turns;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Interval, MissedTickBehavior};

use crate::{api, metrics};

use answers::Answer;
use held::Held;
use history::History;
use removal::Removals;
use start::{Inputs, start};

/// Interval at which sessions are collected, and events are looked for that a full ring may have
/// lost. The table is swept in parts: a large one takes milliseconds, for which a removal would
/// have to wait.
const SWEEP: Duration = Duration::from_secs(1);
const SWEEP_PARTS: u32 = 16;
/// Interval at which the flag of a draining session is checked as well.
const DRAIN_SWEEP: Duration = Duration::from_millis(20);

/// State that the engine owns.
struct Engine {
    config: Config,
    reload: reload::Reload,
    api: api::Server,
    metrics: metrics::Server,
    agent: Arc<Agent>,
    routes: Routes,
    proxy: ProxySide,
    control: Control,
    machine: Machine,
    started: Instant,
    /// Resources that the data plane holds for each change.
    held: HashMap<ChangeId, Held>,
    /// Answers of tasks that carry out a command.
    answers: mpsc::UnboundedSender<Answer>,
    removals: Removals,
    history: History,
    collector: collect::Collector,
    on_link: on_link::OnLink,
    /// Interfaces with strict reverse-path filtering, and the time at which that was read.
    strict: Option<(Instant, Vec<u32>)>,
    neighbours: neighbours::Neighbours,
    returns: straight::Returns,
    sockets: sockets::Sockets,
    ports: ports::Ports,
    turns: Turns,
    adopting: adopt::Adopting,
    state: state::StateDir,
    faults: fault::Faults,
    chains: chains::Chains,
    monitors: Vec<mpsc::Sender<dysco_api::Reply>>,
    /// Transfers of sessions' state from host to host.
    moves: firewall::Moves,
    /// Listings of sessions in progress.
    pages: pages::Pages,
    /// Sessions that get another chain.
    rechain: rechain::Rechain,
    /// Counts of how changes ended.
    tally: tally::Tally,
    gauges: gauges::Gauges,
    /// Time of the last warning of a full table.
    no_room_told: Option<Instant>,
}

/// Runs the daemon until a signal stops it. Sessions go on without it.
///
/// The configuration is read again from `file`.
pub async fn run(config: Config, file: PathBuf) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("failed to wait for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("failed to wait for SIGINT")?;
    let (mut engine, mut inputs) = start(config, file)?;
    engine.take_up()?;
    engine.hold_ports();
    engine.adopt_sessions(None);
    engine.start_chains();
    crate::notify::notify_ready();
    tracing::info!(host = %engine.config.host.name, "ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        result = engine.serve(&mut inputs) => return result,
    }
    crate::notify::notify_stopping();
    tracing::info!("stopping; established sessions go on");
    engine.history.flush();
    engine.agent.release_quarantine();
    engine.control.shutdown().await;
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
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn serve(&mut self, inputs: &mut Inputs) -> anyhow::Result<()> {
        let mut sweep = every(SWEEP / SWEEP_PARTS);
        let mut parts = (0..SWEEP_PARTS).cycle();
        let mut drain_sweep = every(DRAIN_SWEEP);
        let mut happened = Happened::default();
        loop {
            let timer = self.machine.poll_timeout().map(|at| self.started + at);
            let turn = self.removals.next_turn();
            let undecided = self.removals.next_decision();
            let draining = self.held.values().any(Held::is_underway) || self.rechain.is_busy();
            tokio::select! {
                biased;
                Some(answer) = inputs.answers.recv() => self.take_answer(answer),
                event = inputs.control.recv() => {
                    self.take_control(event.context("the control channel has ended")?);
                }
                read = inputs.events.read(&mut happened) => {
                    read.context("failed to read the data plane's events")?;
                    self.take_events(&mut happened);
                }
                Some(call) = inputs.calls.recv() => self.take_call(call),
                // A reader that has left needs no answer.
                Some(scrape) = inputs.scrapes.recv() => drop(scrape.send(self.snapshot())),
                Some(()) = inputs.hang_up.recv() => self.reread(false, None),
                pair = inputs.pairs.recv() => self.take_pair(pair),
                () = sleep_until(timer) => {
                    let now = self.now();
                    self.machine.handle_timeout(now);
                }
                () = sleep_until(turn) => self.start_waiting(),
                () = sleep_until(undecided) => self.decide_waiting(),
                _ = drain_sweep.tick(), if draining => {
                    self.sweep_drains();
                    self.sweep_paths();
                }
                _ = sweep.tick() => {
                    inputs.events.take(&mut happened);
                    self.take_events(&mut happened);
                    self.sweep(parts.next().unwrap_or(0), SWEEP_PARTS);
                    self.sweep_moves();
                    self.sweep_asks();
                    self.wake_chains();
                    self.sweep_monitors();
                    self.reload.warn_of_keys(Instant::now());
                    self.turns.look();
                }
                // Last: all other inputs have their turn before the next page.
                Some(begun) = inputs.pages.recv() => self.list_page(begun),
            }
            self.pump().await;
        }
    }

    fn tell_machine(&mut self, event: HostEvent) {
        let now = self.now();
        self.machine.handle_event(now, event);
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
        self.state.all_told();
    }

    /// Carries out all commands, then sends the messages, until there are none.
    fn act(&mut self) {
        loop {
            while let Some(command) = self.machine.poll_command() {
                if self.faults.pass(command.name()) {
                    self.execute(command);
                }
            }
            let Some((to, message)) = self.machine.poll_transmit() else {
                match self.have_expected(None) {
                    true => continue,
                    false => break,
                }
            };
            if self.faults.pass(message.name()) {
                self.send(to, &message);
            }
            if matches!(message, Message::Enlist { .. }) {
                // At once: the old host's export is on its way there.
                self.have_expected(Some(to));
            }
        }
    }

    fn send(&self, to: IpAddr, message: &Message) {
        match message.encode() {
            Ok(bytes) => self.control.send(to, bytes),
            Err(error) => {
                tracing::error!(%to, name = message.name(), %error, "cannot encode a message")
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
