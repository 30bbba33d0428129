//! The daemons of a plan: starts them, kills them, restarts them, and notices their deaths.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dysco_netns::fleet::{Fleet, built};
use dysco_netns::{Host, Process};
use nix::sys::signal::Signal;

use crate::plan::{HostPlan, PROXY_PORT, Plan, address};
use crate::world::{World, interfaces};

/// All daemons of a plan.
pub(crate) struct Daemons {
    /// Keys of the daemons, and `dyscoctl`.
    pub fleet: Fleet,
    all: BTreeMap<u8, Mutex<Daemon>>,
}

struct Daemon {
    config: PathBuf,
    process: Option<Process>,
    /// Time until which the daemon is down on purpose.
    away: Option<Instant>,
    /// Faults that the daemon is asked for.
    faults: Vec<Fault>,
    /// Steps of faults at which the daemon has died.
    died_at: Vec<String>,
    /// Names of the daemon's pins before its first session.
    pins: Vec<String>,
}

/// A fault on purpose.
struct Fault {
    /// A word of `DYSCOD_FAULTS`.
    step: String,
    /// Delay of the restart, if the daemon dies.
    back: Duration,
}

impl Fault {
    fn is_death(&self) -> bool {
        self.step.starts_with("die:")
    }
}

impl Daemon {
    fn words(&self) -> String {
        let steps: Vec<_> = self.faults.iter().map(|f| f.step.as_str()).collect();
        steps.join(",")
    }

    /// Notes the end of the process. Returns the delay of the restart if the daemon died on
    /// purpose, which is always by SIGKILL. Its deaths are over, because the same step may also
    /// make the next process die.
    fn fell(&mut self, status: ExitStatus) -> Option<Duration> {
        if status.signal() != Some(Signal::SIGKILL as i32) {
            return None;
        }
        let deaths = self.faults.extract_if(.., |fault| fault.is_death());
        let deaths: Vec<_> = deaths.collect();
        let back = deaths.first().map(|fault| fault.back);
        self.died_at.extend(deaths.into_iter().map(|f| f.step));
        back
    }

    /// True if a fault has happened.
    fn failed_at(&self, step: &str, log: &str) -> bool {
        let name = step.split(':').nth(1).unwrap_or_default();
        let lost = format!(" {name} is lost on purpose");
        self.died_at.iter().any(|at| at == step) || log.contains(&lost)
    }
}

impl Daemons {
    /// Starts all daemons and waits until they answer.
    pub(crate) fn start(world: &World, plan: &Plan, dir: &Path) -> Result<Daemons> {
        let dyscod = built("dyscod")?;
        let programs = dyscod.parent().unwrap_or(Path::new("."));
        let fleet = Fleet::in_folder(dir.join("pki"), &world.router, programs)?.with_faults();
        let mut all = BTreeMap::new();
        for host in plan.hosts.iter().filter(|h| h.daemon) {
            let daemon = Daemon {
                config: prepare(&fleet, world, plan, host)?,
                process: None,
                away: None,
                faults: Vec::new(),
                died_at: Vec::new(),
                pins: Vec::new(),
            };
            all.insert(host.number, Mutex::new(daemon));
        }
        let daemons = Daemons { fleet, all };
        // Two daemons start at a time: more would only wait for each other's processors.
        let waiting = Mutex::new(daemons.all.keys().copied().collect::<Vec<_>>());
        let start = || -> Result<()> {
            while let Some(number) = { lock(&waiting).pop() } {
                daemons.begin(world, number)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let both = [scope.spawn(start), scope.spawn(start)];
            both.into_iter().try_for_each(|start| match start.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })?;
        for (number, daemon) in &daemons.all {
            lock(daemon).pins = pins(world.host(*number)?);
        }
        Ok(daemons)
    }

    /// Numbers of the hosts whose daemons run.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = u8> + '_ {
        let runs = |daemon: &Mutex<Daemon>| lock(daemon).process.is_some();
        let all = self.all.iter().filter(move |(_, daemon)| runs(daemon));
        all.map(|(number, _)| *number)
    }

    fn begin(&self, world: &World, number: u8) -> Result<()> {
        let host = world.host(number)?;
        let daemon = self.all.get(&number).context("no daemon there")?;
        let config = lock(daemon).config.clone();
        // An overloaded machine may need several attempts.
        let start = || self.fleet.start_by(host, &config);
        let started = start().or_else(|_| start()).or_else(|_| start())?;
        let mut daemon = lock(daemon);
        daemon.process = Some(started.process);
        daemon.away = None;
        Ok(())
    }

    /// Kills a daemon. [`Daemons::tend`] starts it again after this delay, or never.
    pub(crate) fn kill(&self, number: u8, back: Option<Duration>) -> bool {
        let Some(daemon) = self.all.get(&number) else {
            return false;
        };
        let mut daemon = lock(daemon);
        let Some(mut process) = daemon.process.take() else {
            return false;
        };
        daemon.away = back.map(|back| Instant::now() + back);
        process.kill().is_ok()
    }

    /// Makes a daemon fail at a step, in addition to others. If the daemon dies there, it is started
    /// again after this delay.
    pub(crate) fn set_fault(
        &self,
        world: &World,
        number: u8,
        step: &str,
        back: Duration,
    ) -> Result<()> {
        let Some(daemon) = self.all.get(&number) else {
            return Ok(());
        };
        // The lock covers the write of the file: another fault of this daemon may occur now.
        let mut daemon = lock(daemon);
        let step = step.to_owned();
        daemon.faults.push(Fault { step, back });
        self.fleet.set_faults(world.host(number)?, &daemon.words())
    }

    /// True if a daemon has failed at a step.
    pub(crate) fn failed_at(&self, world: &World, number: u8, step: &str) -> bool {
        let daemon = self.all.get(&number);
        daemon.is_some_and(|daemon| lock(daemon).failed_at(step, &log(world, number)))
    }

    /// Restarts the daemons that are due. Returns descriptions of the failures.
    pub(crate) fn tend(&self, world: &World) -> Vec<String> {
        let mut wrong = Vec::new();
        for (number, daemon) in &self.all {
            if let Err(error) = self.tend_one(world, *number, daemon) {
                wrong.push(format!("the daemon of h{number}: {error:#}"));
            }
        }
        wrong
    }

    fn tend_one(&self, world: &World, number: u8, daemon: &Mutex<Daemon>) -> Result<()> {
        let due = {
            let mut daemon = lock(daemon);
            let ended = daemon.process.as_mut().and_then(Process::ended);
            if let Some(status) = ended {
                daemon.process = None;
                let back = daemon.fell(status);
                daemon.away = Some(Instant::now() + back.unwrap_or_default());
                self.fleet
                    .set_faults(world.host(number)?, &daemon.words())?;
                if back.is_none() {
                    let log = log(world, number);
                    let end: Vec<_> = log.lines().rev().take(3).collect();
                    anyhow::bail!("it ended by itself, {status}: {}", end.join(" / "));
                }
            }
            daemon.away.is_some_and(|due| due <= Instant::now())
        };
        match due {
            true => self.begin(world, number),
            false => Ok(()),
        }
    }

    /// Restarts all daemons that are down, and removes all faults.
    pub(crate) fn settle(&self, world: &World) -> Vec<String> {
        let mut wrong = Vec::new();
        for (number, daemon) in &self.all {
            let checked = world
                .host(*number)
                .and_then(|h| self.fleet.set_faults(h, ""));
            wrong.extend(checked.err().map(|error| format!("h{number}: {error:#}")));
            let mut daemon = lock(daemon);
            // A daemon may have died just before.
            daemon.faults.retain(Fault::is_death);
            daemon.away = daemon.away.map(|_| Instant::now());
        }
        wrong.extend(self.tend(world));
        wrong
    }

    /// Texts of panics in the daemons' logs.
    pub(crate) fn panics(&self, world: &World) -> Vec<String> {
        let logs = self.all.keys().map(|number| (number, log(world, *number)));
        let panics = logs.flat_map(|(number, log)| {
            let lines = log.lines().filter(|l| l.contains("panicked at"));
            lines
                .map(|line| format!("h{number}: {line}"))
                .collect::<Vec<_>>()
        });
        panics.collect()
    }

    /// Stops all daemons. Returns the daemons that did not stop, and the pins that did not exist at
    /// the start.
    pub(crate) fn stop(self, world: &World) -> Vec<String> {
        let mut left = Vec::new();
        for (number, daemon) in self.all {
            let mut daemon = daemon.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Some(process) = daemon.process.as_mut() {
                left.extend(process.stop().err().map(|e| format!("h{number}: {e:#}")));
            }
            let Ok(host) = world.host(number) else {
                continue;
            };
            let more = pins(host).into_iter().filter(|p| !daemon.pins.contains(p));
            left.extend(more.map(|pin| format!("h{number}: the pin {pin}")));
        }
        left
    }
}

fn prepare(fleet: &Fleet, world: &World, plan: &Plan, host: &HostPlan) -> Result<PathBuf> {
    let addresses = [false, true].map(|v6| address(host.number, v6));
    let declared = plan.proxy(host.number).is_some_and(|p| p.declared);
    let extra = match declared {
        true => format!("[[listener]]\naddress = \":{PROXY_PORT}\"\ntransparent = true\n"),
        false => String::new(),
    };
    fleet.prepare_host(
        world.host(host.number)?,
        &addresses,
        &interfaces(host),
        &extra,
    )
}

/// Returns the names below a host's BPF file system. The link of a process that runs services stays
/// for the next daemon.
fn pins(host: &Host) -> Vec<String> {
    let listed = host.output("find", &["/sys/fs/bpf", "-mindepth", "1"]);
    let listed = listed.unwrap_or_default();
    let pins = listed
        .lines()
        .filter(|pin| !pin.ends_with("_dysco_handler"));
    pins.map(str::to_owned).collect()
}

/// Log of all processes of a host's daemon so far.
fn log(world: &World, number: u8) -> String {
    let host = world.host(number).ok();
    let log = host.and_then(|host| std::fs::read(host.dir().join("dyscod.log")).ok());
    String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(steps: &[&str]) -> Daemon {
        let fault = |step: &&str| Fault {
            step: (*step).into(),
            back: Duration::from_millis(300),
        };
        Daemon {
            config: PathBuf::new(),
            process: None,
            away: None,
            faults: steps.iter().map(fault).collect(),
            died_at: Vec::new(),
            pins: Vec::new(),
        }
    }

    #[test]
    fn only_a_death_by_sigkill_is_on_purpose() {
        let (killed, aborted, left) = (9, 6, 1 << 8);
        for status in [aborted, left] {
            let mut daemon = asked(&["die:Cut"]);
            assert_eq!(daemon.fell(ExitStatus::from_raw(status)), None);
            assert!(!daemon.failed_at("die:Cut", ""));
        }
        let mut daemon = asked(&["die:Cut"]);
        let back = daemon.fell(ExitStatus::from_raw(killed));
        assert_eq!(back, Some(Duration::from_millis(300)));
        assert!(daemon.failed_at("die:Cut", ""));
        // The next death is not.
        assert_eq!(daemon.fell(ExitStatus::from_raw(killed)), None);
        // A loss makes no daemon die.
        let mut daemon = asked(&["drop:Done"]);
        assert_eq!(daemon.fell(ExitStatus::from_raw(killed)), None);
    }

    #[test]
    fn several_faults_are_asked_for_at_once() {
        let mut daemon = asked(&["die:Cut", "drop:Done"]);
        assert_eq!(daemon.words(), "die:Cut,drop:Done");
        daemon.fell(ExitStatus::from_raw(9));
        assert_eq!(daemon.words(), "drop:Done");
    }

    #[test]
    fn a_step_that_never_came_is_no_hit() {
        let daemon = asked(&["die:Cut", "drop:Done"]);
        assert!(!daemon.failed_at("die:Cut", "") && !daemon.failed_at("drop:Done", ""));
        assert!(daemon.failed_at("drop:Done", "INFO Done is lost on purpose\n"));
    }
}
