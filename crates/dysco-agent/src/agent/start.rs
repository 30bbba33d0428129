//! Loads the programs, takes up the maps, and attaches.

use std::path::Path;
use std::sync::Mutex;

use aya::Ebpf;
use aya::maps::{Map, MapData, Queue};
use dysco_common::State;

use super::{Agent, Quarantine, Tracking, set_watched};
use crate::attach::{self, owned};
use crate::chain;
use crate::chain::maps::Chains;
use crate::config::AgentConfig;
use crate::detour::records::Detours;
use crate::error::AgentError;
use crate::events::Events;
use crate::interfaces::{Place, leaving};
use crate::load::Loaded;
use crate::maps::{map_error, open, take};
use crate::memory::Memory;
use crate::packet_services::records::{self, Records};
use crate::pins::{self, LAYOUT};
use crate::xdp::{self, Xdp};

/// Attaches the programs to all interfaces, and XDP to those that are to relay by it. Takes them off
/// others; `leaving` counts the sessions that stop without the programs on an interface.
fn attach_all(
    config: &AgentConfig,
    loaded: &mut Loaded,
    dir: &Path,
    fast: &[&str],
    leaving: impl Fn(u32) -> usize,
) -> Result<Vec<Place>, AgentError> {
    // Before attaching: an interface that is made anew meanwhile is detected.
    let indices = indices(&config.interfaces)?;
    detach_others(config, dir, leaving);
    let mut attached = config
        .interfaces
        .iter()
        .map(|i| attach::attach(loaded, dir, i, config.attach))
        .collect::<Result<Vec<_>, _>>()?;
    let fast = xdp::attach(
        &mut loaded.ethernet,
        dir,
        &config.interfaces,
        (config.xdp, fast),
    )?;
    for one in &mut attached {
        one.xdp = fast.contains(&one.interface.as_str());
    }
    let places = attached.into_iter().zip(indices);
    Ok(places
        .map(|(attached, index)| Place::new(attached, index))
        .collect())
}

/// Takes the programs of an earlier run off interfaces that are not configured any more.
fn detach_others(config: &AgentConfig, dir: &Path, leaving: impl Fn(u32) -> usize) {
    for interface in owned::detach_others(dir, &config.interfaces) {
        let index = nix::net::if_::if_nametoindex(interface.as_str());
        match index.map_or(0, &leaving) {
            0 => tracing::info!(
                interface,
                "the interface is not configured any more: the programs are taken off it"
            ),
            sessions => tracing::warn!(
                interface,
                sessions,
                "the interface is not configured any more: the programs are taken off it, and the changed sessions that leave by it stop"
            ),
        }
    }
}

fn indices(names: &[String]) -> Result<Vec<u32>, AgentError> {
    let index = |name: &String| {
        nix::net::if_::if_nametoindex(name.as_str()).map_err(|e| AgentError::Attach {
            interface: name.clone(),
            source: Box::new(e),
        })
    };
    names.iter().map(index).collect()
}

/// True if an earlier run ended before it had filled the queue.
fn never_filled(memory: &Memory, free: &mut Queue<MapData, u32>) -> bool {
    let unused = (0..memory.len()).all(|slot| memory.is_in(slot, State::Free));
    match unused.then(|| free.pop(0)) {
        Some(Ok(slot)) => free.push(slot, 0).is_err(),
        Some(Err(_)) => true,
        None => false,
    }
}

/// Fills the queue with the free slots. Only while no running program could take one.
fn refill(memory: &Memory, free: &mut Queue<MapData, u32>) -> Result<(), AgentError> {
    while free.pop(0).is_ok() {}
    for slot in 0..memory.len() {
        if memory.is_in(slot, State::Free) {
            free.push(slot, 0)
                .map_err(map_error("push a slot", "FREE"))?;
        }
    }
    Ok(())
}

/// Opens the session table and the queue of its free slots. Fills the queue, unless programs of an
/// earlier run are `running`. Returns the map as well: a program that is loaded later names it by
/// its descriptor.
fn open_table(
    ebpf: &mut Ebpf,
    running: bool,
) -> Result<(Memory, Queue<MapData, u32>, MapData), AgentError> {
    let Map::Array(sessions) = take(ebpf, "SESSIONS")? else {
        return Err(AgentError::Missing("array SESSIONS"));
    };
    let info = sessions
        .info()
        .map_err(map_error("read the size", "SESSIONS"))?;
    let memory = Memory::map(sessions.fd(), info.max_entries())?;
    let mut free = open(ebpf, "FREE")?;
    if !running || never_filled(&memory, &mut free) {
        refill(&memory, &mut free)?;
    }
    Ok((memory, free, sessions))
}

impl Agent {
    /// Loads the programs, adopts the maps of an earlier run if there are any,
    /// and attaches. Inside a tokio runtime.
    ///
    /// # Errors
    /// Before anything is touched, if another agent that runs has the pins.
    pub fn start(config: &AgentConfig) -> Result<(Agent, Events), AgentError> {
        let dir = config.pin_dir.join(LAYOUT);
        pins::refuse_others(&config.pin_dir)?;
        let alone = pins::make_and_lock(&dir)?;
        // Programs of an earlier run may be taking slots at this moment.
        let running = dir.join("SESSIONS").exists();
        let fast = xdp::chosen(config.xdp, &config.interfaces);
        let mut loaded = Loaded::new(&dir, config.max_sessions, config.ports, !fast.is_empty())?;
        let ebpf = &mut loaded.ethernet;
        let tracking = Tracking::start(take(ebpf, "RULES")?, &config.rules)?;

        let (memory, free, table) = open_table(ebpf, running)?;
        let is_closed = |slot: &u32| memory.is_in(*slot, State::Closed);
        let closed = (0..memory.len()).filter(is_closed).collect();
        let chains = Chains::open(ebpf)?;
        let detours = Detours::open(ebpf)?;
        let packet_services = Records::open(ebpf)?;
        let (flows, edges) = (open(ebpf, "FLOWS")?, open(ebpf, "EDGES")?);
        chain::set_own(take(ebpf, "OWN")?, &config.addresses)?;
        let mut watched = open(ebpf, "WATCHED")?;
        set_watched(&mut watched, false)?;
        let counters = open(ebpf, "COUNTERS")?;
        let events = Events::new(open(ebpf, "EVENTS")?).map_err(|source| AgentError::System {
            operation: "wait for events",
            source,
        })?;

        // If no interface has XDP, the TC programs do not prepare anything for it.
        let relays_by = if fast.is_empty() {
            Xdp::Off
        } else {
            config.xdp
        };
        let leaving = |index| leaving::count(&memory, &detours, index);
        let places = attach_all(config, &mut loaded, &dir, &fast, leaving)?;
        records::take_up(&packet_services, &mut loaded, &dir, &places)?;
        let agent = Agent {
            memory,
            _table: table,
            flows: Mutex::new(flows),
            free: Mutex::new(free),
            counters,
            places: Mutex::new(places),
            relays_by,
            dir,
            rules: Mutex::new(tracking),
            chains: Mutex::new(chains),
            detours,
            packet_services,
            edges: Mutex::new(edges),
            quarantine: Mutex::new(Quarantine {
                // Collected by a process that has ended.
                aged: closed,
                ..Quarantine::default()
            }),
            loaded: Mutex::new(loaded),
            handlers: Mutex::new(None),
            watched: Mutex::new(watched),
            _alone: alone,
        };
        Ok((agent, events))
    }
}
