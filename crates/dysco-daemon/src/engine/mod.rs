//! The engine of `dyscod`: one task that owns the protocol machine. It carries the machine's
//! commands to the data plane and the proxy's side, and its messages to peers. All other tasks send
//! it inputs over channels.

mod adopt;
mod answers;
mod broken;
mod calls;
mod chain_requests;
mod chain_updates;
mod chains;
mod clock;
mod collect;
mod commands;
mod core;
mod dispatch;
mod dsr;
mod error;
mod events;
mod fault;
mod firewall;
mod gauges;
mod held;
mod history;
mod host;
mod inputs;
mod install;
mod interfaces;
mod jobs;
mod journal;
mod line_file;
mod listing;
mod measure;
mod measured;
mod monitors;
mod moves;
mod mtu;
mod names;
mod neighbours;
mod on_link;
mod outside;
mod pace;
mod paced;
mod packets;
mod pages;
mod path_liveness;
mod peers;
mod plane;
mod ports;
mod probe;
mod proof;
mod raw;
mod relay;
mod reload;
mod removal;
mod reports;
mod retention;
mod routes;
mod sections;
mod services;
mod sockets;
mod start;
mod state;
mod status;
mod steps;
mod store;
mod sweep;
mod take_up;
mod tally;
mod trial;
mod tuning;

use std::time::Instant;

use dysco_config::{Config, Source};
use dysco_scheduling::Turns;
use tokio::signal::unix::{SignalKind, signal};

use crate::{api, metrics, namespaces};

use self::core::Core;
use answers::Answer;
use chain_requests::ChainRequests;
use chain_updates::ChainUpdates;
use chains::Chains;
use dsr::Returns;
pub(crate) use error::EngineError;
use held::{Held, ProxyChanges};
use host::ThisHost;
use inputs::{Input, Inputs, Wants};
use plane::Plane;
use ports::Ports;
use removal::Removals;
pub(crate) use services::check_policy;
use sockets::Sockets;
use start::start;

/// Maximum number of inputs that are taken before the messages leave.
const INPUTS: usize = 64;

/// The dispatcher, and the owners between which it passes everything on.
struct Engine {
    core: Core,
    removals: Removals,
    chain_requests: ChainRequests,
    adopting: adopt::Adopting,
    /// Listings of sessions in progress.
    pages: pages::Pages,
    /// Requests to set socket options.
    tuner: tuning::Tuner,
    reload: reload::Reload,
    api: api::Server,
    metrics: metrics::Server,
    gauges: gauges::Gauges,
    /// Instances for other network namespaces.
    namespaces: namespaces::Server,
    turns: Turns,
}

/// Runs the daemon until a signal stops it. Sessions go on without it.
///
/// The configuration is read again from `source`.
pub(crate) async fn run(config: Config, source: Source) -> Result<(), EngineError> {
    let mut terminate =
        signal(SignalKind::terminate()).map_err(EngineError::system("wait for SIGTERM"))?;
    let mut interrupt =
        signal(SignalKind::interrupt()).map_err(EngineError::system("wait for SIGINT"))?;
    let (mut engine, mut inputs) = start(config, source)?;
    engine.take_up()?;
    let host = &mut engine.core.host;
    host.services.take_up(&mut host.plane);
    host.services.take_up_runs(&host.plane);
    host.services.preload(&host.plane);
    engine.core.host.ports.hold_ports(&engine.core.host.plane);
    engine.adopting.begin(&engine.core.host.plane, None);
    engine.core.host.start_store(engine.reload.revoked());
    let trusted = engine.reload.list_is_same();
    let host = &mut engine.core.host;
    host.chains.start_chains(&mut host.plane, trusted);
    crate::notify::notify_ready();
    tracing::info!(host = %engine.core.host.plane.config.host.name, "ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        result = engine.serve(&mut inputs) => return result,
    }
    crate::notify::notify_stopping();
    engine.namespaces.stop().await;
    tracing::info!("stopping; established sessions go on");
    let host = &engine.core.host;
    host.services.stop(&host.plane);
    engine.core.host.plane.flush_sessions();
    engine.core.host.plane.agent.release_quarantine();
    engine.core.host.plane.control.shutdown().await;
    Ok(())
}

impl Engine {
    async fn serve(&mut self, inputs: &mut Inputs) -> Result<(), EngineError> {
        loop {
            let input = inputs.next(self.wants()).await?;
            self.take(input);
            // Inputs that already wait are part of the same step: one message carries the answers.
            for _ in 1..INPUTS {
                let Some(input) = inputs.waiting() else {
                    break;
                };
                self.take(input);
            }
            self.turns.look(self.core.machine.stats().changes);
            self.drive().await;
        }
    }

    /// Returns what the engine waits for, besides what others send.
    fn wants(&self) -> Wants {
        let Core { host, machine, .. } = &self.core;
        Wants {
            timer: machine.poll_timeout().map(|at| host.plane.started + at),
            turn: [
                self.removals.next_turn(&host.plane),
                self.chain_requests.next_turn(&host.plane),
            ]
            .into_iter()
            .flatten()
            .min(),
            decision: self.removals.next_decision(),
            drains: host.proxy_changes.held.values().any(Held::is_underway)
                || host.chain_updates.is_busy()
                || host.services.is_busy(),
        }
    }

    /// Takes an input: each comes in here.
    fn take(&mut self, input: Input<'_>) {
        let changes = input.changes();
        if changes.is_empty() {
            self.core.admit(None);
        }
        for change in &changes {
            self.core.admit(Some(*change));
        }
        let core = &mut self.core;
        match input {
            Input::Answer(answer) => self.take_answer(answer),
            Input::Message(message) => self.take_message(*message),
            Input::Control(event) => self.take_control(event),
            Input::Happened(happened) => core.host.take_events(happened),
            Input::Call(call) => self.take_call(call),
            // A reader that has left needs no answer.
            Input::Scrape(scrape) => drop(scrape.send(self.snapshot())),
            Input::HangUp => self.reload.begin(&core.host.plane.answers, false, None),
            Input::Pair(pair) => self.removals.take_pair(core, pair),
            Input::Timer => {
                let now = core.host.plane.now();
                core.machine().handle_timeout(now);
            }
            Input::Turn => {
                self.removals.start_waiting(core);
                self.chain_requests.start_chains_waiting(core);
            }
            Input::Decision => self.removals.decide_waiting(core),
            Input::DrainSweep => {
                core.host.proxy_changes.sweep_drains(&mut core.host.plane);
                core.host.chain_updates.sweep_paths(&mut core.host.plane);
                core.host.services.sweep(&mut core.host.plane);
            }
            Input::Sweep { part, happened } => {
                core.host.take_events(happened);
                self.sweep(part);
            }
            Input::Page(begun) => self.pages.list(&core.host.plane, begun),
        }
        self.settle_requests();
        if changes.is_empty() {
            self.core.carry_out();
        }
    }

    /// Carries out the machine's commands until it has none.
    async fn drive(&mut self) {
        self.core.act();
        if let Some(report) = self.core.machine.poll_report() {
            let at = Instant::now();
            // The messages leave first: other hosts wait for them, and no host for a log.
            tokio::task::yield_now().await;
            self.take_report(report, at);
        }
        self.drive_now();
    }

    /// Carries out the machine's commands without yielding to other tasks.
    fn drive_now(&mut self) {
        loop {
            self.core.act();
            let Some(first) = self.core.machine.poll_report() else {
                break;
            };
            self.take_report(first, Instant::now());
            while let Some(report) = self.core.machine.poll_report() {
                self.take_report(report, Instant::now());
            }
        }
        self.core.host.plane.state.forget_over();
        self.core.host.plane.history.write();
    }
}
