//! Start of the engine: its parts, each from its section of the configuration.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use dysco_agent::{Agent, Routes};
use dysco_config::{self as config, Config, Source};
use dysco_control::Control;
use dysco_proto::Machine;
use dysco_proxy::ProxySide;
use dysco_scheduling::Turns;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::answers::Answer;
use super::chain_requests::ChainRequests;
use super::core::Core;
use super::error::EngineError;
use super::history::History;
use super::host::ThisHost;
use super::inputs::{Inputs, Sources};
use super::jobs::Jobs;
use super::plane::Plane;
use super::reload::KeptList;
use super::removal::Removals;
use super::sections::{agent_config, api_config, control_config, metrics_config, proxy_config};
use super::{
    Engine, adopt, chain_updates, chains, clock, collect, dsr, fault, gauges, held, monitors,
    moves, names, neighbours, on_link, pages, ports, reload, services, sockets, state, store,
    tally, tuning,
};
use crate::{api, metrics, namespaces};

/// Number of readers of metrics that wait for the engine; others wait for these.
const SCRAPES: usize = 4;

/// Returns a name for a change. Later names are greater, as long as the host is up.
fn new_id() -> [u8; 16] {
    let since_boot = clock::boot_time().as_nanos() as u64;
    let chance: u64 = rand::random();
    (u128::from(since_boot) << 64 | u128::from(chance)).to_be_bytes()
}

/// Starts all parts of the engine.
pub(super) fn start(config: Config, source: Source) -> Result<(Engine, Inputs), EngineError> {
    let hang_up = signal(SignalKind::hangup()).map_err(EngineError::system("wait for SIGHUP"))?;
    // First of all: the agent refuses to run beside another one.
    let (agent, events) = Agent::start(&agent_config(&config))?;
    dysco_config::reserve_ports(&config.removal)?;
    warn(&config, &agent);
    let routes = Routes::open()?;
    let realtime = config.scheduling.realtime;
    let proxy = ProxySide::start(proxy_config(&config))?;
    let folder = &config.removal.state_dir;
    let state = state::StateDir::open(folder)?;
    let credentials = config.credentials()?;
    let (list, credentials) = KeptList::open(folder, credentials, &config.control.pki)?;
    let gauges = gauges::Gauges::new(&credentials);
    let namespaces = namespaces::Server::start(&config, source.file.clone());
    let reload = reload::Reload::new(source, credentials.clone(), list);
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
    let removals = Removals::new(config.removal.concurrency);
    let plane = plane(config, agent, routes, proxy, control, answers, state);
    let engine = Engine {
        core: Core {
            host: this_host(plane),
            machine,
            tally: tally::Tally::default(),
            round: HashSet::new(),
        },
        removals,
        chain_requests: ChainRequests::default(),
        adopting: adopt::Adopting::default(),
        pages,
        tuner: tuning::Tuner::default(),
        reload,
        api,
        metrics,
        gauges,
        namespaces,
        turns: Turns::take(realtime),
    };
    let sources = Sources {
        events,
        control: control_events,
        calls: calls_in,
        answers: answers_in,
        pages: pages_in,
        pairs,
        scrapes: scrapes_in,
        hang_up,
    };
    Ok((engine, Inputs::new(sources)))
}

/// Returns the means of this host, with what the state directory has of earlier processes.
fn plane(
    config: Config,
    agent: Agent,
    routes: Routes,
    proxy: ProxySide,
    control: Control,
    answers: mpsc::UnboundedSender<Answer>,
    state: state::StateDir,
) -> Plane {
    let folder = &config.removal.state_dir;
    let sessions = config.data_plane.max_sessions as usize;
    let history = History::open(&folder.join("history"), sessions);
    let tunings = tuning::Tunings::open(&folder.join("tuned"));
    Plane {
        config,
        agent: Arc::new(agent),
        routes,
        proxy,
        control,
        started: Instant::now(),
        notices: VecDeque::new(),
        jobs: Jobs::default(),
        answers,
        terms: HashMap::new(),
        chains_held: HashMap::new(),
        collector: collect::Collector::default(),
        neighbours: neighbours::Neighbours::default(),
        state,
        faults: fault::Faults::from_env(),
        names: names::Names::new(),
        history,
        tunings,
        monitors: monitors::Monitors::default(),
    }
}

/// Warns of settings that have no effect on this host.
fn warn(config: &Config, agent: &Agent) {
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
}

/// Returns the owners of what this host holds for changes, which hold nothing yet.
fn this_host(plane: Plane) -> ThisHost {
    ThisHost {
        plane,
        proxy_changes: held::ProxyChanges::default(),
        chain_updates: chain_updates::ChainUpdates::default(),
        chains: chains::Chains::default(),
        moves: moves::Moves::default(),
        returns: dsr::Returns::default(),
        ports: ports::Ports::new(),
        sockets: sockets::Sockets::default(),
        on_link: on_link::OnLink::default(),
        services: services::Services::default(),
        store: store::Store::default(),
        no_room_reported: None,
    }
}
