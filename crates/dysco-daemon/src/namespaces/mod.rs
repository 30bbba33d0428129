//! Other network namespaces of this machine, such as those of containers and pods. Kernel objects of
//! the data plane belong to one namespace. Each namespace is therefore served by an instance: a
//! process of this program that runs the whole engine there, without a channel to other hosts. This
//! module finds the namespaces, and starts and stops the instances. It knows nothing of sessions.

mod container;
mod enter;
mod find;
mod folder;
mod instance;
mod seen;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dysco_api::{NamespaceReport, NamespaceState};
use dysco_config::{Config, Namespaces};
use dysco_explain::Cause;
use dysco_scheduling::spawn_long;
use nix::sys::signal::Signal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use container::{Container, container};
pub(crate) use enter::{EnterError, enter, load, take_places};
use find::{Found, Scene, is_connected};
use instance::{Instance, Process, State};
use seen::Seen;

/// Interval at which namespaces are looked for.
const LOOK: Duration = Duration::from_secs(2);
/// The pause between two looks is at least this multiple of a look.
const SHARE: u32 = 50;
/// Time that an instance has for its end.
const ENDING: Duration = Duration::from_secs(10);
/// Number of processes of a namespace of which one tells the container.
const LOOKED_AT: usize = 4;
/// Interval of the checks whether instances have ended.
const CHECK: Duration = Duration::from_millis(50);

/// The namespaces at a moment.
struct Look {
    /// Those to serve.
    seen: Vec<Seen>,
    /// Inodes of all.
    inodes: HashSet<u64>,
}

type Reports = Arc<Mutex<Vec<NamespaceReport>>>;

enum Order {
    /// Instances read their configuration again.
    Reload,
    /// Instances end.
    Stop(oneshot::Sender<()>),
}

/// Handle of the task that serves the namespaces. Nothing runs if none are configured.
pub(crate) struct Server {
    reports: Reports,
    orders: mpsc::UnboundedSender<Order>,
}

impl Server {
    /// Starts to serve the configured namespaces. `file` is the configuration. Must be called in the
    /// main thread: instances end with the thread that started them.
    pub(crate) fn start(config: &Config, file: PathBuf) -> Server {
        let reports = Reports::default();
        let (orders, taken) = mpsc::unbounded_channel();
        if let Some(selection) = config.host.namespaces.clone() {
            let task = Task {
                config: config.clone(),
                file,
                selection,
                instances: BTreeMap::new(),
                leaving: Vec::new(),
                reports: Arc::clone(&reports),
            };
            tokio::spawn(task.run(taken));
        }
        Server { reports, orders }
    }

    /// Returns the namespaces and the states of their instances.
    pub(crate) fn reports(&self) -> Vec<NamespaceReport> {
        let reports = self.reports.lock();
        reports.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes the instances read their configuration again.
    pub(crate) fn reload(&self) {
        // Without a task there are no instances.
        let _ = self.orders.send(Order::Reload);
    }

    /// Ends all instances, and waits for them. Their sessions go on.
    pub(crate) async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        if self.orders.send(Order::Stop(done)).is_ok() {
            let _ = ended.await;
        }
    }
}

/// The task.
struct Task {
    config: Config,
    file: PathBuf,
    selection: Namespaces,
    instances: BTreeMap<u64, Instance>,
    /// Processes that have been asked to end, and when they are killed.
    leaving: Vec<(u64, Process, Instant)>,
    reports: Reports,
}

impl Task {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        loop {
            let began = Instant::now();
            let took = match self.look().await {
                Ok(look) => {
                    let took = began.elapsed();
                    self.take(look);
                    took
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot look for network namespaces");
                    Duration::ZERO
                }
            };
            tokio::select! {
                () = sleep(LOOK.max(took * SHARE)) => {}
                order = orders.recv() => match order {
                    Some(Order::Reload) => self.signal(Signal::SIGHUP),
                    Some(Order::Stop(done)) => {
                        self.stop().await;
                        let _ = done.send(());
                        return;
                    }
                    None => return self.stop().await,
                },
            }
        }
    }

    /// Looks for namespaces, beside the engine's own work.
    async fn look(&self) -> std::io::Result<Look> {
        let (selection, without) = (self.selection.clone(), self.pids());
        let running = self.instances.iter().filter(|(_, i)| i.runs());
        let running: HashSet<u64> = running.map(|(inode, _)| *inode).collect();
        let look = move || {
            let scene = Scene::look(&selection, &without)?;
            let seen = scene.select(&selection).into_iter().map(|found| Seen {
                container: container_of(&found),
                obstacle: match running.contains(&found.inode) {
                    true => None,
                    false => obstacle(&found),
                },
                found,
            });
            Ok(Look {
                seen: seen.collect(),
                inodes: scene.inodes(),
            })
        };
        let looked = spawn_long(look).await;
        looked.unwrap_or_else(|error| Err(std::io::Error::other(error)))
    }

    /// Returns the pids of all instances.
    fn pids(&self) -> Vec<i32> {
        let running = self.processes().filter_map(Process::pid);
        running.map(u32::cast_signed).collect()
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        let running = self.instances.values().filter_map(|i| match &i.state {
            State::Running(process) => Some(process),
            State::Down { .. } => None,
        });
        running.chain(self.leaving.iter().map(|(_, process, _)| process))
    }

    fn signal(&self, signal: Signal) {
        self.processes().for_each(|process| process.signal(signal));
    }

    /// Starts and stops instances, so that each namespace that exists has one.
    fn take(&mut self, look: Look) {
        let there: HashSet<u64> = look.seen.iter().map(|seen| seen.found.inode).collect();
        let gone: Vec<u64> = { self.instances.keys().copied() }
            .filter(|inode| !there.contains(inode))
            .collect();
        gone.into_iter().for_each(|inode| self.let_go(inode));
        self.end_leaving();
        for seen in look.seen {
            match self.instances.get_mut(&seen.found.inode) {
                Some(instance) => instance.seen = seen,
                None => {
                    let inode = seen.found.inode;
                    self.instances.insert(inode, Instance::new(seen));
                }
            }
        }
        let mut kept = look.inodes;
        kept.extend(self.instances.keys());
        kept.extend(self.leaving.iter().map(|(inode, ..)| inode));
        folder::remove_gone(&self.config.places(), &kept);
        let names = self.names();
        for (inode, name) in &names {
            self.serve(*inode, name);
        }
        self.publish(&names);
    }

    /// Ends the instance of a namespace that is gone.
    fn let_go(&mut self, inode: u64) {
        let Some(instance) = self.instances.remove(&inode) else {
            return;
        };
        tracing::info!(inode, "a network namespace is gone");
        if let State::Running(process) = instance.state {
            process.signal(Signal::SIGTERM);
            self.leaving.push((inode, process, Instant::now() + ENDING));
        }
    }

    /// Forgets the processes that have ended, and kills those that are late.
    fn end_leaving(&mut self) {
        self.leaving.retain_mut(|(_, process, until)| {
            if *until <= Instant::now() {
                process.signal(Signal::SIGKILL);
            }
            process.ended().is_none()
        });
    }

    /// Starts the process of a namespace, if it does not run and could serve.
    fn serve(&mut self, inode: u64, name: &str) {
        let leaves = self.leaving.iter().any(|(leaving, ..)| *leaving == inode);
        let Some(instance) = self.instances.get_mut(&inode) else {
            return;
        };
        instance.notice_end(name);
        if leaves || !instance.is_due() {
            return;
        }
        if let Some((state, why)) = instance.seen.obstacle.clone() {
            let at = Instant::now();
            instance.state = State::Down { at, state, why };
            return;
        }
        match Process::start(&self.file, &instance.seen.found, name) {
            Ok(process) => {
                tracing::info!(
                    namespace = name,
                    pid = process.pid(),
                    "serves a network namespace"
                );
                instance.state = State::Running(process);
            }
            Err(error) => {
                tracing::warn!(namespace = name, %error, "cannot start the dyscod for a network namespace");
                instance.down(Cause::new(error).after("it cannot be started"));
            }
        }
    }

    /// Returns the names of all instances. Of several namespaces in one container, the later ones
    /// have their number in the name.
    fn names(&self) -> Vec<(u64, String)> {
        let mut used = HashSet::new();
        let named = self.instances.iter().map(|(inode, instance)| {
            let name = instance.seen.name();
            let name = match used.insert(name.clone()) {
                true => name,
                false => format!("{name}/{inode}"),
            };
            (*inode, name)
        });
        named.collect()
    }

    fn publish(&self, names: &[(u64, String)]) {
        let each = names.iter().filter_map(|(inode, name)| {
            let Instance { seen, state, .. } = self.instances.get(inode)?;
            let container = seen.container.as_ref();
            let (pid, state, why) = match state {
                State::Running(process) => (process.pid(), NamespaceState::Running, None),
                State::Down { state, why, .. } => (None, *state, why.clone()),
            };
            Some(NamespaceReport {
                name: name.clone(),
                inode: *inode,
                bound: seen.found.bound.clone(),
                pod: container.and_then(|c| c.pod.clone()),
                container: container.map(|c| format!("{}:{}", c.runtime, c.id)),
                state,
                pid,
                socket: self.config.places_of(*inode).socket(),
                why,
            })
        });
        let mut all: Vec<_> = each.collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        *self.reports.lock().unwrap_or_else(PoisonError::into_inner) = all;
    }

    /// Ends all instances.
    async fn stop(&mut self) {
        let inodes: Vec<u64> = self.instances.keys().copied().collect();
        for inode in inodes {
            if let Some(Instance {
                state: State::Running(process),
                ..
            }) = self.instances.remove(&inode)
            {
                process.signal(Signal::SIGTERM);
                self.leaving.push((inode, process, Instant::now() + ENDING));
            }
        }
        while !self.leaving.is_empty() {
            self.end_leaving();
            sleep(CHECK).await;
        }
    }
}

/// Returns the reason why no instance may or can be started in a namespace now.
fn obstacle(found: &Found) -> Option<(NamespaceState, Option<Cause>)> {
    let comm = |pid: &&i32| fs::read_to_string(format!("/proc/{pid}/comm"));
    let other = |pid: &&i32| comm(pid).is_ok_and(|comm| comm.trim_end() == "dyscod");
    if let Some(pid) = found.pids.iter().find(other) {
        let why = Cause::new(format!("process {pid} is a dyscod of its own there"));
        let hint = "ask that one, or end it";
        return Some((NamespaceState::OtherDyscod, Some(why.hint(hint))));
    }
    let first = found.pids.first();
    // Without a process, only the instance itself can tell.
    first
        .is_some_and(|pid| !is_connected(*pid))
        .then_some((NamespaceState::NoAddress, None))
}

/// Returns the container of the first process that is in one.
fn container_of(found: &Found) -> Option<Container> {
    let group = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok();
    let first = found.pids.iter().take(LOOKED_AT);
    first
        .filter_map(group)
        .find_map(|cgroups| container(&cgroups))
}
