//! Programs that run with services: each session that a program of a cgroup opens, or accepts, gets
//! them before its first byte.
//!
//! The cgroup has the list of the services with it, as an extended attribute. An earlier `dyscod`
//! therefore leaves no record that could be wrong.

mod group;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dysco_agent::groups;
use dysco_api::{Failure, FailureCode, Reply, RunReport, RunRequest, ServiceSpec};
use dysco_common::policy::{MAX_RUNS, Otherwise};
use dysco_config::policy::MAX_SERVICES;
use dysco_explain::{Cause, Explain};
use dysco_proxy::elsewhere;

use super::{Services, Wanted, choice};
use crate::api::Caller;
use crate::engine::Plane;
use crate::handlers::Owner;

/// Greatest number of runs of a user other than root at a time.
const RUNS_OF_USER: usize = 128;
/// Interval between reports of sessions of a run that a rule keeps from opening.
const CONTESTED_AGAIN: Duration = Duration::from_secs(10);

/// Runs, by number.
#[derive(Default)]
pub(in crate::engine) struct Runs {
    all: HashMap<u32, Run>,
}

/// A program that runs with services, and its children.
struct Run {
    services: Vec<ServiceSpec>,
    /// The one who runs it.
    owner: Owner,
    /// Folder of the cgroup.
    folder: PathBuf,
    /// Id of the cgroup.
    group: u64,
    /// Time of the last report that a session has not opened.
    contested: Option<Instant>,
}

/// Request that failed.
type Refused = (FailureCode, Cause);

impl Services {
    /// Lets the caller's process, and its children, run with services.
    pub(in crate::engine) fn begin_run(
        &mut self,
        plane: &Plane,
        request: &RunRequest,
        caller: &Caller,
    ) -> Reply {
        match self.try_run(plane, &request.services, caller) {
            Ok(cgroup) => Reply::Run(RunReport { cgroup }),
            Err((code, cause)) => Reply::Error(Failure::new(
                code,
                cause.of("run the program with services"),
            )),
        }
    }

    fn try_run(
        &mut self,
        plane: &Plane,
        services: &[ServiceSpec],
        caller: &Caller,
    ) -> Result<PathBuf, Refused> {
        let of = |code| move |cause| (code, cause);
        let users = &plane.config.services.users;
        may_run(users, services, caller).map_err(of(FailureCode::NotAllowed))?;
        let text = checked(services).map_err(of(FailureCode::BadRequest))?;
        let begun = can_run(caller).and_then(|()| self.runs.begin(plane, &text, caller));
        let run = begun.map_err(of(FailureCode::Refused))?;
        let (folder, owner) = (run.folder.clone(), run.owner);
        if run.needs_handler() {
            // Its first session does not wait for the start of a handler.
            self.prepare(plane, owner);
        }
        Ok(folder)
    }

    /// Returns the services of a run.
    pub(in crate::engine) fn run(&self, number: u32) -> Option<Wanted> {
        let run = self.runs.all.get(&number)?;
        Some(Wanted {
            services: run.services.clone(),
            otherwise: Otherwise::Refuse,
            owner: run.owner,
            by: format!("run of {}", run.folder.display()),
        })
    }

    /// Reports that a session of a run does not open: `other` would take the place of its services.
    pub(in crate::engine) fn contested(&mut self, plane: &mut Plane, number: u32, other: &str) {
        let Some(run) = self.runs.all.get_mut(&number) else {
            return;
        };
        // The kernel repeats each SYN.
        if run
            .contested
            .is_some_and(|at| at.elapsed() < CONTESTED_AGAIN)
        {
            return;
        }
        run.contested = Some(Instant::now());
        let services = super::words::of(&run.services);
        let folder = run.folder.display();
        let text = format!(
            "a session of the run of {folder} does not open: it is to have {services}, and {other} would \
             take it without"
        );
        plane.report("services-refused", None, text);
    }

    /// Takes up the runs of an earlier process.
    pub(in crate::engine) fn take_up_runs(&mut self, plane: &Plane) {
        let known: HashMap<u64, u32> = plane.agent.runs().into_iter().collect();
        if known.is_empty() {
            return;
        }
        let root = groups::root(&plane.config.removal.state_dir);
        let folders = match root.and_then(|root| groups::runs(&root)) {
            Ok(folders) => folders,
            // The programs may run: their sessions are refused, and do not go without services.
            Err(error) => {
                return tracing::error!(%error, "the programs that run with services are not known");
            }
        };
        let mut live = HashSet::new();
        for folder in folders {
            let Some((group, number)) = number_of(&folder, &known) else {
                continue;
            };
            // Its programs run, even if nothing else is known about it.
            live.insert(group);
            let Some(run) = Run::of(&folder) else {
                let folder = folder.display();
                tracing::error!(%folder, "the services of a run cannot be read");
                continue;
            };
            // An earlier release may have written the name otherwise.
            if let Err(error) = plane.agent.begin_run(group, number, run.needs_handler()) {
                tracing::warn!(%error, "a run has the name that an earlier process gave it");
            }
            self.runs.all.insert(number, run);
        }
        for group in known.into_keys().filter(|group| !live.contains(group)) {
            plane.agent.end_run(group);
        }
        let all = self.runs.all.values().filter(|run| run.needs_handler());
        let owners: HashSet<Owner> = all.map(|run| run.owner).collect();
        for owner in owners {
            self.prepare(plane, owner);
        }
    }

    /// Forgets the runs whose programs have ended.
    pub(in crate::engine) fn end_runs(&mut self, plane: &Plane) {
        self.runs.all.retain(|_, run| {
            // The kernel keeps a cgroup that a process is in.
            let lives = match fs::remove_dir(&run.folder) {
                Ok(()) => false,
                Err(error) => error.kind() != io::ErrorKind::NotFound,
            };
            if !lives {
                plane.agent.end_run(run.group);
            }
            lives
        });
        self.dismiss_idle(plane);
    }
}

impl Runs {
    /// True if a program runs with services of this owner's handler.
    pub(super) fn has(&self, owner: Owner) -> bool {
        let of_handler = |run: &Run| run.owner == owner && run.needs_handler();
        self.all.values().any(of_handler)
    }

    /// Begins a run of the caller, with the services of this text.
    fn begin(&mut self, plane: &Plane, text: &str, caller: &Caller) -> Result<&Run, Cause> {
        let number = self.free(Owner::of(caller.uid))?;
        let mut failure = Cause::new("no cgroup is there for it");
        for place in group::places(&plane.config.removal.state_dir, caller)? {
            self.may_leave(&place, caller)?;
            match enter(plane, &place, text, caller, number) {
                Ok(run) => return Ok(self.all.entry(number).insert_entry(run).into_mut()),
                Err(cause) => failure = cause,
            }
        }
        Err(failure)
    }

    /// Checks that the caller's program, in this cgroup, is in no run of another user, whose services
    /// the new ones would replace.
    fn may_leave(&self, place: &Path, caller: &Caller) -> Result<(), Cause> {
        let others =
            |run: &&Run| run.owner != Owner::of(caller.uid) && place.starts_with(&run.folder);
        match self.all.values().find(others) {
            Some(run) if !caller.is_root() => {
                let services = super::words::of(&run.services);
                let why = format!("it runs with {services} already, as another user has asked for");
                Err(Cause::new(why).hint("run as root"))
            }
            _ => Ok(()),
        }
    }

    fn free(&self, owner: Owner) -> Result<u32, Cause> {
        let own = self.all.values().filter(|run| run.owner == owner).count();
        if let Owner::User(uid) = owner
            && own >= RUNS_OF_USER
        {
            let why = format!("{own} programs of user {uid} run with services already");
            return Err(Cause::new(why).hint("end some of them"));
        }
        let mut numbers = 0..MAX_RUNS;
        numbers
            .find(|number| !self.all.contains_key(number))
            .ok_or_else(|| {
                Cause::new(format!("{MAX_RUNS} programs run with services already"))
                    .hint("end some of them")
            })
    }
}

impl Run {
    /// True if a handler runs the services. Sessions are held until it has them.
    fn needs_handler(&self) -> bool {
        !self.services.iter().any(ServiceSpec::names_plane)
    }
}

/// Returns the id and the number of the run of a cgroup, if it is one of these.
fn number_of(folder: &Path, known: &HashMap<u64, u32>) -> Option<(u64, u32)> {
    let group = group::id(folder).ok()?;
    known.get(&group).map(|number| (group, *number))
}

/// Makes a run of the caller's process, in a cgroup below this one.
fn enter(
    plane: &Plane,
    place: &Path,
    text: &str,
    caller: &Caller,
    number: u32,
) -> Result<Run, Cause> {
    let run = Run::make(place, text, caller)?;
    let told = (plane.agent).begin_run(run.group, number, run.needs_handler());
    let told = told.map_err(|error| error.explain().cause());
    if let Err(cause) = told.and_then(|()| run.enter(caller)) {
        plane.agent.end_run(run.group);
        run.give_up();
        return Err(cause);
    }
    Ok(run)
}

/// Checks that the caller's user may run programs with these services.
fn may_run(users: &[String], services: &[ServiceSpec], caller: &Caller) -> Result<(), Cause> {
    let mut names = services.iter().map(|service| &service.name);
    match names.find(|name| !caller.is_root() && !users.contains(name)) {
        None => Ok(()),
        Some(name) => {
            let why = format!("user {} may not run programs with +{name}", caller.uid);
            Err(Cause::new(why).hint("run as root, or add it to [services] users"))
        }
    }
}

/// Checks the services of a run. Returns their text.
fn checked(services: &[ServiceSpec]) -> Result<String, Cause> {
    if services.len() > MAX_SERVICES {
        let len = services.len();
        let why = format!("the request names {len} services, and {MAX_SERVICES} are the most");
        return Err(Cause::new(why).hint("leave some out"));
    }
    choice::known(services)?;
    group::text_of(services)
}

/// Checks that the sessions of the caller's process pass this data plane.
fn can_run(caller: &Caller) -> Result<(), Cause> {
    caller.is_there()?;
    match elsewhere::process(caller.pid) {
        Ok(None) => Ok(()),
        Ok(Some(process)) => Err(process.cause().hint(
            "ask the dyscod of its network namespace (dyscoctl --namespace), or run it in that of this \
             dyscod",
        )),
        Err(error) => {
            let why = format!("cannot read the network namespace of process {}: {error}", caller.pid);
            Err(Cause::new(why).hint("give dyscod /proc, and CAP_SYS_PTRACE"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_of(uid: u32, folder: &str) -> Run {
        Run {
            services: vec!["count".parse().unwrap()],
            owner: Owner::of(uid),
            folder: folder.into(),
            group: 7,
            contested: None,
        }
    }

    #[test]
    fn a_user_has_a_share_of_the_runs() {
        let mut runs = Runs::default();
        for number in 0..RUNS_OF_USER as u32 {
            runs.all.insert(number, run_of(1000, "/run"));
        }
        let cause = runs.free(Owner::of(1000)).unwrap_err();
        assert!(cause.to_string().contains("of user 1000"), "{cause}");
        for other in [0, 1001] {
            assert_eq!(runs.free(Owner::of(other)), Ok(RUNS_OF_USER as u32));
        }
    }

    #[test]
    fn a_run_has_as_many_services_as_a_rule() {
        let count: ServiceSpec = "count".parse().unwrap();
        assert!(checked(&vec![count.clone(); MAX_SERVICES]).is_ok());
        let cause = checked(&vec![count; MAX_SERVICES + 1]).unwrap_err();
        assert!(cause.to_string().contains("8 are the most"), "{cause}");
        assert!(checked(&[]).is_err());
    }

    #[test]
    fn a_user_does_not_replace_the_services_of_anothers_run() {
        let mut runs = Runs::default();
        runs.all.insert(0, run_of(1000, "/cgroup/dysco/run-7-0"));
        let caller = |uid| Caller {
            pid: 7,
            uid,
            gids: vec![],
            process: None,
        };
        let inside = Path::new("/cgroup/dysco/run-7-0/inner");
        assert!(runs.may_leave(inside, &caller(1001)).is_err());
        assert!(
            runs.may_leave(Path::new("/cgroup/dysco/run-7-01"), &caller(1001))
                .is_ok()
        );
        for uid in [0, 1000] {
            assert!(runs.may_leave(inside, &caller(uid)).is_ok());
        }
    }
}
