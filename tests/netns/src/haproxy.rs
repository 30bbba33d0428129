//! A real HAProxy on the proxy's host.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::{Host, Process, Program};

/// What an HAProxy is to do.
#[derive(Clone, Debug)]
pub struct Config {
    listen: Vec<SocketAddr>,
    server: SocketAddr,
    server_words: String,
    mode: &'static str,
    splice: bool,
    threads: u32,
    lines: String,
    global: String,
}

impl Config {
    /// Relays TCP from `listen` to `server`, spliced.
    pub fn tcp(listen: SocketAddr, server: SocketAddr) -> Config {
        Config {
            listen: vec![listen],
            server,
            server_words: String::new(),
            mode: "tcp",
            splice: true,
            threads: 2,
            lines: String::new(),
            global: String::new(),
        }
    }

    /// The same in `mode http`.
    pub fn http(listen: SocketAddr, server: SocketAddr) -> Config {
        Config {
            mode: "http",
            ..Config::tcp(listen, server)
        }
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

    /// Adds a line to the listen section.
    pub fn line(mut self, line: &str) -> Config {
        self.lines += &format!("  {line}\n");
        self
    }

    /// Adds a line to the global section.
    pub fn global(mut self, line: &str) -> Config {
        self.global += &format!("  {line}\n");
        self
    }

    /// The runtime socket, on the host that runs it.
    pub const SOCKET: &str = "/run/haproxy.sock";

    fn text(&self) -> String {
        let Config {
            mode,
            threads,
            server,
            server_words,
            lines,
            global,
            ..
        } = self;
        let binds: String = self
            .listen
            .iter()
            .map(|l| format!("  bind {l}\n"))
            .collect();
        let splice = "  option splice-request\n  option splice-response\n";
        let splice = if self.splice { splice } else { "" };
        format!(
            "global\n  nbthread {threads}\n  maxconn 4000\n  maxpipes 2000\n  \
             stats socket {socket} mode 600 level admin expose-fd listeners\n{global}\
             defaults\n  mode {mode}\n  timeout connect 10s\n  timeout client 10m\n  \
             timeout server 10m\n  timeout tunnel 1h\n\
             listen relay\n{binds}{splice}{lines}  server one {server}{server_words}\n",
            socket = Self::SOCKET,
        )
    }

    /// Writes the configuration to the host's folder; the command to run it.
    pub fn command(&self, host: &Host) -> Result<Program> {
        let file = host.dir().join("haproxy.cfg");
        fs::write(&file, self.text())
            .with_context(|| format!("failed to write {}", file.display()))?;
        Ok(Program::new("haproxy").arg("-db").arg("-f").arg(file))
    }

    /// Starts it, by `wrap`ping its command, and waits until it listens.
    pub fn start(&self, host: &Host, wrap: impl FnOnce(Program) -> Program) -> Result<Process> {
        let mut haproxy = host.spawn(wrap(self.command(host)?).named("haproxy"))?;
        let ports: Vec<_> = self.listen.iter().map(SocketAddr::port).collect();
        haproxy.wait_ready("HAProxy to listen", || {
            ports.iter().all(|p| host.listens(*p))
        })?;
        Ok(haproxy)
    }
}
