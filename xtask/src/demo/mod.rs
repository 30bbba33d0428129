//! `cargo xtask demo`.

mod chain;
mod mix;
mod plot;
mod reload;
mod report;
mod reported;
mod services;
mod stage;
mod watch;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};
use dysco_netns::Host;
use dysco_netns::device::Kind;

use crate::build::Demonstrated;
use crate::setup::Need;
use crate::{setup, shell};
use mix::{Mix, Stored};
use report::{Measured, Report};
use reported::Reported;
use stage::Stage;
use watch::{Phase, Watch};

/// Take a real HAProxy out of live connections, and show it.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Demo {
    #[command(subcommand)]
    scene: Option<Scene>,
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
    /// Number of seconds for which each of before, after and direct is measured
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..=30))]
    seconds: u64,
    /// Number of sessions through the proxy
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(3..=500))]
    sessions: u64,
    /// File for the plot [default: a file in cargo's target folder]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    build: Demonstrated,
    /// Run the same traffic without dyscod; nothing is removed
    #[arg(long)]
    plain: bool,
    /// Start dyscod only when all sessions are open, and HAProxy without the shim
    #[arg(long, conflicts_with = "plain")]
    late: bool,
    /// Kind of link between the hosts: veth, tun, vlan, bond, bridge, macvlan, ipvlan, vxlan, gre,
    /// ipip or wireguard
    #[arg(long, value_name = "KIND", default_value = "veth", value_parser = kind)]
    link: Kind,
}

fn kind(name: &str) -> Result<Kind, String> {
    let all = Kind::ALL.map(Kind::name).join(", ");
    Kind::named(name).ok_or_else(|| format!("the kinds are {all}"))
}

/// Another demo.
#[derive(Subcommand)]
enum Scene {
    /// Reload and stop a real HAProxy under live sessions, and lose none
    Reload(reload::Reload),
    /// Put a firewall into live sessions, replace it by another, and take it out
    Chain(chain::Chain),
    /// Encrypt and compress live sessions, and leave them as they were
    Services(services::Services),
}

/// Time for traffic to settle after a change. It is not measured.
const SETTLE: Duration = Duration::from_millis(500);

/// Time for which bulk traffic runs, and pauses, while a late `dyscod` examines the sessions.
const BURST: Duration = Duration::from_millis(100);

impl Demo {
    /// Runs the command.
    pub(crate) fn run(mut self) -> Result<()> {
        match self.scene.take() {
            Some(Scene::Reload(reload)) => return reload.run(),
            Some(Scene::Chain(chain)) => return chain.run(),
            Some(Scene::Services(services)) => return services.run(),
            None => {}
        }
        dysco_netns::require_root()?;
        setup::ensure(Need::Demo)?;
        let programs = match self.plain {
            true => None,
            false => Some(self.build.programs(self.json)?),
        };
        let plot = match &self.plot {
            Some(file) => file.clone(),
            None => shell::target()?.join(format!("demo/{}.svg", std::process::id())),
        };
        let report = self.play(
            Stage::build(programs.as_ref(), self.link, self.late)?,
            &plot,
        )?;
        if self.json {
            println!("{}", serde_json::to_string(&report.json())?);
        } else {
            println!("{}", report.text(&plot));
        }
        ensure!(report.intact, "not every byte arrived as it was sent");
        ensure!(self.plain || report.removed > 0, "HAProxy left no session");
        Ok(())
    }

    fn play(&self, mut stage: Stage, plot: &std::path::Path) -> Result<Report> {
        let mut watch = Watch::new(!self.json, stage.haproxy.id());
        watch.say(&stage.summary());
        let resets = stage.resets()?;
        let mix = Mix::start(
            &stage.lab.client,
            stage.proxied,
            self.sessions as usize,
            "session",
        )?;
        stage.start_late()?;
        let before = self.measure(&mut watch, &mix, Phase::Before);
        let removal = self.remove(&mut watch, &stage, &mix)?;
        let packets = stage.lab.proxy_packets()?;
        let after = self.measure(&mut watch, &mix, Phase::After);
        let proxy_packets_after = stage.lab.proxy_packets()? - packets;
        let mut ended = mix.finish(|| stage.resets());
        let resets = ended.last_word.map_or(0, |now| now - resets);
        let mut troubles = std::mem::take(&mut ended.troubles);
        let hashes = check(&stage.lab.server, &mut troubles, &ended.uploads);
        let direct = Mix::start(
            &stage.lab.client,
            stage.direct,
            self.sessions as usize,
            "direct",
        )?;
        let measured = self.measure(&mut watch, &direct, Phase::Direct);
        let last = direct.finish(|| Ok(()));
        troubles.extend(last.troubles);
        check(&stage.lab.server, &mut troubles, &last.uploads);
        watch.plot(plot).context("failed to draw the plot")?;
        stage.end(troubles.is_empty())?;
        Ok(Report {
            intact: troubles.is_empty(),
            troubles,
            bytes: ended.bytes,
            hashes,
            sessions: self.sessions as usize,
            removed: removal.done(),
            refusals: removal.refusals(),
            resets,
            removal_ms: removal.percentiles_ms(),
            before,
            after,
            direct: measured,
            proxy_packets_after,
        })
    }

    /// Measures two thirds of the time at full load, and the rest with the bulk traffic paused: on
    /// a busy processor the time of a request is that of a queue.
    fn measure(&self, watch: &mut Watch, mix: &Mix, phase: Phase) -> Measured {
        let time = Duration::from_secs(self.seconds);
        mix.hold_bulk(false);
        watch.run(mix, Phase::Settling, SETTLE);
        let busy = watch.run(mix, phase, time * 2 / 3);
        mix.hold_bulk(true);
        watch.run(mix, Phase::Settling, SETTLE);
        let quiet = watch.run(mix, phase.quiet(), time / 3);
        Measured {
            goodput_bps: busy.goodput_bps,
            latency_p50_us: quiet.latency_p50_us,
            busy_latency_p50_us: busy.latency_p50_us,
            proxy_cpu: busy.proxy_cpu,
        }
    }

    /// Removes the proxy while all sessions are at full load; for a late `dyscod`, with pauses.
    fn remove(&self, watch: &mut Watch, stage: &Stage, mix: &Mix) -> Result<Reported> {
        mix.hold_bulk(false);
        watch.run(mix, Phase::Settling, SETTLE);
        let Some(fleet) = &stage.fleet else {
            return Ok(Reported::default());
        };
        let named = stage.proxy_words();
        let mut words = vec!["remove-middlebox", "self", "--all", "--wait", "-o", "json"];
        words.extend(named.iter().map(String::as_str));
        watch.say(&format!("proxy# dyscoctl {}", words.join(" ")));
        let start = Instant::now();
        let run = || fleet.try_dyscoctl(&stage.lab.proxy, &words);
        let ran = match self.late {
            true => in_bursts(mix, run)?,
            false => run()?,
        };
        let reported = Reported::read(&ran, "removed")?;
        watch.mark("removed");
        let mut text = format!(
            "HAProxy has left {} of {} sessions, in {:.0} ms with the last",
            reported.done(),
            reported.all(),
            start.elapsed().as_secs_f64() * 1e3
        );
        for (reason, count) in reported.refusals() {
            text += &format!("\n  {count} {reason}");
        }
        watch.say(&text);
        Ok(reported)
    }
}

/// Pauses the bulk traffic again and again while `run` runs. A session whose proxy no shim reports
/// is proven by bytes that move and by idle moments.
fn in_bursts<T: Send>(mix: &Mix, run: impl FnOnce() -> T + Send) -> T {
    let burst = BURST * dysco_netns::wait::slow().min(4);
    std::thread::scope(|scope| {
        let running = scope.spawn(run);
        let mut held = false;
        while !running.is_finished() {
            std::thread::sleep(burst);
            held = !held;
            mix.hold_bulk(held);
        }
        mix.hold_bulk(false);
        running
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Checks the stored uploads. Returns their SHA-256, and adds errors to `troubles`.
fn check(server: &Host, troubles: &mut Vec<String>, uploads: &[Stored]) -> Vec<String> {
    let mut hashes = Vec::new();
    for upload in uploads {
        match upload.verify(server) {
            Ok(hash) => hashes.push(format!("{hash}  {}", upload.name)),
            Err(error) => troubles.push(format!("{error:#}")),
        }
    }
    hashes
}
