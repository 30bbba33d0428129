//! `cargo xtask demo chain`: a firewall enters live sessions, another replaces it and receives its
//! state, and leaves.

mod report;
mod stage;
mod watch;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Args;

use super::mix::Mix;
use super::reported::Reported;
use crate::build::Demonstrated;
use crate::setup::Need;
use crate::{setup, shell};
use report::{Change, Report};
use stage::Stage;
use watch::Watch;

/// Put a firewall into live sessions, replace it by another, and take it out.
#[derive(Args)]
pub(super) struct Chain {
    /// Print only one JSON object, at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    build: Demonstrated,
    /// Number of seconds for which each path is measured
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..=30))]
    seconds: u64,
    /// Number of sessions that get other chains
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u64).range(3..=100))]
    sessions: u64,
    /// File for the plot [default: a file in cargo's target folder]
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// A step of the demo, by the path of the sessions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Step {
    Direct,
    Inserted,
    Replaced,
    Removed,
}

impl Step {
    const ALL: [Step; 4] = [Step::Direct, Step::Inserted, Step::Replaced, Step::Removed];

    fn name(self) -> &'static str {
        match self {
            Step::Direct => "direct",
            Step::Inserted => "fw1 inserted",
            Step::Replaced => "fw2 for fw1",
            Step::Removed => "fw2 removed",
        }
    }

    /// Index in [`watch::WAYS`] of the path that the packets take.
    fn way(self) -> usize {
        match self {
            Step::Direct | Step::Removed => 0,
            Step::Inserted => 1,
            Step::Replaced => 2,
        }
    }
}

/// Time for traffic to settle after a change.
const SETTLE: Duration = Duration::from_millis(500);

impl Chain {
    /// Runs the command.
    pub(super) fn run(self) -> Result<()> {
        dysco_netns::require_root()?;
        setup::ensure(Need::Demo)?;
        let programs = self.build.programs(self.json)?;
        let plot = match &self.plot {
            Some(file) => file.clone(),
            None => shell::target()?.join(format!("demo/chain-{}.svg", std::process::id())),
        };
        let stage = Stage::build(&programs)?;
        let report = self.play(stage, &plot)?;
        if self.json {
            println!("{}", serde_json::to_string(&report.json())?);
        } else {
            println!("{}", report.text(&plot));
        }
        ensure!(report.intact(), "not every byte arrived as it was sent");
        for (step, change) in &report.changes {
            let (done, all) = (change.reported.done(), report.sessions);
            ensure!(done == all, "{}: {done} of {all} sessions", step.name());
        }
        Ok(())
    }

    fn play(&self, stage: Stage, plot: &Path) -> Result<Report> {
        let mut watch = Watch::new(!self.json);
        watch.say(&stage.summary());
        let resets = stage.resets()?;
        let sessions = self.sessions as usize;
        let mix = Mix::start(stage.client(), stage.server_at(), sessions, "session")?;
        let mut changes = Vec::new();
        for step in Step::ALL {
            let dropped = stage.dropped()?;
            if let Some(words) = stage.words(step) {
                let reported = self.change(&mut watch, &stage, &mix, step, &words)?;
                changes.push((
                    step,
                    Change {
                        reported,
                        dropped: 0,
                    },
                ));
            }
            let time = Duration::from_secs(self.seconds);
            watch.settle(&stage, &mix, step, SETTLE)?;
            watch.measure(&stage, &mix, step, time)?;
            if let Some((_, change)) = changes.last_mut() {
                change.dropped = stage.dropped()? - dropped;
            }
        }
        let mut ended = mix.finish(|| stage.resets());
        let resets = ended.last_word.map_or(0, |now| now - resets);
        let mut troubles = std::mem::take(&mut ended.troubles);
        let hashes = super::check(stage.server(), &mut troubles, &ended.uploads);
        watch.plot(plot).context("failed to draw the plot")?;
        stage.end(troubles.is_empty())?;
        Ok(Report {
            troubles,
            bytes: ended.bytes,
            hashes,
            sessions,
            resets,
            changes,
            paths: Step::ALL.map(|step| watch.path(step)),
        })
    }

    /// Requests another chain for all sessions, and watches them.
    fn change(
        &self,
        watch: &mut Watch,
        stage: &Stage,
        mix: &Mix,
        step: Step,
        words: &str,
    ) -> Result<Reported> {
        watch.say(&format!("client# dyscoctl {words}"));
        watch.mark(step);
        let start = Instant::now();
        let (ran, took) = std::thread::scope(|scope| {
            let asked = scope.spawn(|| (stage.dyscoctl(words), start.elapsed()));
            let watched = watch.until(stage, mix, step, || asked.is_finished());
            let (ran, took) = asked
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))?;
            watched.and(Ok((ran?, took)))
        })?;
        let reported = Reported::read(&ran, "changed")?;
        watch.say(&report::summary(&reported, took));
        Ok(reported)
    }
}
