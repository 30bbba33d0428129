//! Runs a plan, with Dysco or without.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tokio::sync::watch::Sender;

use crate::daemons::Daemons;
use crate::kills::{self, KillRun, Proxies};
use crate::leftovers;
use crate::operators::{self, OperationRun};
use crate::plan::{Plan, Side, Victim};
use crate::sessions::{self, EndRun, Phase, Session};
use crate::watch::{self, Seen, Watched};
use crate::world::World;
use crate::{boxes, proxies};

/// Time without any arrival after which bytes that are in flight when sending stops never arrive.
const REST: Duration = Duration::from_secs(15);
/// Time without any arrival after which closing ends are never over.
const CLOSE: Duration = Duration::from_secs(8);
/// Time limit of both phases while bytes arrive. A session that takes longer counts as hanging. A
/// session with a tiny window on a long path needs a minute for the bytes that its proxy holds.
const SLOW: Duration = Duration::from_secs(120);
/// Interval between checks for the next action.
const TICK: Duration = Duration::from_millis(5);

/// Result of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionRun {
    /// Number of the session.
    pub id: u64,
    /// The client's end, if the session was opened.
    pub local: Option<SocketAddr>,
    /// Reason why the session was not opened.
    pub trouble: Option<String>,
    /// Observations of client and server.
    pub ends: [EndRun; 2],
    /// Observations of the session while it ran.
    pub watched: Watched,
}

impl SessionRun {
    fn is_over(&self) -> bool {
        self.trouble.is_some() || self.ends.iter().all(|end| end.over)
    }
}

/// Result of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// Sessions of the plan.
    pub sessions: Vec<SessionRun>,
    /// Operations of the plan.
    pub operations: Vec<OperationRun>,
    /// Kills of the plan.
    pub kills: Vec<KillRun>,
    /// Descriptions of the invariants that were broken.
    pub broken: Vec<String>,
    /// Remains of the run.
    pub leftovers: Vec<String>,
    /// Longest time in milliseconds for which this machine did not run the watcher.
    pub asleep_ms: u64,
}

/// State that is shared while a plan runs.
struct Stage<'a> {
    plan: &'a Plan,
    world: &'a World,
    daemons: Option<&'a Daemons>,
    proxies: &'a Proxies,
    start: Instant,
    run: Mutex<Run>,
}

/// Runs a plan, and writes files to `dir`. `patience` is the number of seconds for which remains of
/// sessions may persist.
pub(crate) fn execute(plan: &Plan, dir: &Path, patience: u64) -> Result<Run> {
    let world = World::build(plan, dir)?;
    let mut wires = Vec::new();
    for b in plan.boxes.iter().filter(|b| b.from_ms == 0) {
        let placed = boxes::place(&world, b, plan.seed);
        wires.extend(placed.with_context(|| format!("failed to place {b:?}"))?);
    }
    let dysco = plan.hosts.iter().any(|h| h.daemon);
    let daemons = dysco
        .then(|| Daemons::start(&world, plan, dir))
        .transpose()?;
    let proxies = Proxies::default();
    for p in &plan.proxies {
        let shim = plan.host(p.host).is_some_and(|h| h.daemon);
        let fleet = daemons.as_ref().filter(|_| shim).map(|d| &d.fleet);
        let process = proxies::start(world.host(p.host)?, p, fleet)?;
        lock(&proxies).insert(p.host, process);
    }
    let stage = Stage {
        plan,
        world: &world,
        daemons: daemons.as_ref(),
        proxies: &proxies,
        start: Instant::now(),
        run: Mutex::default(),
    };
    stage.play(&mut wires)?;
    let mut run = stage
        .run
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    if let Some(daemons) = daemons {
        run.broken.extend(daemons.settle(&world));
        run.broken.extend(daemons.panics(&world));
        for kill in &mut run.kills {
            if let Victim::DaemonAt { host, step, .. } = &kill.victim {
                kill.hit = daemons.failed_at(&world, *host, step);
            }
        }
        // The entry of a session that stalls is not a leftover.
        if run.sessions.iter().all(SessionRun::is_over) {
            let killed = run.kills.iter().any(|kill| kill.hit);
            let times = (patience, if killed { leftovers::KILLED } else { 0 });
            run.leftovers
                .extend(leftovers::entries(&world, &daemons, times));
        }
        run.leftovers.extend(daemons.stop(&world));
    }
    drop(proxies);
    drop(wires);
    run.leftovers.extend(leftovers::processes(&world));
    Ok(run)
}

impl Stage<'_> {
    /// Opens the sessions, performs the planned actions, and lets the sessions end.
    fn play(&self, wires: &mut Vec<dysco_netns::wire::Wire>) -> Result<()> {
        let (phase, heard) = tokio::sync::watch::channel(Phase::Run);
        let plans = self.plan.sessions.iter();
        let sessions: Vec<_> = plans
            .map(|s| Session::new(self.plan, s, heard.clone()))
            .collect();
        let servers: std::collections::BTreeSet<_> =
            sessions.iter().map(|s| s.plan.server).collect();
        let servers = servers
            .into_iter()
            .map(|n| sessions::serve(self.world.host(n)?, n, &sessions));
        let servers = servers.collect::<Result<Vec<_>>>()?;
        let mut tasks = Vec::new();
        for session in &sessions {
            let host = self.world.host(session.plan.client)?;
            tasks.push(sessions::open(host, self.plan, session.clone()));
        }
        let ended = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch::watch(&sessions, self.start, &ended));
            self.act(scope, wires);
            self.finish(&phase, &sessions);
            ended.store(true, Ordering::Relaxed);
            watched(watcher.join())
        });
        // The operators' threads have ended with the scope.
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        drop(servers);
        self.note(
            &sessions,
            seen.unwrap_or_else(|why| {
                self.broken(why);
                Seen::default()
            }),
        );
        Ok(())
    }

    /// Performs each planned action when it is due.
    fn act<'s>(
        &'s self,
        scope: &'s std::thread::Scope<'s, '_>,
        wires: &mut Vec<dysco_netns::wire::Wire>,
    ) {
        let mut operations = self.plan.operations.iter().peekable();
        let mut kills = self.plan.kills.iter().peekable();
        let mut late: Vec<_> = self.plan.boxes.iter().filter(|b| b.from_ms > 0).collect();
        late.sort_by_key(|b| std::cmp::Reverse(b.from_ms));
        loop {
            let now = self.start.elapsed().as_millis() as u64;
            while let Some(operation) = operations.next_if(|o| o.at_ms <= now) {
                scope.spawn(move || self.operate(operation));
            }
            while let Some(kill) = kills.next_if(|k| k.at_ms <= now) {
                scope.spawn(move || self.strike(kill));
            }
            while let Some(b) = late.pop_if(|b| b.from_ms <= now) {
                match boxes::place(self.world, b, self.plan.seed) {
                    Ok(wire) => wires.extend(wire),
                    // A link that is down has no routes.
                    Err(_) if self.plan.cuts_link_before(now) => {}
                    Err(error) => self.broken(format!("{b:?}: {error:#}")),
                }
            }
            if now >= self.plan.live_ms {
                return;
            }
            self.tend();
            std::thread::sleep(TICK);
        }
    }

    fn operate(&self, operation: &crate::plan::Operation) {
        let (Some(daemons), Ok(host)) = (self.daemons, self.world.host(operation.host)) else {
            return;
        };
        let mut done = operators::run(&daemons.fleet, host, operation, self.start);
        // The sockets are closed when the command reports it.
        done.held = leftovers::established(host);
        lock(&self.run).operations.push(done);
    }

    fn strike(&self, kill: &crate::plan::Kill) {
        let at_ms = self.start.elapsed().as_millis() as u64;
        match kills::strike(self.world, self.plan, self.daemons, self.proxies, kill) {
            Ok(hit) => lock(&self.run).kills.push(KillRun {
                victim: kill.victim.clone(),
                at_ms,
                hit,
            }),
            Err(error) => self.broken(format!("{kill:?}: {error:#}")),
        }
    }

    /// Restarts daemons.
    fn tend(&self) {
        if let Some(daemons) = self.daemons {
            daemons
                .tend(self.world)
                .into_iter()
                .for_each(|wrong| self.broken(wrong));
        }
    }

    fn broken(&self, what: String) {
        lock(&self.run).broken.push(what);
    }

    /// Lets all sessions end, as far as they do.
    fn finish(&self, phase: &Sender<Phase>, sessions: &[Arc<Session>]) {
        phase.send_replace(Phase::Rest);
        let arrived = |s: &Arc<Session>| {
            let way = |from, to| s.sent(from) == s.received(to);
            s.is_over() || (way(Side::Client, Side::Server) && way(Side::Server, Side::Client))
        };
        self.wait(REST, sessions, arrived);
        phase.send_replace(Phase::Close);
        self.wait(CLOSE, sessions, |s| s.is_over());
    }

    /// Waits until all sessions are done, or none of them has received anything for so long.
    fn wait(
        &self,
        limit: Duration,
        sessions: &[Arc<Session>],
        done: impl Fn(&Arc<Session>) -> bool,
    ) {
        let begun = Instant::now();
        let (mut received, mut last) = (0, begun);
        while !sessions.iter().all(&done) && last.elapsed() < limit && begun.elapsed() < SLOW {
            self.tend();
            std::thread::sleep(TICK);
            let both = |s: &Arc<Session>| s.received(Side::Client) + s.received(Side::Server);
            let now: u64 = sessions.iter().map(both).sum();
            if now != received {
                (received, last) = (now, Instant::now());
            }
        }
    }

    fn note(&self, sessions: &[Arc<Session>], seen: Seen) {
        let mut run = lock(&self.run);
        run.asleep_ms = seen.asleep_ms;
        // A watcher that has panicked leaves the sessions' ends to be judged.
        let unseen = std::iter::repeat_with(Watched::default);
        for (session, watched) in sessions.iter().zip(seen.sessions.into_iter().chain(unseen)) {
            run.sessions.push(SessionRun {
                id: session.plan.id,
                local: session.local(),
                trouble: session.trouble(),
                ends: [Side::Client, Side::Server].map(|side| session.seen(side)),
                watched,
            });
        }
    }
}

/// Observations of the watcher, unless it has panicked.
fn watched(joined: std::thread::Result<Seen>) -> Result<Seen, String> {
    joined.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("the watcher panicked: {}", text.unwrap_or("no message"))
    })
}

impl Run {
    /// Number of session changes by commands. A session counts once for each change.
    pub(crate) fn changes(&self) -> usize {
        self.operations.iter().map(|o| o.changed().count()).sum()
    }

    /// Number of bytes that were received and checked.
    pub(crate) fn bytes(&self) -> u64 {
        let ends = self.sessions.iter().flat_map(|s| &s.ends);
        ends.map(|end| end.received).sum()
    }

    /// Result of a session, by its number.
    pub(crate) fn session(&self, id: u64) -> Option<&SessionRun> {
        self.sessions.iter().find(|s| s.id == id)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_that_panics_is_reported() {
        let panicked = std::thread::spawn(|| -> Seen { panic!("no more marks") }).join();
        let why = watched(panicked).expect_err("a panic");
        assert_eq!(why, "the watcher panicked: no more marks");
    }
}
