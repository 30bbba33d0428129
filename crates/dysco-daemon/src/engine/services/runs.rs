//! Programs that run with services: each session that a program of a cgroup opens, or accepts, gets
//! them before its first byte.
//!
//! The cgroup has the list of the services with it, as an extended attribute. An earlier `dyscod`
//! therefore leaves no record that could be wrong.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use dysco_agent::groups::{self, PROCESSES, RUN, RUNS};
use dysco_api::{Failure, FailureCode, Reply, RunReport, RunRequest, ServiceSpec};
use dysco_common::policy::{MAX_RUNS, Otherwise};
use dysco_explain::{Cause, Explain};
use dysco_proxy::elsewhere;
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::{Services, Wanted, choice};
use crate::api::Caller;
use crate::engine::Plane;
use crate::handlers::Owner;

/// Attribute of a cgroup: the services, one a line.
const ATTRIBUTE: &str = "trusted.dysco.services";
/// Attribute of a cgroup: the user who runs the program, by number. Root's have none.
const USER: &str = "trusted.dysco.user";
/// Longest value of the attribute, in bytes.
const LONGEST: usize = 4096;
/// Attempts to find a name for a cgroup that is not taken.
const NAMES: u32 = 10_000;
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
    /// Id of the cgroup: the inode of its folder (`kernfs_id`, fs/kernfs).
    group: u64,
    /// Time of the last report that a session has not opened.
    contested: Option<Instant>,
}

impl Services {
    /// Lets the caller's process, and its children, run with services.
    pub(in crate::engine) fn begin_run(
        &mut self,
        plane: &Plane,
        request: &RunRequest,
        caller: &Caller,
    ) -> Reply {
        let allowed = &plane.config.services.users;
        let refused = request.services.iter().map(|service| &service.name);
        let refused = refused.filter(|name| !caller.is_root() && !allowed.contains(name));
        if let Some(name) = refused.into_iter().next() {
            let why = format!("user {} may not run programs with +{name}", caller.uid);
            let cause = Cause::new(why).hint("run as root, or add it to [services] users");
            return Reply::Error(Failure::new(
                FailureCode::NotAllowed,
                cause.of("run the program with services"),
            ));
        }
        if let Err(cause) = choice::known(&request.services) {
            return Reply::Error(Failure::new(
                FailureCode::BadRequest,
                cause.of("run the program with services"),
            ));
        }
        let state = &plane.config.removal.state_dir;
        let begun = self.runs.free().and_then(|number| {
            can_run(caller)?;
            let run = Run::make(&request.services, caller, state)?;
            let told = plane
                .agent
                .begin_run(run.group, number, run.needs_handler());
            let told = told.map_err(|error| error.explain().cause());
            match told.and_then(|()| run.enter(caller)) {
                Ok(()) => Ok((number, run)),
                Err(cause) => {
                    plane.agent.end_run(run.group);
                    // No process is in it.
                    let _ = fs::remove_dir(&run.folder);
                    Err(cause)
                }
            }
        });
        match begun {
            Ok((number, run)) => {
                let report = RunReport {
                    cgroup: run.folder.clone(),
                };
                if run.needs_handler() {
                    // Its first session does not wait for the start of a handler.
                    self.prepare(plane, run.owner);
                }
                self.runs.all.insert(number, run);
                Reply::Run(report)
            }
            Err(cause) => Reply::Error(Failure::new(
                FailureCode::Refused,
                cause.of("run the program with services"),
            )),
        }
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
        let folders = match root.and_then(|root| fs::read_dir(root.join(RUNS))) {
            Ok(folders) => folders,
            // The programs may run: their sessions are refused, and do not go without services.
            Err(error) => {
                return tracing::error!(%error, "the programs that run with services are not known");
            }
        };
        for folder in folders.flatten() {
            let Some(run) = Run::of(&folder.path()) else {
                continue;
            };
            if let Some(number) = known.get(&run.group) {
                // An earlier release may have written the name otherwise.
                if let Err(error) = plane
                    .agent
                    .begin_run(run.group, *number, run.needs_handler())
                {
                    tracing::warn!(%error, "a run has the name that an earlier process gave it");
                }
                self.runs.all.insert(*number, run);
            }
        }
        let live: Vec<u64> = self.runs.all.values().map(|run| run.group).collect();
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

    fn free(&self) -> Result<u32, Cause> {
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
    /// Makes a cgroup for the process of a caller.
    fn make(services: &[ServiceSpec], caller: &Caller, state: &Path) -> Result<Run, Cause> {
        let pid = caller.pid;
        let root = groups::root(state).map_err(failed("find the cgroup hierarchy"))?;
        let parent = root.join(RUNS);
        let folder = (0..NAMES).find_map(|n| {
            let folder = parent.join(format!("{RUN}{pid}-{n}"));
            match fs::create_dir_all(&parent).and_then(|()| fs::create_dir(&folder)) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
                made => Some(made.map(|()| folder)),
            }
        });
        let folder = folder.unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()));
        let folder = folder.map_err(failed("make a cgroup"))?;
        let lines: Vec<String> = services.iter().map(ToString::to_string).collect();
        let text = lines.join("\n");
        let note = |name: &str, value: &str| {
            let noted = rustix::fs::setxattr(&folder, name, value.as_bytes(), XattrFlags::CREATE);
            noted.map_err(|error| failed("note the services of a cgroup")(error.into()))
        };
        if let Owner::User(uid) = Owner::of(caller.uid) {
            note(USER, &uid.to_string())?;
        }
        // The last one: it makes a cgroup a run.
        note(ATTRIBUTE, &text)?;
        Run::of(&folder).ok_or_else(|| Cause::new("its cgroup is gone"))
    }

    /// Returns the run of a cgroup, unless it is another's.
    fn of(folder: &Path) -> Option<Run> {
        let text = attribute(folder, ATTRIBUTE).ok()?;
        let owner = match attribute(folder, USER) {
            Ok(uid) => Owner::of(uid.parse().ok()?),
            Err(Errno::NODATA) => Owner::System,
            Err(_) => return None,
        };
        let services = text.lines().map(|line| line.parse().ok());
        Some(Run {
            services: services.collect::<Option<_>>()?,
            owner,
            group: fs::metadata(folder).ok()?.ino(),
            folder: folder.to_owned(),
            contested: None,
        })
    }

    /// True if a handler runs the services. Sessions are held until it has them.
    fn needs_handler(&self) -> bool {
        !self.services.iter().any(ServiceSpec::names_plane)
    }

    /// Moves the process of a caller into the cgroup. The kernel takes the process by its number, which
    /// is the caller's if the caller lives afterwards.
    fn enter(&self, caller: &Caller) -> Result<(), Cause> {
        let file = self.folder.join(PROCESSES);
        let moved = fs::write(file, caller.pid.to_string());
        moved.map_err(failed("move the program to its cgroup"))?;
        caller.is_there()
    }
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

/// Reads an attribute of a cgroup.
fn attribute(folder: &Path, name: &str) -> Result<String, Errno> {
    let mut text = [0; LONGEST];
    let length = rustix::fs::getxattr(folder, name, &mut text)?;
    let text = std::str::from_utf8(&text[..length]);
    text.map(str::to_owned).map_err(|_| Errno::INVAL)
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> Cause {
    move |error| {
        Cause::new(format!("cannot {what}: {error}")).hint(
            "under systemd, set ProtectControlGroups=no and CAP_SYS_ADMIN, as \
                   /usr/share/dysco/dyscod-services.conf does",
        )
    }
}
