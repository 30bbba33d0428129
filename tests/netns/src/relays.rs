//! Proxies into which no shim can be loaded, or into which none was loaded.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};

use crate::{Host, Process, Program};

/// nginx's module for TCP, at its path in Debian.
const STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

/// Starts socat, which has one child per session, and uses recv and write.
pub fn socat(host: &Host, listen: SocketAddr, server: SocketAddr) -> Result<Process> {
    socat_by(host, listen, server, |program| program)
}

/// Starts socat, after `wrap` has changed its command.
pub fn socat_by(
    host: &Host,
    listen: SocketAddr,
    server: SocketAddr,
    wrap: impl FnOnce(Program) -> Program,
) -> Result<Process> {
    let program = Program::new("socat").args([
        "-b65536".to_owned(),
        // By default it ends a session half a second after one end has closed, if the other end is
        // silent for that time.
        "-t600".to_owned(),
        format!("TCP4-LISTEN:{},reuseaddr,fork", listen.port()),
        format!("TCP4:{server}"),
    ]);
    start(host, wrap(program).named("socat"), listen)
}

/// Starts nginx as a TCP proxy: a master and one worker, which use recv and writev.
pub fn nginx_stream(host: &Host, listen: SocketAddr, server: SocketAddr) -> Result<Process> {
    nginx_stream_of(host, listen, server, 1)
}

/// Starts nginx as a TCP proxy, after `wrap` has changed its command.
pub fn nginx_stream_by(
    host: &Host,
    listen: SocketAddr,
    server: SocketAddr,
    wrap: impl FnOnce(Program) -> Program,
) -> Result<Process> {
    let program = nginx_stream_command(host, listen, server, 1)?;
    start(host, wrap(program).named("stream"), listen)
}

/// Starts nginx as a TCP proxy with this number of workers, each with its own listener.
pub fn nginx_stream_of(
    host: &Host,
    listen: SocketAddr,
    server: SocketAddr,
    workers: usize,
) -> Result<Process> {
    let program = nginx_stream_command(host, listen, server, workers)?;
    start(host, program.named("stream"), listen)
}

fn nginx_stream_command(
    host: &Host,
    listen: SocketAddr,
    server: SocketAddr,
    workers: usize,
) -> Result<Program> {
    ensure!(
        Path::new(STREAM).exists(),
        "{STREAM} is missing: run `cargo xtask setup`, or install libnginx-mod-stream"
    );
    let file = host.dir().join("stream.conf");
    let shared = if workers > 1 { " reuseport" } else { "" };
    let text = format!(
        "load_module {STREAM};
daemon off; user root; worker_processes {workers}; pid /run/stream.pid; error_log stderr notice;
events {{ worker_connections 16384; }}
stream {{ server {{ listen {listen}{shared}; proxy_pass {server}; proxy_timeout 1h; proxy_half_close on; }} }}
"
    );
    fs::write(&file, text).with_context(|| format!("failed to write {}", file.display()))?;
    let program = Program::new("nginx").arg("-c").arg(&file);
    Ok(program.args(["-e", "stderr"]))
}

/// Starts a relay written in Go, linked statically. It uses raw splice.
pub fn go(host: &Host, listen: SocketAddr, server: SocketAddr) -> Result<Process> {
    let program = Program::new(built_by_go("relay")?);
    start(
        host,
        program.args([listen.to_string(), server.to_string()]),
        listen,
    )
}

/// Starts a program that looks like a relay and is none: a `pool`, a `mirror` or a `cache` before
/// an echo server, for messages of 1000 bytes. Or starts a relay that has its sockets `shared` with
/// another process, moves them between its `hands`, or keeps them `alone`.
pub fn odd(host: &Host, kind: &str, listen: SocketAddr, server: SocketAddr) -> Result<Process> {
    let program = Program::new(built_by_go("odd")?);
    let words = [kind.to_owned(), listen.to_string(), server.to_string()];
    start(host, program.args(words), listen)
}

/// Returns a relay of one session, to be run under the shim, that splices until it is ordered
/// otherwise. Its source describes the further behaviour.
pub fn rewriter(how: &str, listen: SocketAddr, server: SocketAddr) -> Result<Program> {
    let program = Program::new(built("rewriter", "c", |out, source, _| {
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-Wall", "-Werror", "-o"])
            .args([out, source]);
        (cc, "a C compiler")
    })?);
    Ok(program.named("rewriter").args([
        how.to_owned(),
        listen.port().to_string(),
        server.ip().to_string(),
        server.port().to_string(),
    ]))
}

fn built_by_go(name: &str) -> Result<PathBuf> {
    built(name, "go", |out, source, dir| {
        let mut go = Command::new("go");
        go.args(["build", "-o"])
            .args([out, source])
            .env("CGO_ENABLED", "0")
            .env("GOCACHE", dir.join("cache"))
            .env("GOFLAGS", "-buildvcs=false");
        (go, "golang-go")
    })
}

/// Builds a program of these tests. `how` returns the command for an output, a source and a
/// permanent folder, and the package that contains the compiler.
fn built(
    name: &str,
    language: &str,
    how: impl FnOnce(&Path, &Path, &Path) -> (Command, &'static str),
) -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    let source = sources.join(format!("{name}.{language}"));
    // The folder is beside the tests, so that earlier builds and Go's own cache are used again.
    let own = std::env::current_exe().context("failed to find this program's own path")?;
    let dir = own.parent().unwrap_or(Path::new(".")).join(language);
    fs::create_dir_all(&dir).with_context(|| format!("failed to make {}", dir.display()))?;
    // Tests of one process may build at the same time.
    static BUILDS: AtomicU32 = AtomicU32::new(0);
    let build = BUILDS.fetch_add(1, Ordering::Relaxed);
    let out = dir.join(format!("{name}-{}-{build}", std::process::id()));
    let (mut command, package) = how(&out, &source, &dir);
    let built = command.output().with_context(|| {
        format!("failed to build {name}: run `cargo xtask setup`, or install {package}")
    })?;
    ensure!(
        built.status.success(),
        "{name} does not build: {}",
        String::from_utf8_lossy(&built.stderr)
    );
    // All tests share one file; the rename is atomic.
    let kept = dir.join(name);
    fs::rename(&out, &kept).with_context(|| format!("failed to keep {name}"))?;
    Ok(kept)
}

fn start(host: &Host, program: Program, listen: SocketAddr) -> Result<Process> {
    let name = program.name().to_owned();
    let mut process = host.spawn(program)?;
    process.wait_ready(&format!("{name} to listen"), || host.listens(listen.port()))?;
    Ok(process)
}
