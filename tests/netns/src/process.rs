//! Programs on a host. They die with the host's thread, and thereby with the test.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill, killpg, sigprocmask};
use nix::unistd::Pid;

use crate::{clean, wait};

/// A program to be run on a host.
#[derive(Clone, Debug)]
pub struct Program {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    name: String,
}

impl Program {
    /// Creates the program at a path, or with a name that is searched.
    pub fn new(program: impl Into<OsString>) -> Program {
        let program = program.into();
        let name = Path::new(&program)
            .file_name()
            .map(|n| n.to_string_lossy().into_owned());
        Program {
            name: name.unwrap_or_default(),
            program,
            args: vec![],
            env: vec![],
        }
    }

    /// Adds one argument.
    pub fn arg(mut self, arg: impl Into<OsString>) -> Program {
        self.args.push(arg.into());
        self
    }

    /// Adds arguments.
    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Program {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Program {
        self.env.push((key.into(), value.into()));
        self
    }

    /// Sets the name of the log. The default is the program's name.
    pub fn named(mut self, name: &str) -> Program {
        self.name = name.into();
        self
    }

    /// Returns the same program, started by another program that takes it as arguments.
    pub fn behind(mut self, runner: &Path, words: &[&str]) -> Program {
        let own = std::mem::replace(&mut self.program, runner.into());
        let words = words.iter().map(OsString::from);
        self.args = words
            .chain([own])
            .chain(std::mem::take(&mut self.args))
            .collect();
        self
    }

    /// Name of the program's log.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(k, v)| (k, v)));
        // A user's PATH may lack the administrator's programs.
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", path + ":/usr/local/sbin:/usr/sbin:/sbin");
        command.process_group(0);
        // SAFETY: the closure only makes system calls, as a forked child may.
        unsafe { command.pre_exec(tie_to_parent) };
        command
    }

    pub(crate) fn output(&self, input: &str) -> Result<String> {
        let ran = self.run(input)?;
        let Ran {
            code,
            stdout,
            stderr,
        } = &ran;
        ensure!(
            ran.code == Some(0),
            "{self}: exit code {code:?}: {} {stdout}",
            stderr.trim()
        );
        Ok(ran.stdout)
    }

    pub(crate) fn run(&self, input: &str) -> Result<Ran> {
        let what = || format!("failed to run {self}");
        let mut command = self.command();
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().with_context(what)?;
        let mut stdin = child.stdin.take().context("no pipe to the child")?;
        // A program that does not read its input may have closed it.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let out = child.wait_with_output().with_context(what)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
        Ok(Ran {
            code: out.status.code(),
            stdout,
            stderr,
        })
    }
}

/// Result of a program that ran to its end.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.program.to_string_lossy())?;
        self.args
            .iter()
            .try_for_each(|a| write!(f, " {}", a.to_string_lossy()))
    }
}

/// Runs in the child. The child then dies with the thread that started it, receives the signals
/// that the test's threads may block, and may open many sockets.
fn tie_to_parent() -> std::io::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)?;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let files = hard.min(1 << 18);
    Ok(setrlimit(Resource::RLIMIT_NOFILE, files, hard)?)
}

/// A running program. Dropping it kills the program and waits for its end.
pub struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    pub(crate) fn spawn(program: Program, log: PathBuf) -> Result<Process> {
        let open = || File::options().create(true).append(true).open(&log);
        let out = open().with_context(|| format!("failed to open {}", log.display()))?;
        let err = out.try_clone().context("failed to duplicate a log")?;
        let mut command = program.command();
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = command
            .spawn()
            .with_context(|| format!("failed to start {program}"))?;
        let process = Process {
            child,
            name: program.name,
            log,
        };
        clean::remember_child(process.pid());
        Ok(process)
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Output of the program so far.
    pub fn log(&self) -> String {
        fs::read(&self.log)
            .map(|b| String::from_utf8_lossy(&b).into_owned())
            .unwrap_or_default()
    }

    /// Waits until `ready` holds. Returns an error with the log's end if the program ends before,
    /// or 20 s pass.
    pub fn wait_ready(&mut self, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let mut ended = None;
        let waited = wait::until(what, Duration::from_secs(20), || {
            ended = self.child.try_wait().ok().flatten();
            (ended.is_some() || ready()).then_some(())
        });
        match (waited, ended) {
            (Ok(()), None) => Ok(()),
            (_, Some(status)) => bail!("{} ended: {status}\n{}", self.name, self.log_tail()),
            (Err(error), None) => Err(error.context(self.log_tail())),
        }
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("failed to signal {}", self.name))
    }

    /// Kills the program as a crash would, and its children in the same process group.
    pub fn kill(&mut self) -> Result<ExitStatus> {
        // The program may have ended already, which is equally good.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        self.child
            .wait()
            .with_context(|| format!("failed to wait for {}", self.name))
    }

    /// Asks the program to end, and waits. Returns an error unless it ends successfully within 10
    /// s.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        let status = wait::until("its end", Duration::from_secs(10), || {
            self.child.try_wait().ok().flatten()
        })
        .with_context(|| format!("{} does not stop", self.name))?;
        let asked = status.signal() == Some(Signal::SIGTERM as i32);
        ensure!(
            status.success() || asked,
            "{} ended: {status}\n{}",
            self.name,
            self.log_tail()
        );
        Ok(())
    }

    /// True if the program still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Exit status of the program; `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<_> = log.lines().rev().take(30).collect();
        let tail: Vec<_> = lines.into_iter().rev().collect();
        format!("the end of {}:\n{}", self.log.display(), tail.join("\n"))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        clean::forget_child(self.pid());
        let _ = self.kill();
    }
}
