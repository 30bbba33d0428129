//! A real HAProxy on the proxy's host.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::{Host, Process, Program};

/// Configuration of an HAProxy.
#[derive(Clone, Debug)]
pub struct Config {
    name: String,
    listen: Vec<SocketAddr>,
    listen_more: Vec<SocketAddr>,
    server: SocketAddr,
    server_words: String,
    mode: &'static str,
    splice: bool,
    threads: u32,
    connections: usize,
    pipes: usize,
    lines: String,
    more: String,
    replaces: Option<String>,
    chroot: Option<String>,
}

const SPLICE: &str = "  option splice-request\n  option splice-response\n";

impl Config {
    /// Creates a configuration that relays TCP from `listen` to `server`, with splicing.
    pub fn tcp(listen: SocketAddr, server: SocketAddr) -> Config {
        Config {
            name: "haproxy".into(),
            listen: vec![listen],
            listen_more: vec![],
            server,
            server_words: String::new(),
            mode: "tcp",
            splice: true,
            threads: 2,
            connections: 4_000,
            pipes: 4_096,
            lines: String::new(),
            more: String::new(),
            replaces: None,
            chroot: None,
        }
    }

    /// Creates a configuration in `mode http`.
    pub fn http(listen: SocketAddr, server: SocketAddr) -> Config {
        Config::tcp(listen, server).in_http()
    }

    /// Sets `mode http`.
    pub fn in_http(mut self) -> Config {
        self.mode = "http";
        self
    }

    /// Sets another server.
    pub fn to(mut self, server: SocketAddr) -> Config {
        self.server = server;
        self
    }

    /// Replaces a running process, as in a reload: that process gives up its listeners and ends
    /// with its last session.
    pub fn reloading(mut self, pid: &str) -> Config {
        self.replaces = Some(pid.into());
        self
    }

    /// Confines the process to a directory, as Debian's configuration does.
    pub fn chroot(mut self, dir: &str) -> Config {
        self.chroot = Some(dir.into());
        self
    }

    /// Sets the name of its files, for several processes on one host.
    pub fn named(mut self, name: &str) -> Config {
        self.name = name.into();
        self
    }

    /// Appends words to the line of the server, such as `send-proxy-v2`.
    pub fn server_words(mut self, words: &str) -> Config {
        self.server_words += &format!(" {words}");
        self
    }

    /// Turns splicing on or off.
    pub fn splice(mut self, on: bool) -> Config {
        self.splice = on;
        self
    }

    /// Sets the number of threads.
    pub fn threads(mut self, threads: u32) -> Config {
        self.threads = threads;
        self
    }

    /// Sets the maximum number of sessions. Further sessions wait.
    pub fn connections(mut self, connections: usize) -> Config {
        self.connections = connections;
        self
    }

    /// Sets the number of pipes for splicing. Each pipe is two files; each socket is one.
    pub fn pipes(mut self, pipes: usize) -> Config {
        self.pipes = pipes;
        self
    }

    /// Appends a line to the listen section.
    pub fn line(mut self, line: &str) -> Config {
        self.lines += &format!("  {line}\n");
        self
    }

    /// Relays from another address too, in a separate mode.
    pub fn also(mut self, mode: &str, listen: SocketAddr, server: SocketAddr) -> Config {
        let port = listen.port();
        self.more += &format!(
            "listen relay{port}\n  mode {mode}\n  bind {listen}\n{SPLICE}  server one {server}\n"
        );
        self.listen_more.push(listen);
        self
    }

    /// Path of the runtime socket on HAProxy's host, unless another one is configured.
    pub const SOCKET: &str = "/run/haproxy.sock";

    fn text(&self) -> String {
        let Config {
            name,
            mode,
            threads,
            connections,
            pipes,
            server,
            server_words,
            lines,
            more,
            ..
        } = self;
        let binds: String = self
            .listen
            .iter()
            .map(|l| format!("  bind {l}\n"))
            .collect();
        let splice = if self.splice { SPLICE } else { "" };
        let chroot = self.chroot.iter();
        let chroot: String = chroot.map(|dir| format!("  chroot {dir}\n")).collect();
        format!(
            "global\n  nbthread {threads}\n  maxconn {connections}\n  maxpipes {pipes}\n  \
             stats socket {socket} mode 600 level admin expose-fd listeners\n{chroot}\
             defaults\n  mode {mode}\n  timeout connect 10s\n  timeout client 10m\n  \
             timeout server 10m\n  timeout tunnel 1h\n\
             listen relay\n{binds}{splice}{lines}  server one {server}{server_words}\n{more}",
            socket = format_args!("/run/{name}.sock"),
        )
    }

    /// Writes the configuration to the host's folder. Returns the command to run HAProxy.
    pub fn command(&self, host: &Host) -> Result<Program> {
        let file = host.dir().join(format!("{}.cfg", self.name));
        fs::write(&file, self.text())
            .with_context(|| format!("failed to write {}", file.display()))?;
        let program = Program::new("haproxy").arg("-db").arg("-f").arg(file);
        let replaces = self.replaces.iter().flat_map(|pid| ["-sf", pid]);
        Ok(program.args(replaces))
    }

    /// Starts HAProxy, after `wrap` has changed its command, and waits until it listens.
    pub fn start(&self, host: &Host, wrap: impl FnOnce(Program) -> Program) -> Result<Process> {
        let mut haproxy = host.spawn(wrap(self.command(host)?).named(&self.name))?;
        let all = self.listen.iter().chain(&self.listen_more);
        let ports: Vec<_> = all.map(SocketAddr::port).collect();
        haproxy.wait_ready("HAProxy to listen", || {
            ports.iter().all(|p| host.listens(*p))
        })?;
        Ok(haproxy)
    }
}
