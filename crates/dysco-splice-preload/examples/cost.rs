//! Measures the cost of the shim: requests per second through HAProxy (mode http, keep-alive)
//! without and with the shim, in turn, and HAProxy's processor time for a request. Needs root,
//! haproxy and wrk.
//!
//!     cargo run --release -p dysco-splice-preload --example cost [ROUNDS]
//!
//! Three proxies run and take turns: bare, bare again, and with the shim. The comparison of the
//! second with the first is the control. It shows the difference of two equal proxies on this
//! machine now; a cost below that difference cannot be measured.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CONFIG: &str = "\
global\n nbthread 1\n
defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n
 option splice-request\n option splice-response\n http-reuse always\n";
const ORIGIN_PORT: u16 = 7003;
const ORIGIN: &str = "http-request return status 200 content-type text/plain string \"0123456789\"";

/// Result of one run: requests a second, and microseconds of the proxy's processor time for each.
#[derive(Clone, Copy, Default)]
struct Cost {
    rate: f64,
    cpu_us: f64,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0}/s {:.2} us", self.rate, self.cpu_us)
    }
}

fn main() -> Result<()> {
    let rounds: usize = std::env::args().nth(1).map_or(Ok(20), |n| n.parse())?;
    // SAFETY: no pointers; this process and its children get a separate network namespace.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err("cannot make a network namespace: run it as root".into());
    }
    run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
    let dir = tempfile::tempdir()?;
    let library = library()?;
    let _origin = Haproxy::start(dir.path(), ORIGIN_PORT, ORIGIN, None)?;
    let server = format!("server s 127.0.0.1:{ORIGIN_PORT}");
    let start = |port, library| Haproxy::start(dir.path(), port, &server, library);
    let proxies = [
        start(7004, None)?,
        start(7005, None)?,
        start(7006, Some(&library))?,
    ];
    let (mut rates, mut costs) = ([vec![], vec![]], [vec![], vec![]]);
    for round in 0..rounds {
        let mut got = [Cost::default(); 3];
        // The order rotates, so that none of the proxies always runs on the warmer machine.
        for i in (0..3).map(|i| (i + round) % 3) {
            got[i] = measure(&proxies[i])?;
        }
        for i in 0..2 {
            rates[i].push(got[i + 1].rate / got[0].rate);
            costs[i].push(got[i + 1].cpu_us / got[0].cpu_us);
        }
        println!(
            "round {round}: bare {}, bare {}, shim {}",
            got[0], got[1], got[2]
        );
    }
    for (name, rates, costs) in [
        ("control", &rates[0], &costs[0]),
        ("shim", &rates[1], &costs[1]),
    ] {
        println!(
            "{name}: rate x {}, processor time for a request x {}",
            spread(rates),
            spread(costs)
        );
    }
    Ok(())
}

fn measure(proxy: &Haproxy) -> Result<Cost> {
    let before = proxy.cpu_ticks()?;
    let out = Command::new("wrk")
        .args([
            "-t1",
            "-c32",
            "-d1s",
            &format!("http://127.0.0.1:{}/", proxy.port),
        ])
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

struct Haproxy {
    child: Child,
    port: u16,
}

impl Haproxy {
    fn start(dir: &Path, port: u16, section: &str, library: Option<&Path>) -> Result<Haproxy> {
        let file = dir.join(port.to_string());
        std::fs::write(
            &file,
            format!("{CONFIG}listen l\n bind 127.0.0.1:{port}\n {section}\n"),
        )?;
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
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            std::thread::yield_now();
        }
        Ok(Haproxy { child, port })
    }

    /// Returns the user and system time so far, in hundredths of a second.
    fn cpu_ticks(&self) -> Result<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
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
        let _ = self.child.kill();
        let _ = self.child.wait();
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

/// Returns the median, and the bounds of the middle half.
fn spread(v: &[f64]) -> String {
    let mut v = v.to_vec();
    v.sort_by(f64::total_cmp);
    let at = |part: usize| v.get((v.len() * part / 4).min(v.len().saturating_sub(1)));
    match (at(1), at(2), at(3)) {
        (Some(low), Some(mid), Some(high)) => format!("{mid:.4} ({low:.4} to {high:.4})"),
        _ => "nothing".into(),
    }
}
