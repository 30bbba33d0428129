//! A real HAProxy on the proxy's host.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::{Host, Process, Program};

/// What an HAProxy is to do.
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
}

const SPLICE: &str = "  option splice-request\n  option splice-response\n";

impl Config {
    /// Relays TCP from `listen` to `server`, spliced.
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
        }
    }

    /// The same in `mode http`.
    pub fn http(listen: SocketAddr, server: SocketAddr) -> Config {
        Config::tcp(listen, server).in_http()
    }

    /// Turns to `mode http`.
    pub fn in_http(mut self) -> Config {
        self.mode = "http";
        self
    }

    /// Turns to another server.
    pub fn to(mut self, server: SocketAddr) -> Config {
        self.server = server;
        self
    }

    /// Takes the place of a running process, as in a reload: that one gives up
    /// its listeners and ends with its last session.
    pub fn reloading(mut self, pid: &str) -> Config {
        self.replaces = Some(pid.into());
        self
    }

    /// Names its files, where several run on one host.
    pub fn named(mut self, name: &str) -> Config {
        self.name = name.into();
        self
    }

    /// Adds words to the line of the server, such as `send-proxy-v2`.
    pub fn server_words(mut self, words: &str) -> Config {
        self.server_words += &format!(" {words}");
        self
    }

    /// Turns splicing off or on.
    pub fn splice(mut self, on: bool) -> Config {
        self.splice = on;
        self
    }

    /// How many threads serve.
    pub fn threads(mut self, threads: u32) -> Config {
        self.threads = threads;
        self
    }

    /// How many sessions it takes at most; more wait.
    pub fn connections(mut self, connections: usize) -> Config {
        self.connections = connections;
        self
    }

    /// How many pipes it has to splice by, each of two files, as every socket is one.
    pub fn pipes(mut self, pipes: usize) -> Config {
        self.pipes = pipes;
        self
    }

    /// Adds a line to the listen section.
    pub fn line(mut self, line: &str) -> Config {
        self.lines += &format!("  {line}\n");
        self
    }

    /// Relays from another address too, in a mode of its own.
    pub fn also(mut self, mode: &str, listen: SocketAddr, server: SocketAddr) -> Config {
        let port = listen.port();
        self.more += &format!(
            "listen relay{port}\n  mode {mode}\n  bind {listen}\n{SPLICE}  server one {server}\n"
        );
        self.listen_more.push(listen);
        self
    }

    /// The runtime socket, on the host that runs it, unless named.
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
        format!(
            "global\n  nbthread {threads}\n  maxconn {connections}\n  maxpipes {pipes}\n  \
             stats socket {socket} mode 600 level admin expose-fd listeners\n\
             defaults\n  mode {mode}\n  timeout connect 10s\n  timeout client 10m\n  \
             timeout server 10m\n  timeout tunnel 1h\n\
             listen relay\n{binds}{splice}{lines}  server one {server}{server_words}\n{more}",
            socket = format_args!("/run/{name}.sock"),
        )
    }

    /// Writes the configuration to the host's folder; the command to run it.
    pub fn command(&self, host: &Host) -> Result<Program> {
        let file = host.dir().join(format!("{}.cfg", self.name));
        fs::write(&file, self.text())
            .with_context(|| format!("failed to write {}", file.display()))?;
        let program = Program::new("haproxy").arg("-db").arg("-f").arg(file);
        let replaces = self.replaces.iter().flat_map(|pid| ["-sf", pid]);
        Ok(program.args(replaces))
    }

    /// Starts it, by `wrap`ping its command, and waits until it listens.
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
