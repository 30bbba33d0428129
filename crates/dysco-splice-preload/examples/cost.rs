//! What the shim costs: requests per second through HAProxy (mode http,
//! keep-alive) without and with it, in turn, and HAProxy's processor time for a
//! request. Needs root, haproxy and wrk.
//!
//!     cargo run --release -p dysco-splice-preload --example cost [ROUNDS]
//!
//! Prints a line for each round, and the medians of the ratios.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CONFIG: &str = "\
global\n nbthread 1\n
defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n
 option splice-request\n option splice-response\n http-reuse always\n";
const PROXY: &str = "listen p\n bind 127.0.0.1:7003\n server s 127.0.0.1:7004\n";
const ORIGIN: &str = "listen o\n bind 127.0.0.1:7004\n http-request return status 200 content-type text/plain string \"0123456789\"\n";

/// One run: requests each second, and microseconds of the proxy for each.
struct Cost {
    rate: f64,
    cpu_us: f64,
}

fn main() -> Result<()> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(8), |n| n.parse())?;
    // SAFETY: no pointers; this process and its children get a network of their own.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err("cannot make a network namespace: run it as root".into());
    }
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let dir = tempfile::tempdir()?;
    let library = library()?;
    let origin = Haproxy::start(dir.path(), "origin", ORIGIN, None)?;
    let (mut rates, mut costs) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        // The order turns, so that neither always runs on the warmer machine.
        let (first, second) = if round % 2 == 0 {
            (None, Some(&library))
        } else {
            (Some(&library), None)
        };
        let one = measure(dir.path(), first.map(PathBuf::as_path))?;
        let two = measure(dir.path(), second.map(PathBuf::as_path))?;
        let (bare, shim) = if first.is_none() {
            (one, two)
        } else {
            (two, one)
        };
        rates.push(shim.rate / bare.rate);
        costs.push(shim.cpu_us / bare.cpu_us);
        println!(
            "round {round}: bare {:.0}/s {:.2} us, shim {:.0}/s {:.2} us, rate x {:.4}, cpu x {:.4}",
            bare.rate,
            bare.cpu_us,
            shim.rate,
            shim.cpu_us,
            shim.rate / bare.rate,
            shim.cpu_us / bare.cpu_us
        );
    }
    drop(origin);
    println!(
        "median over {rounds} rounds: rate x {:.4}, cpu for a request x {:.4}",
        median(rates),
        median(costs)
    );
    Ok(())
}

fn measure(dir: &Path, library: Option<&Path>) -> Result<Cost> {
    let proxy = Haproxy::start(dir, "proxy", PROXY, library)?;
    let before = proxy.cpu_ticks()?;
    let out = Command::new("wrk")
        .args(["-t1", "-c32", "-d3s", "http://127.0.0.1:7003/"])
        .output()
        .map_err(|e| format!("cannot run wrk: {e}"))?;
    let ticks = proxy.cpu_ticks()? - before;
    let text = String::from_utf8(out.stdout)?;
    let word = |key: &str, at: usize| -> Result<f64> {
        let line = text
            .lines()
            .find(|l| l.contains(key))
            .ok_or_else(|| format!("wrk said: {text}"))?;
        Ok(line
            .split_whitespace()
            .nth(at)
            .unwrap_or_default()
            .parse()?)
    };
    Ok(Cost {
        rate: word("Requests/sec:", 1)?,
        cpu_us: ticks as f64 * 10_000.0 / word("requests in", 0)?,
    })
}

struct Haproxy(Child);

impl Haproxy {
    fn start(dir: &Path, name: &str, section: &str, library: Option<&Path>) -> Result<Haproxy> {
        let file = dir.join(name);
        std::fs::write(&file, format!("{CONFIG}{section}"))?;
        let mut command = Command::new("haproxy");
        command
            .arg("-q")
            .arg("-db")
            .arg("-f")
            .arg(&file)
            .stdin(Stdio::null());
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let child = command
            .spawn()
            .map_err(|e| format!("cannot run haproxy: {e}"))?;
        let port = if section == PROXY { 7003 } else { 7004 };
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::yield_now();
        }
        Ok(Haproxy(child))
    }

    /// User and system time so far, in hundredths of a second.
    fn cpu_ticks(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        let after = stat.rsplit(')').next().unwrap_or_default();
        let field = |i: usize| {
            after
                .split_whitespace()
                .nth(i)
                .unwrap_or_default()
                .parse::<u64>()
        };
        Ok(field(11)? + field(12)?)
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn library() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let deps = exe
        .ancestors()
        .nth(2)
        .ok_or("no build directory")?
        .join("deps");
    let library = deps.join("libdysco_splice_preload.so");
    if !library.exists() {
        return Err(format!("{} is not built", library.display()).into());
    }
    Ok(library)
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?}: {status}").into())
    }
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    let mid = v.len() / 2;
    if v.is_empty() {
        f64::NAN
    } else if v.len() % 2 == 1 {
        v[mid]
    } else {
        (v[mid - 1] + v[mid]) / 2.0
    }
}
