//! `dyscoctl uninstall`: restores this host to its state before Dysco. Keys, configuration and the
//! options of tuned sockets stay.

mod groups;
mod tuned;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use dysco_agent::{AgentError, Alone, Leftover};
use dysco_api::Exit;
use dysco_config::{Config, DEFAULT_CONFIG, Places, release_ports};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Serialize;

use super::context::Context;
use super::error::UninstallError;
use super::exit::CliError;
use super::output::{section, table};
use groups::{Groups, Staying};

/// Interval of the checks whether sessions still need Dysco, and whether dyscod has stopped.
const LOOK: Duration = Duration::from_millis(100);
/// Time limit for dyscod to stop.
const STOPPING: Duration = Duration::from_secs(15);

/// Arguments of `uninstall`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The configuration of this host's dyscod
    #[arg(long, value_name = "FILE", default_value = DEFAULT_CONFIG)]
    config: PathBuf,

    /// Print what would be removed, and the sessions that still need Dysco; change nothing
    #[arg(long)]
    dry_run: bool,

    /// Wait until no session needs Dysco
    #[arg(long, conflicts_with_all = ["dry_run", "force"])]
    wait: bool,

    /// Do it although sessions need Dysco: they stop, and end by their own timers
    #[arg(long)]
    force: bool,
}

/// Result of the command, or the expected one in a dry run.
#[derive(Debug, Default, Serialize)]
struct Report {
    dry_run: bool,
    /// Sessions that would stop.
    sessions: Vec<Needing>,
    /// Directory of the data plane of another release. Its sessions are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<PathBuf>,
    /// Descriptions of everything that is removed, or would be.
    removes: Vec<String>,
    /// Cgroups that cannot be removed yet, with the reason.
    stays: Vec<Staying>,
    /// Number of sockets that keep the options that were set.
    tuned: usize,
}

/// A session that needs Dysco.
#[derive(Debug, Serialize)]
struct Needing {
    local: String,
    remote: String,
    why: &'static str,
}

/// Stops dyscod, detaches its programs, and removes its other traces on this host.
pub(crate) fn run(context: &Context, args: &Args) -> Result<Exit, CliError> {
    let config = Config::without_keys(&args.config)?;
    let pin_dir = &config.data_plane.pin_dir;
    let found = Leftover::find(pin_dir).map_err(UninstallError::Agent)?;
    if args.wait {
        while !needing(&config, &found)?.is_empty() {
            thread::sleep(LOOK);
        }
    }
    let (sessions, unknown) = match needing(&config, &found) {
        Err(UninstallError::Agent(AgentError::Layout { path })) if args.force || args.dry_run => {
            (Vec::new(), Some(path))
        }
        known => (known?, None),
    };
    let blocked = !args.force && (!sessions.is_empty() || unknown.is_some());
    let mut report = Report {
        dry_run: args.dry_run,
        sessions,
        unknown,
        removes: removes(&config, &found)?,
        stays: Vec::new(),
        tuned: tuned::count(&config),
    };
    if args.dry_run {
        let Groups { empty, stays } = Groups::find();
        report.removes.extend(empty.iter().map(|path| shown(path)));
        report.stays = stays;
        context.print(&report, text)?;
        return Ok(if blocked { Exit::Refused } else { Exit::Done });
    }
    if blocked {
        return Err(UninstallError::Needed(report.sessions.len()).into());
    }
    let _alone = stop(&found, pin_dir)?;
    if !args.force {
        // The daemon may have completed a change meanwhile.
        let left = needing(&config, &found)?;
        if !left.is_empty() {
            return Err(UninstallError::Needed(left.len()).into());
        }
    }
    // The daemon has written the rest of its files by now.
    report.tuned = tuned::count(&config);
    release_ports(&config.removal, false).map_err(UninstallError::Ports)?;
    for path in instances(&config) {
        fs::remove_dir_all(&path).map_err(|source| UninstallError::File { path, source })?;
    }
    let handlers = handlers(&config.removal.state_dir);
    found.remove(&handlers).map_err(UninstallError::Agent)?;
    for path in files(&config) {
        remove(&path)?;
    }
    // No dyscod makes others meanwhile.
    let (gone, stays) = Groups::find().remove();
    report.removes.extend(gone.iter().map(|path| shown(path)));
    report.stays = stays;
    context.print(&report, text)?;
    Ok(Exit::Done)
}

/// Returns the sessions that would stop, those of instances for other network namespaces included.
///
/// # Errors
/// If the data plane is that of another release: its sessions are unknown.
fn needing(config: &Config, found: &Leftover) -> Result<Vec<Needing>, UninstallError> {
    let mut all = found.needed_by()?;
    for dir in fs::read_dir(config.places().pins)
        .into_iter()
        .flatten()
        .flatten()
    {
        all.extend(Leftover::find(&dir.path())?.needed_by()?);
    }
    Ok(all
        .into_iter()
        .map(|(session, need)| Needing {
            local: session.key.local().to_string(),
            remote: session.key.remote().to_string(),
            why: need.words(),
        })
        .collect())
}

/// Returns the directories of the instances for other network namespaces, as far as they exist.
/// Their programs are attached by links, which end with their pins.
fn instances(config: &Config) -> impl Iterator<Item = PathBuf> {
    let Places { run, pins } = config.places();
    [pins, run].into_iter().filter(|dir| dir.exists())
}

/// Stops the daemon, if one runs, and keeps others from starting.
fn stop(found: &Leftover, pin_dir: &Path) -> Result<Alone, UninstallError> {
    let runs = || UninstallError::Runs {
        path: pin_dir.into(),
    };
    let pid = match found.lock()? {
        Ok(alone) => return Ok(alone),
        Err(pid) => pid.ok_or_else(runs)?,
    };
    // An error means that the daemon has ended by itself.
    let _ = kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM);
    let until = Instant::now() + STOPPING;
    while Instant::now() < until {
        if let Ok(alone) = found.lock()? {
            return Ok(alone);
        }
        thread::sleep(LOOK);
    }
    Err(runs())
}

/// Returns descriptions of everything that can be removed.
fn removes(config: &Config, found: &Leftover) -> Result<Vec<String>, UninstallError> {
    let mut all = Vec::new();
    if let Err(Some(pid)) = found.lock()? {
        all.push(format!("the process dyscod ({pid}): it is stopped"));
    }
    let programs = found.interfaces();
    all.extend(programs.map(|(name, how)| format!("the programs on {name} ({how})")));
    if !found.is_nothing() {
        let dir = config.data_plane.pin_dir.display();
        all.push(format!("the pinned maps and programs in {dir}"));
    }
    let ports = release_ports(&config.removal, true)?;
    if !ports.is_empty() {
        all.push(format!(
            "the ports {ports} from net.ipv4.ip_local_reserved_ports"
        ));
    }
    let inner = instances(config).map(|dir| dir.display().to_string());
    all.extend(inner.map(|dir| format!("what other network namespaces have in {dir}")));
    let there = files(config).into_iter().filter(|path| path.exists());
    all.extend(there.map(|path| shown(&path)));
    Ok(all)
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// Returns the files of dyscod's state in this directory.
fn state_files(state: &Path) -> Vec<PathBuf> {
    let names = [
        "changes",
        "changes.new",
        "fleet",
        "fleet.new",
        "history",
        "history.new",
        "reserved-ports",
        "revoked",
        "revoked.new",
        "tuned",
        "tuned.new",
    ];
    let mut all: Vec<PathBuf> = names.iter().map(|name| state.join(name)).collect();
    all.extend(of_handlers(state));
    all
}

/// Returns the files that handlers have left. Each is named by the link to its handler.
fn of_handlers(state: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(state).into_iter().flatten().flatten();
    let its = |path: &PathBuf| {
        let name = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"dysco-s"));
        name && path
            .extension()
            .is_some_and(|ending| ["sock", "pid", "user"].iter().any(|its| ending == *its))
    };
    entries.map(|entry| entry.path()).filter(its).collect()
}

/// Returns the links to the handlers whose files are in this directory.
fn handlers(state: &Path) -> Vec<String> {
    let stems = of_handlers(state).into_iter();
    let stems = stems.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()));
    let mut links: Vec<String> = stems.collect();
    links.sort_unstable();
    links.dedup();
    links
}

/// Returns the files that dyscod writes while it runs, and its directories, which are removed if
/// they are empty then.
fn files(config: &Config) -> Vec<PathBuf> {
    let state = &config.removal.state_dir;
    let mut all = state_files(state);
    let sockets = [
        &config.api.socket,
        &config.shim.socket,
        &config.metrics.socket,
    ];
    all.extend(sockets.into_iter().cloned());
    all.push(state.clone());
    let above = sockets.into_iter().filter_map(|socket| socket.parent());
    let own = above.filter(|dir| dir.starts_with("/run/") && *dir != Path::new("/run"));
    all.extend(own.map(Path::to_path_buf));
    all.sort_unstable();
    all.dedup();
    // The contents of a directory precede the directory.
    all.reverse();
    all
}

fn remove(path: &Path) -> Result<(), UninstallError> {
    let removed = match path.symlink_metadata() {
        Ok(found) if found.is_dir() => match fs::remove_dir(path) {
            // The directory contains files of other programs.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed,
        },
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(UninstallError::File {
            path: path.into(),
            source,
        }),
        _ => Ok(()),
    }
}

fn text(report: &Report) -> String {
    let mut rows = table(["LOCAL", "REMOTE", "WHY"]);
    for session in &report.sessions {
        let Needing { local, remote, why } = session;
        rows.add_row([local.as_str(), remote, why]);
    }
    let mut removed = match (report.removes.is_empty(), report.dry_run) {
        (true, _) if report.stays.is_empty() => {
            "nothing of Dysco is on this host but keys and configuration".to_owned()
        }
        (true, _) => "nothing of Dysco on this host can be removed now".to_owned(),
        (false, true) => format!("would remove:\n  {}", report.removes.join("\n  ")),
        (false, false) => format!("removed:\n  {}", report.removes.join("\n  ")),
    };
    if !report.stays.is_empty() {
        let stays = report.stays.iter();
        let stays = stays.map(|Staying { what, why }| format!("\n  {what}: {why}"));
        let stays: String = stays.collect();
        removed = format!(
            "{removed}\nstays:{stays}\nrun 'dyscoctl uninstall' again when these are empty"
        );
    }
    if report.tuned > 0 {
        let tuned = report.tuned;
        removed = format!("{removed}\ntuned sockets that keep their values: {tuned}");
        if report.dry_run {
            removed += " (run 'dyscoctl tune --restore --filter tuned=yes' first)";
        }
    }
    if let Some(path) = &report.unknown {
        removed = format!(
            "{removed}\nthe sessions of another release's data plane ({}) are unknown: those that need \
             it stop",
            path.display()
        );
    }
    match report.sessions.is_empty() {
        true => removed,
        false => format!(
            "{removed}\n{}",
            section("Sessions that need Dysco", &rows).trim_end()
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_is_named_with_the_reason() {
        let mut report = Report::default();
        assert!(text(&report).starts_with("nothing of Dysco is on this host but"));
        report.stays.push(Staying {
            what: "/sys/fs/cgroup/dysco/run-7-0".into(),
            why: "process 7 is in it".into(),
        });
        let reported = text(&report);
        assert!(!reported.contains("is on this host but"), "{reported}");
        let named = "stays:\n  /sys/fs/cgroup/dysco/run-7-0: process 7 is in it\n";
        assert!(reported.contains(named), "{reported}");
        report.removes.push("/run/dysco".into());
        assert!(text(&report).starts_with("removed:\n  /run/dysco\nstays:"));
    }

    #[test]
    fn tuned_sockets_are_mentioned_with_the_remedy_while_there_is_one() {
        let mut report = Report {
            dry_run: true,
            ..Report::default()
        };
        assert!(!text(&report).contains("tuned"));
        report.tuned = 2;
        let planned = text(&report);
        assert!(planned.contains("keep their values: 2 (run 'dyscoctl tune"));
        report.dry_run = false;
        assert!(text(&report).ends_with("tuned sockets that keep their values: 2"));
    }

    #[test]
    fn every_file_of_the_state_goes_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let own = [
            "changes",
            "fleet",
            "fleet.new",
            "history",
            "reserved-ports",
            "revoked",
            "revoked.new",
            "tuned",
            "dysco-s1.sock",
            "dysco-s1.pid",
            "dysco-s2.user",
        ];
        for name in own.iter().chain(&["notes", "dysco-s1.txt", "other.pid"]) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(handlers(dir.path()), ["dysco-s1", "dysco-s2"]);
        for path in state_files(dir.path()) {
            remove(&path).unwrap();
        }
        let entries = fs::read_dir(dir.path()).unwrap();
        let mut left: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["dysco-s1.txt", "notes", "other.pid"]);
    }

    #[test]
    fn a_directory_goes_when_it_is_empty_and_no_sooner() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, others) = (dir.path().join("state"), dir.path().join("theirs"));
        fs::create_dir(&inside).unwrap();
        fs::write(&others, "").unwrap();
        for path in [&inside, &inside, &dir.path().to_path_buf()] {
            remove(path).unwrap();
        }
        assert!(!inside.exists() && others.exists());
    }
}
