//! A host: a thread in its own namespaces, and the processes that are started from it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::isolate::isolate;
use crate::process::{Process, Program, Ran};

type Job = Box<dyn FnOnce() + Send>;

/// A host. Dropping it kills its processes; its namespaces end with the last of them.
pub struct Host {
    name: String,
    dir: PathBuf,
    netns: PathBuf,
    jobs: Option<Sender<Job>>,
    worker: Option<JoinHandle<()>>,
    runtime: OnceLock<tokio::runtime::Runtime>,
}

impl Host {
    /// Creates a host with only a loopback device. Its logs are written to `dir`.
    pub fn new(name: &str, dir: &Path) -> Result<Host> {
        fs::create_dir_all(dir).with_context(|| format!("failed to make {}", dir.display()))?;
        let (jobs, queue) = channel::<Job>();
        let (ready, made) = channel();
        let worker = thread::Builder::new()
            .name(format!("host {name}"))
            .spawn(move || {
                let made = isolate();
                let failed = made.is_err();
                let here = format!("/proc/{}/task/{}/ns/net", std::process::id(), tid());
                let _ = ready.send(made.map(|()| PathBuf::from(here)));
                if !failed {
                    queue.into_iter().for_each(|job| job());
                }
            })
            .context("failed to start a host's thread")?;
        let netns = made
            .recv()
            .context("a host's thread died")?
            .with_context(|| format!("failed to make host {name}"))?;
        let host = Host {
            name: name.into(),
            dir: dir.into(),
            netns,
            jobs: Some(jobs),
            worker: Some(worker),
            runtime: OnceLock::new(),
        };
        host.output("ip", &["link", "set", "lo", "up"])?;
        Ok(host)
    }

    /// Name of the host.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Folder of the host's logs and configurations, on the machine's own file system.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// File that names the host's network namespace while the host lives.
    pub fn netns(&self) -> &Path {
        &self.netns
    }

    /// Runs `f` on the host and returns its result.
    ///
    /// # Panics
    /// If `f` panics.
    pub fn run<T: Send + 'static>(&self, f: impl FnOnce() -> T + Send + 'static) -> T {
        let (tx, rx) = channel();
        let job = Box::new(move || {
            // The worker must survive a panic, because its end would kill the host.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
            let _ = tx.send(done);
        });
        let sent = self
            .jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(job).is_ok());
        assert!(sent, "host {} is gone", self.name);
        match rx.recv() {
            Ok(Ok(value)) => value,
            Ok(Err(panic)) => std::panic::resume_unwind(panic),
            Err(_) => panic!("host {} is gone", self.name),
        }
    }

    /// Starts a thread on the host.
    pub fn thread<T: Send + 'static>(
        &self,
        name: &str,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        let name = format!("{} {name}", self.name);
        // A new thread is in the namespaces of the thread that starts it.
        self.run(move || {
            thread::Builder::new()
                .name(name)
                .stack_size(256 << 10)
                .spawn(f)
        })
        .context("failed to start a thread on a host")
    }

    /// Returns a tokio runtime whose tasks run on the host.
    pub fn runtime(&self) -> &tokio::runtime::Runtime {
        self.runtime.get_or_init(|| {
            self.run(|| {
                tokio::runtime::Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()
                    .expect("a runtime needs only threads and an epoll")
            })
        })
    }

    /// Starts a program on the host. Its output goes to a log in [`Host::dir`].
    pub fn spawn(&self, program: Program) -> Result<Process> {
        let log = self.dir.join(format!("{}.log", program.name()));
        self.run(move || Process::spawn(program, log))
            .with_context(|| format!("on host {}", self.name))
    }

    /// Runs a short command to its end. Returns its standard output, or an error with its messages.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<String> {
        self.input(program, args, "")
    }

    /// Limits the rate of a device, in the syntax of tc. The queue has room for `limit`; `burst`
    /// may be sent at once, after a corresponding pause.
    pub fn limit(&self, device: &str, rate: &str, burst: &str, limit: &str) -> Result<()> {
        let bucket = ["tbf", "rate", rate, "burst", burst, "limit", limit];
        let words = ["qdisc", "replace", "dev", device, "root"];
        self.output("tc", &[&words[..], &bucket].concat()).map(drop)
    }

    /// Runs a short command to its end. A nonzero exit code is no error.
    pub fn ran(&self, program: &str, args: &[&str]) -> Result<Ran> {
        let command = Program::new(program).args(args);
        self.aside(move || command.run(""))
            .with_context(|| format!("on host {}", self.name))
    }

    /// Runs a short command as [`Host::output`] does, with `input` as its standard input.
    pub fn input(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        let command = Program::new(program).args(args);
        let input = input.to_owned();
        self.aside(move || command.output(&input))
            .with_context(|| format!("on host {}", self.name))
    }

    /// Runs `f` on the host in parallel with everything else there, because a command may take some
    /// time.
    fn aside<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let ended = self.thread("command", f)?.join();
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Sets `net.…` or another sysctl of this host, written with dots.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<()> {
        let path = format!("/proc/sys/{}", key.replace('.', "/"));
        let (shown, value) = (
            format!("{key} = {value} on {}", self.name),
            value.to_owned(),
        );
        self.run(move || fs::write(path, value))
            .with_context(|| format!("failed to set {shown}"))
    }

    /// True if a socket listens on a TCP port, for IPv4 or IPv6. This reads the kernel's tables: a
    /// probing connection would count as traffic.
    pub fn listens(&self, port: u16) -> bool {
        let local = format!(":{port:04X}");
        self.run(move || {
            ["tcp", "tcp6"].iter().any(|table| {
                let text = fs::read_to_string(format!("/proc/thread-self/net/{table}"));
                text.unwrap_or_default().lines().any(|line| {
                    let mut words = line.split_whitespace().skip(1);
                    words.next().is_some_and(|at| at.ends_with(&local))
                        && words.nth(1) == Some("0A")
                })
            })
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        drop(self.jobs.take());
        if let Some(worker) = self.worker.take() {
            let _ = worker.join();
        }
    }
}

fn tid() -> i32 {
    nix::unistd::gettid().as_raw()
}
