//! `dyscoctl run`: replaces itself by a program that has the shim loaded, or runs with services.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use dysco_api::{Exit, Reply, Request, RunRequest, ServiceSpec};
use dysco_proxy::loader::{Unloadable, unloadable};

use super::context::{Context, SOCKET_VARIABLE};
use super::error::RunError;
use super::exit::CliError;
use super::shim::{INSTALLED, REPORTS_VARIABLE, SHIM, SHIM_VARIABLE};

/// Description of the environment, for `--help`.
pub(crate) const HELP: &str = "\
Environment:
  DYSCO_SHIM_LIB     the shim's file; without, it is looked for beside dyscoctl, in ../lib and
                     ../lib/dysco from there, and in /usr/lib/dysco
  DYSCO_SHIM_SOCKET  where the shim reports to; without, the shim's socket of the dyscod that
                     --socket or DYSCO_API_SOCKET names, or /run/dysco/shim.sock
  DYSCO_API_SOCKET   the dyscod to ask, as by --socket; dysco_delta() of the program asks it too";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Services, then -- if there are some, then the program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "+SERVICE|PROGRAM"
    )]
    words: Vec<OsString>,
}

/// Words before the program that name services.
struct Words<'a> {
    services: Vec<ServiceSpec>,
    program: &'a OsString,
    arguments: &'a [OsString],
}

impl Words<'_> {
    /// Divides the words of a command line.
    fn of(all: &[OsString]) -> Result<Words<'_>, RunError> {
        let is_service = |word: &&OsString| word.as_bytes().first() == Some(&b'+');
        let count = all.iter().take_while(is_service).count();
        let (services, rest) = all.split_at(count);
        let services = services.iter().map(|word| {
            let text = word.to_string_lossy();
            text[1..].parse().map_err(RunError::Service)
        });
        let services: Vec<_> = services.collect::<Result<_, _>>()?;
        let rest = match rest {
            [dashes, rest @ ..] if !services.is_empty() && dashes == "--" => rest,
            rest => rest,
        };
        match rest {
            [program, arguments @ ..] => Ok(Words {
                services,
                program,
                arguments,
            }),
            [] => Err(RunError::NoProgram),
        }
    }
}

/// Runs a program under the shim, or with services. Returns only on failure.
pub(crate) fn run(context: &Context, args: Args) -> Result<Exit, CliError> {
    let words = Words::of(&args.words)?;
    if !words.services.is_empty() {
        return with_services(context, words);
    }
    let Words {
        program, arguments, ..
    } = words;
    let shim = find(&candidates())?;
    let preload = preload(&shim, env::var_os("LD_PRELOAD").as_deref())?;
    let mut command = Command::new(program);
    command.args(arguments);
    let file = located(program, env::var_os("PATH").as_deref());
    let why = file.and_then(|file| unloadable(&file));
    if let Some(why) = why {
        eprintln!("{}", warning(program, why));
    }
    // The loader of musl ends the program, because it cannot load the shim. A static program may
    // start others, which have a loader.
    if why != Some(Unloadable::Musl) {
        command.env("LD_PRELOAD", preload);
    }
    if context.named {
        if env::var_os(REPORTS_VARIABLE).is_none() {
            command.env(REPORTS_VARIABLE, reports_to(context)?);
        }
        // The program may change its directory before it uses the socket.
        let socket = std::path::absolute(&context.socket);
        command.env(SOCKET_VARIABLE, socket.as_ref().unwrap_or(&context.socket));
    }
    let source = command.exec();
    let program = program.to_string_lossy().into_owned();
    Err(RunError::Exec { program, source }.into())
}

/// Returns the file of a program that the system would start (execvp(3)).
fn located(program: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let executable = |file: &PathBuf| {
        let found = file.metadata();
        found.is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    let mut files = env::split_paths(path?).map(|dir| dir.join(program));
    files.find(executable)
}

fn warning(program: &OsStr, why: Unloadable) -> String {
    format!(
        "warning: {} {why}\nhint: dyscod watches it from outside; declare its listener with \
         --listen if it only passes bytes on",
        program.display()
    )
}

/// Lets dyscod give this process services, and replaces it by the program.
fn with_services(context: &Context, words: Words<'_>) -> Result<Exit, CliError> {
    let services = words.services;
    let Reply::Run(_) = context
        .ask(&Request::Run(RunRequest { services }))?
        .reply()?
    else {
        return Err(CliError::Unexpected);
    };
    let source = Command::new(words.program).args(words.arguments).exec();
    let program = words.program.to_string_lossy().into_owned();
    Err(RunError::Exec { program, source }.into())
}

/// Returns the socket that shims of the selected dyscod report to. With another socket that
/// dyscod would never receive reports about the program, and nothing would explain why its
/// sessions cannot be removed.
fn reports_to(context: &Context) -> Result<PathBuf, CliError> {
    let Reply::Status(status) = context.ask(&Request::Status)?.reply()? else {
        return Err(CliError::Unexpected);
    };
    let none = || RunError::NoReports(context.socket.clone());
    Ok(status.shim_socket.ok_or_else(none)?)
}

/// Returns the paths at which the shim may be: that of the environment, or those beside this
/// program and the installed one.
fn candidates() -> Vec<PathBuf> {
    if let Some(reported) = env::var_os(SHIM_VARIABLE) {
        return vec![reported.into()];
    }
    let own = env::current_exe().ok();
    let beside = own.as_deref().and_then(Path::parent);
    let near = beside.into_iter().flat_map(|dir| {
        let lib = dir.parent().unwrap_or(dir).join("lib");
        [dir.join(SHIM), lib.join(SHIM), lib.join("dysco").join(SHIM)]
    });
    near.chain([Path::new(INSTALLED).join(SHIM)]).collect()
}

fn find(candidates: &[PathBuf]) -> Result<PathBuf, RunError> {
    // The path is made absolute, because the program may change its directory before it starts
    // others.
    let found = candidates.iter().find(|path| path.is_file());
    if let Some(path) = found.and_then(|path| path.canonicalize().ok()) {
        return Ok(path);
    }
    let places: Vec<_> = candidates.iter().map(|p| p.display().to_string()).collect();
    Err(RunError::NoShim {
        places: places.join(", "),
    })
}

/// Returns the loader's list: the shim, and then the previous contents.
fn preload(shim: &Path, before: Option<&OsStr>) -> Result<OsString, RunError> {
    let bytes = shim.as_os_str().as_bytes();
    if bytes.iter().any(|b| b.is_ascii_whitespace() || *b == b':') {
        return Err(RunError::BadPath(shim.into()));
    }
    let mut list = shim.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        list.push(":");
        list.push(before);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_come_before_the_program() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        let line = words("+crypt +compress=level=9 -- nc -- +x");
        let read = Words::of(&line).unwrap();
        let services: Vec<_> = read.services.iter().map(ToString::to_string).collect();
        assert_eq!(services, ["crypt", "compress=level=9"]);
        assert_eq!(read.program, "nc");
        assert_eq!(read.arguments, ["--", "+x"]);
        // The dashes are not needed.
        let line = words("+count nc");
        assert_eq!(Words::of(&line).unwrap().program, "nc");
        // Without services they are not dropped.
        let line = words("haproxy -- a");
        assert_eq!(Words::of(&line).unwrap().arguments, ["--", "a"]);
        for bad in ["+count", "+count --", "+ nc", "+Count nc"] {
            assert!(Words::of(&words(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_program_is_that_of_the_search_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("tool");
        let path = Some(dir.path().as_os_str());
        let of = |name: &str| located(OsStr::new(name), path);
        assert_eq!(of("./tool"), Some("./tool".into()));
        std::fs::write(&file, "").unwrap();
        assert_eq!(of("tool"), None, "it is not executable");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        assert_eq!(of("tool"), Some(file));
        assert_eq!(located(OsStr::new("tool"), None), None);
    }

    #[test]
    fn what_was_preloaded_stays_so() {
        let shim = Path::new("/usr/lib/dysco/shim.so");
        let with = |before: Option<&str>| preload(shim, before.map(OsStr::new)).unwrap();
        assert_eq!(with(None), "/usr/lib/dysco/shim.so");
        assert_eq!(with(Some("")), "/usr/lib/dysco/shim.so");
        assert_eq!(with(Some("a.so")), "/usr/lib/dysco/shim.so:a.so");
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        for bad in ["/a b/shim.so", "/a:b/shim.so"] {
            assert!(preload(Path::new(bad), None).is_err());
        }
    }

    #[test]
    fn without_a_shim_every_place_is_named() {
        let error = find(&["/nowhere/a.so".into(), "/nowhere/b.so".into()]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("/nowhere/a.so, /nowhere/b.so"), "{text}");
        assert!(text.contains(SHIM_VARIABLE), "{text}");
    }
}
