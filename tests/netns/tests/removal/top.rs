//! `dyscoctl top` on a real terminal.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Host, Lab, Process, Program, Role, wait};

use crate::world::{DECLARED, World};

/// Time limit for the effect of a key on the screen.
const SEEN: Duration = Duration::from_secs(20);

/// A terminal on a host, with keys to press and a screen to read.
struct Screen<'a> {
    host: &'a Host,
    socket: PathBuf,
    server: Process,
}

impl Screen<'_> {
    /// Runs a command in its own terminal.
    fn start<'a>(host: &'a Host, command: &str) -> Result<Screen<'a>> {
        let socket = host.dir().join("tmux");
        let words = ["-D", "-f", "/dev/null", "-S"];
        let program = Program::new("tmux").args(words).arg(&socket);
        let program = program.env("LC_ALL", "C.UTF-8");
        let mut server = host.spawn(program.named("tmux"))?;
        server.wait_ready("tmux to listen", || socket.exists())?;
        let screen = Screen {
            host,
            socket,
            server,
        };
        let size = ["-x", "140", "-y", "30"];
        screen.tmux(&[&["new-session", "-d"][..], &size, &[command]].concat())?;
        Ok(screen)
    }

    fn tmux(&self, words: &[&str]) -> Result<String> {
        let socket = self.socket.to_string_lossy();
        self.host
            .output("tmux", &[&["-S", &socket][..], words].concat())
    }

    fn press(&self, keys: &[&str]) -> Result<()> {
        self.tmux(&[&["send-keys"][..], keys].concat()).map(drop)
    }

    fn text(&self) -> String {
        self.tmux(&["capture-pane", "-p"]).unwrap_or_default()
    }

    /// Waits until the screen shows a text.
    fn shows(&self, text: &str) -> Result<()> {
        let shown = wait::until(&format!("'{text}' on the screen"), SEEN, || {
            self.text().contains(text).then_some(())
        });
        shown.with_context(|| self.text())
    }

    /// Asks for a removal, and answers with another key than yes.
    fn declines(&self) -> Result<()> {
        self.press(&["d"])?;
        self.shows("any other key: do not")?;
        self.press(&["Enter"])?;
        wait::until("the question to go", SEEN, || {
            (!self.text().contains("any other key")).then_some(())
        })
    }

    /// Ends the remaining processes.
    fn finish(mut self) -> Result<()> {
        self.server.stop()
    }
}

/// The user sees the sessions move, filters them, and removes the proxy from one of them.
#[test]
fn top_shows_sessions_and_removes_the_proxy_after_a_yes_alone() -> Result<()> {
    let w = World::with(
        Lab::builder("top"),
        Family::V4,
        &[Role::Proxy],
        DECLARED,
        |c| c,
    )?;
    let plan = Plan {
        rate: Some(100_000),
        ..Plan::default()
    };
    let group = w.open(2, &plan)?;
    group.run();
    group.wait_progress(100_000)?;
    let host = &w.lab.proxy;
    let command = format!("{} top --delay 200ms", w.fleet.dyscoctl_path().display());
    let screen = Screen::start(host, &command)?;
    // The list has the client's sides and the server's sides.
    screen.shows("listed: 4 of all")?;
    screen.shows("haproxy/")?;
    screen.shows("KiB/s")?;
    screen.press(&["/"])?;
    screen.press(&["-l", "port=8080"])?;
    screen.press(&["Enter"])?;
    screen.shows("listed: 2 of port=8080")?;
    let removed = || -> Result<u64> {
        let status = w.fleet.json(host, &["status"])?;
        let removed = status["sessions"]["removed"].as_u64();
        removed.context("no count")
    };
    let listed = |filter: &str| -> Result<usize> {
        let all = w.fleet.json(host, &["sessions", "--filter", filter])?;
        Ok(all.as_array().context("no array")?.len())
    };
    ensure!(listed("proxy=haproxy,mode=none")? == 4, "{}", w.state());
    ensure!(listed("proxy=nginx")? == 0, "{}", w.state());
    // The same words select sessions for removals.
    for (filter, meant) in [("proxy=:8080,mode=none", 2), ("proxy=nginx", 0)] {
        let words = ["remove-middlebox", "self", "--dry-run", "--filter", filter];
        let dry = w.fleet.json(host, &words)?;
        ensure!(dry["accepted"] == meant, "{filter}: {dry:#}");
    }
    screen.declines()?;
    ensure!(removed()? == 0, "it was removed without a yes");
    screen.press(&["d"])?;
    screen.shows("any other key: do not")?;
    screen.press(&["y"])?;
    screen.shows("1 removed")?;
    screen.shows("local")?;
    ensure!(removed()? == 1, "one was asked for");
    ensure!(listed("mode=local")? == 2, "both sides: {}", w.state());
    ensure!(listed("proxy=haproxy")? == 2, "the other: {}", w.state());
    screen.press(&["q"])?;
    wait::until("top to end", SEEN, || {
        // The tmux server stays without a session, or fails to answer.
        let listed = screen.tmux(&["list-sessions"]).unwrap_or_default();
        listed.trim().is_empty().then_some(())
    })?;
    screen.finish()?;
    all_intact(&group.finish()?)?;
    w.finish()
}
