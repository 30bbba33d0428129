//! The engine of `dyscod`: one task that owns the protocol machine. It carries the machine's
//! commands to the data plane and the proxy's side, and its messages to peers. All other tasks send
//! it inputs over channels.

mod adopt;
mod broken;
mod chains;
mod collect;
mod commands;
mod doubt;
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
mod state;
mod straight;
mod take_up;
mod tally;
mod trial;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use dysco_agent::{Adoption, Agent, AgentConfig, AgentError, Events, Happened, Routes};
use dysco_common::session::part;
use dysco_common::{EventKind, FlowKey};
use dysco_config::{self as config, Config};
use dysco_control::{self as control, Control, ControlConfig};
use dysco_firewall::transfer;
use dysco_pki::Credentials;
use dysco_proto::{ChangeId, HostEvent, Machine, Message, Subsession, asks};
use dysco_proxy::port::HeldPort;
use dysco_proxy::{MeasureError, Measured, Pair, PairEvent, ProxyConfig, ProxySide};
use dysco_scheduling::Turns;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Interval, MissedTickBehavior};

use crate::api::{self, Call};
use crate::metrics::{self, Scrape};

use held::Held;
use history::History;
use rechain::Enlisting;
use removal::Removals;

/// Interval at which sessions are collected, and events are looked for that a full ring may have
/// lost. The table is swept in parts: a large one takes milliseconds, for which a removal would
/// have to wait.
const SWEEP: Duration = Duration::from_secs(1);
const SWEEP_PARTS: u32 = 16;
/// Interval at which the flag of a draining session is checked as well.
const DRAIN_SWEEP: Duration = Duration::from_millis(20);
/// Number of readers of metrics that wait for the engine; others wait for these.
const SCRAPES: usize = 4;
/// Interval between warnings of a full table.
const NO_ROOM_AGAIN: Duration = Duration::from_secs(10);

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

/// Answer of one of the engine's tasks.
enum Answer {
    /// Event for the machine.
    Event(HostEvent),
    /// The proxy has left a session, and the port by which it was opened is held, or could not be.
    Left(Subsession, std::io::Result<HeldPort>),
    /// A pair of a change was measured.
    Measured(ChangeId, Box<(Pair, Result<Measured, MeasureError>)>),
    /// A path through a chain did not open.
    PathDead(ChangeId),
    /// A session that has left a chain is forgotten for this change of that host.
    Forgotten(ChangeId, IpAddr),
    /// State of a session that is about to pass here again is forgotten.
    Cleared(Enlisting),
    /// State of a session is forgotten, and nobody waits for that.
    Removed,
    /// The firewall has to be searched for a session.
    Unknown(Box<rechain::Cleared>),
    /// The firewall was searched. These answers were held back until then.
    Searched(Vec<Answer>),
    /// A route was found for a change.
    Route(ChangeId, held::Routed),
    /// The routes to both ends of a pair were found for a change.
    Ways(ChangeId, relay::Ways),
    /// The route back of a path whose SYN has arrived was looked up.
    Uplink(Box<rechain::Uplink>),
    /// The route to a client was looked up.
    Straight(Box<straight::Straight>),
    /// A new path did not open.
    Unopened(ChangeId),
    /// A new path that was in doubt has had time to answer.
    Looked(ChangeId),
    /// A new path has had time to carry the data that was sent on it.
    Confirmed(ChangeId),
    /// A new path from which nothing is accepted any more has been silent for a moment.
    Deafened(ChangeId),
    /// Windows of the sessions of a dry run were read.
    Windows(Box<removal::Windows>),
    /// Connections of this host.
    Sockets(std::io::Result<HashSet<FlowKey>>),
    /// Sessions older than the daemon were entered, or could not be.
    Adopted(Result<Adoption, AgentError>),
    /// Packets of a change's adopted sessions were asked for.
    Asked(ChangeId, Subsession),
    /// Route to a neighbour, from one of this host's own addresses.
    Way(chains::Way),
    /// The policy's file was written.
    PolicyWritten,
    /// The sockets that processes under the shim hold are known, for a removal of all sessions.
    Held(Box<removal::Begun>),
    /// A proxy was looked at, or watched.
    Seen(Box<outside::Seen>),
    /// State was exported or installed for another host.
    State(firewall::Done),
    /// The configuration and its files were read again.
    Reread(Box<reload::Reread>),
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

/// Sources of inputs.
struct Inputs {
    events: Events,
    control: mpsc::Receiver<control::Event>,
    calls: mpsc::Receiver<Call>,
    answers: mpsc::UnboundedReceiver<Answer>,
    pages: mpsc::UnboundedReceiver<pages::Begun>,
    pairs: broadcast::Receiver<PairEvent>,
    scrapes: mpsc::Receiver<Scrape>,
    hang_up: Signal,
}

/// Returns a name for a change. Later names are greater, as long as the host is up.
fn new_id() -> [u8; 16] {
    let since_boot = collect::boot_time().as_nanos() as u64;
    let chance: u64 = rand::random();
    (u128::from(since_boot) << 64 | u128::from(chance)).to_be_bytes()
}

fn start(config: Config, file: PathBuf) -> anyhow::Result<(Engine, Inputs)> {
    let hang_up = signal(SignalKind::hangup()).context("failed to wait for SIGHUP")?;
    // First of all: the agent refuses to run beside another one.
    let (agent, events) = Agent::start(&agent_config(&config))?;
    state::reserve_ports(&config.removal)?;
    let unusable = config
        .host
        .interfaces
        .iter()
        .filter_map(config::Interface::unusable);
    unusable.for_each(|trouble| tracing::warn!("{trouble}"));
    let (room, wanted) = (agent.room(), config.data_plane.max_sessions);
    if room != wanted {
        let dir = config.data_plane.pin_dir.display();
        tracing::warn!(
            "max_sessions = {wanted}, but the data plane of an earlier dyscod is in force, with room for {room} sessions: \
             the new size holds after a reboot, or once dyscod was stopped while no session was changed here and {dir} was removed"
        );
    }
    let routes = Routes::open()?;
    let realtime = config.scheduling.realtime;
    let proxy = ProxySide::start(proxy_config(&config))?;
    let credentials = config.credentials()?;
    let gauges = gauges::Gauges::new(&credentials);
    let reload = reload::Reload::new(file, credentials.clone());
    let (control, control_events) = Control::start(control_config(&config, credentials.clone()))?;
    let (calls, calls_in) = mpsc::channel(64);
    let api = api::serve(api_config(&config), calls)?;
    let (scrapes, scrapes_in) = mpsc::channel(SCRAPES);
    let metrics = metrics::serve(metrics_config(&config, credentials), scrapes)?;
    let (answers, answers_in) = mpsc::unbounded_channel();
    let (pages, pages_in) = pages::Pages::new();
    let pairs = proxy.subscribe();
    let mut machine = Machine::new(config.host.addresses.clone(), new_id);
    machine.answer_asks_locally(config.removal.mode == dysco_api::Mode::Local);
    let state = state::StateDir::open(&config.removal.state_dir)?;
    let sessions = config.data_plane.max_sessions as usize;
    let history = History::open(&config.removal.state_dir.join("history"), sessions);
    let engine = Engine {
        state,
        removals: Removals::new(config.removal.concurrency),
        config,
        reload,
        api,
        metrics,
        agent: Arc::new(agent),
        routes,
        proxy,
        control,
        machine,
        started: Instant::now(),
        held: HashMap::new(),
        answers,
        history,
        collector: collect::Collector::default(),
        on_link: on_link::OnLink::default(),
        strict: None,
        neighbours: neighbours::Neighbours::default(),
        returns: straight::Returns::default(),
        sockets: sockets::Sockets::default(),
        ports: ports::Ports::new(),
        turns: Turns::take(realtime),
        adopting: adopt::Adopting::default(),
        faults: fault::Faults::from_env(),
        chains: chains::Chains::default(),
        monitors: Vec::new(),
        moves: firewall::Moves::default(),
        pages,
        rechain: rechain::Rechain::default(),
        tally: tally::Tally::default(),
        gauges,
        no_room_told: None,
    };
    let inputs = Inputs {
        events,
        control: control_events,
        calls: calls_in,
        answers: answers_in,
        pages: pages_in,
        pairs,
        scrapes: scrapes_in,
        hang_up,
    };
    Ok((engine, inputs))
}

fn agent_config(config: &Config) -> AgentConfig {
    let attach = match config.data_plane.attach {
        config::Attach::Auto => dysco_agent::Attach::Auto,
        config::Attach::Tcx => dysco_agent::Attach::Tcx,
        config::Attach::Clsact => dysco_agent::Attach::Clsact,
    };
    AgentConfig {
        pin_dir: config.data_plane.pin_dir.clone(),
        max_sessions: config.data_plane.max_sessions,
        interfaces: config
            .host
            .interfaces
            .iter()
            .map(|i| i.name.clone())
            .collect(),
        attach,
        xdp: config.data_plane.xdp.into(),
        rules: config.rules(),
        ports: {
            let ports = config.removal.ports;
            (ports.first, ports.count().min(usize::from(u16::MAX)) as u16)
        },
        addresses: config.host.addresses.clone(),
    }
}

fn control_config(config: &Config, credentials: Credentials) -> ControlConfig {
    let port = config.control.port;
    let listen = config.control.listen.iter();
    ControlConfig {
        listen: listen.map(|ip| SocketAddr::new(*ip, port)).collect(),
        peer_port: port,
        credentials,
    }
}

fn metrics_config(config: &Config, credentials: Credentials) -> metrics::ServerConfig {
    metrics::ServerConfig {
        socket: config.metrics.socket.clone(),
        gid: config.api.gid,
        listen: config.metrics.listen,
        tls: config.metrics.tls.then_some(credentials),
    }
}

fn api_config(config: &Config) -> api::ServerConfig {
    api::ServerConfig {
        socket: config.api.socket.clone(),
        policy: api::Policy {
            read_gid: config.api.gid,
        },
    }
}

fn proxy_config(config: &Config) -> ProxyConfig {
    let declared = config
        .listeners
        .iter()
        .filter(|l| l.transparent == Some(true));
    let haproxy = config
        .listeners
        .iter()
        .filter_map(|l| l.haproxy_socket.clone());
    ProxyConfig {
        shim_socket: config.shim.socket.clone(),
        transparent_listeners: declared
            .flat_map(|l| l.address.socket_addresses())
            .collect(),
        // Each pair has two entries of the data plane.
        max_pairs: config.data_plane.max_sessions as usize,
        haproxy: haproxy
            .map(|path| dysco_proxy::HaproxySocket {
                path,
                frontends: Vec::new(),
            })
            .collect(),
        watch: dysco_proxy::WatchRules {
            proof: dysco_proxy::outside::pairing::Rules {
                moments: config.watch.moments,
                bytes: config.watch.bytes,
                window: config.watch.window,
            },
            limit: config.watch.limit,
        },
        ..ProxyConfig::default()
    }
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

    fn take_events(&mut self, happened: &mut Happened) {
        for arrival in happened.arrivals.drain(..) {
            self.take_arrival(&arrival);
        }
        // Many events may have collected while no daemon ran, and each is answered. Anybody may
        // send any number of resets.
        let mut told = HashSet::new();
        for (kind, slot) in happened.events.drain(..) {
            let repeats = matches!(
                kind,
                EventKind::Primed
                    | EventKind::Reset
                    | EventKind::Broken
                    | EventKind::Taken
                    | EventKind::Rejected
            );
            if !repeats || told.insert((kind as u32, slot)) {
                self.take_event(kind, slot);
            }
        }
    }

    fn take_answer(&mut self, answer: Answer) {
        match answer {
            Answer::Event(event) => self.tell_machine(event),
            Answer::Measured(change, done) => self.measured(change, &done.0, done.1),
            Answer::Left(opened, port) => self.hold_port(&opened, port),
            Answer::Route(change, routed) => self.routed(change, routed),
            Answer::Ways(change, ways) => self.ways_found(change, ways),
            Answer::Uplink(way) => self.uplink_found(*way),
            Answer::Straight(straight) => self.sent_straight(*straight),
            Answer::Unopened(change) => self.path_unopened(change),
            Answer::Looked(change) => self.looked(change),
            Answer::Confirmed(change) => self.look_confirmed(change),
            Answer::Deafened(change) => self.deafened(change),
            Answer::PathDead(change) => self.path_dead(change),
            Answer::Forgotten(change, from) => self.forgotten(change, from),
            Answer::Cleared(enlisting) => self.cleared(enlisting),
            Answer::Removed => {}
            Answer::Unknown(session) => self.search_state(*session),
            Answer::Searched(then) => self.searched(then),
            Answer::Adopted(done) => self.sessions_adopted(done),
            Answer::Asked(change, sub) => self.heard(change, sub),
            Answer::Sockets(open) => self.sockets_listed(open),
            Answer::Way(way) => self.way_found(&way),
            Answer::PolicyWritten => self.policy_written(),
            Answer::Windows(read) => self.go_on_dry(*read),
            Answer::Held(begun) => self.go_on_removing(*begun),
            Answer::Seen(seen) => self.seen(*seen),
            Answer::State(done) => self.state_done(done),
            Answer::Reread(read) => self.reload(*read),
        }
    }

    fn tell_machine(&mut self, event: HostEvent) {
        let now = self.now();
        self.machine.handle_event(now, event);
    }

    fn take_control(&mut self, event: control::Event) {
        match event {
            control::Event::Message(incoming) if transfer::Message::is_one(&incoming.message) => {
                self.take_state_message(&incoming);
            }
            control::Event::Message(incoming) if asks::Message::is_one(&incoming.message) => {
                self.take_ask(&incoming);
            }
            control::Event::Message(incoming) if chains::is_ours(&incoming.message) => {
                self.take_chain_message(&incoming);
            }
            control::Event::Key { peer, via, id, key } => self.take_key(&peer, via, id, key),
            control::Event::KeyGone(id) => self.key_gone(id),
            control::Event::KeyRevoked(id) => self.key_revoked(id),
            control::Event::Message(incoming) => match Message::decode(&incoming.message) {
                Ok(message) => {
                    let now = self.now();
                    self.machine
                        .handle_message(now, &incoming.from.addresses, message);
                }
                Err(error) => {
                    self.state.malformed += 1;
                    tracing::warn!(from = %incoming.via, %error, "a message was discarded");
                }
            },
            control::Event::PeerUp(peer) => {
                self.neighbours.is_there(peer);
                self.report("peer_up", None, format!("{peer} is connected"));
                let now = self.now();
                self.machine.handle_connected(now, peer);
                self.decide_waiting();
            }
            control::Event::PeerDown(peer, why) => {
                self.report("peer_down", None, format!("{peer} is not reachable: {why}"));
                self.neighbours.is_not_there(peer, &why);
                self.neighbour_gone(peer);
                // A peer that closed may be restarted: repetition finds out.
                if !matches!(why, control::DownReason::Closed(_)) {
                    self.removals_without(peer);
                }
                self.decide_waiting();
            }
        }
    }

    fn take_event(&mut self, kind: EventKind, slot: u32) {
        match kind {
            EventKind::Drained => self.drained(slot),
            EventKind::Broken => self.session_broken(slot),
            EventKind::PathOpen if self.rechain.has(slot) => self.path_answered(slot),
            EventKind::PathOpen => self.path_open(slot),
            EventKind::Joins => self.path_joins(slot),
            EventKind::Primed => self.path_primed(slot),
            EventKind::Closed => self.session_ended(slot, false),
            EventKind::Reset => self.session_ended(slot, true),
            EventKind::Heard => {
                self.confirmed(slot);
            }
            EventKind::Stranger => self.stranger(slot),
            EventKind::Taken => self.subsession_taken(slot),
            EventKind::Rejected => self.path_rejected(slot),
            // Reported with the packet that has arrived: see `take_arrival`.
            EventKind::Arrived => {}
            EventKind::Opened => {
                let s = self.agent.session(slot);
                // Not if it is another path of a session.
                if !self.monitors.is_empty() && s.two.part == part::CURRENT {
                    let id = self.session_id(slot, &s);
                    self.report("opened", Some(id), format!("{:?}", s.key));
                }
            }
            EventKind::NoRoom => {
                // Each SYN that finds no room makes such an event, and is counted.
                let told = self.no_room_told;
                if told.is_none_or(|at| at.elapsed() > NO_ROOM_AGAIN) {
                    self.no_room_told = Some(Instant::now());
                    tracing::warn!(
                        "sessions are not tracked: the session table is full; raise max_sessions"
                    );
                }
            }
        }
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
