//! Time that a removal adds to a session's longest gap between two answers: single removals, and
//! batches of 150 and 1,000 sessions. The sessions send requests as fast as they can. The longest
//! gap in the same time without a change is subtracted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::Effort;
use crate::apart::Between;
use crate::figure::{Bucket, Figure, rank, sorted};
use crate::stage::{PATIENCE, Stage, proxied, server};
use crate::talk::Talk;
use dysco_netns::wait;

/// Sizes of batches.
const BATCHES: [usize; 2] = [150, 1_000];
/// Each session needs a source port of its own.
const CONFIG: &str = "[removal]\nmode = \"bypass\"\nports = \"50000-64999\"\n";
/// Time for which a session sends requests before it is measured.
const WARM: Duration = Duration::from_millis(50);
/// Time around a single change, and additional time for each session of a batch.
const AROUND: Duration = Duration::from_millis(150);
const AROUND_EACH: Duration = Duration::from_millis(4);

/// Longest gaps in microseconds. Each entry of both lists is of the same session.
#[derive(Default)]
struct Gaps {
    changed: Vec<f64>,
    unchanged: Vec<f64>,
}

/// Runs the benchmark.
pub(crate) fn run(effort: &Effort) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    let single = singles(effort)?;
    figures.extend(single.figures("single", effort));
    for size in BATCHES {
        let mut gaps = Gaps::default();
        for round in 1..=effort.pick(3, 1) {
            effort.say(&format!("  a batch of {size}, round {round}"));
            batch(size, &mut gaps)?;
        }
        figures.extend(gaps.figures(&format!("batch_{size}"), effort));
    }
    Ok(figures)
}

/// Measures removals of one session each. Other sessions are silent.
fn singles(effort: &Effort) -> Result<Gaps> {
    let count = effort.changes;
    effort.say(&format!("  {count} single removals"));
    let stage = stage()?;
    let talk = talk(&stage, count)?;
    let mut gaps = Gaps::default();
    for at in 0..count {
        talk.run(at..at + 1)?;
        std::thread::sleep(WARM);
        // The order of the two measurements alternates.
        if at % 2 == 0 {
            gaps.unchanged.extend(unchanged(&stage, &talk, AROUND)?);
        }
        gaps.changed
            .extend(changed(&stage, &talk, at..at + 1, AROUND)?);
        if at % 2 == 1 {
            gaps.unchanged.extend(unchanged(&stage, &talk, AROUND)?);
        }
        talk.rest()?;
    }
    end(stage, talk)?;
    Ok(gaps)
}

/// Measures one request for many sessions.
fn batch(size: usize, gaps: &mut Gaps) -> Result<()> {
    let stage = stage()?;
    let talk = talk(&stage, size)?;
    talk.run(0..size)?;
    let around = AROUND + AROUND_EACH * size as u32;
    std::thread::sleep(around / 4);
    gaps.unchanged.extend(unchanged(&stage, &talk, around)?);
    gaps.changed
        .extend(changed(&stage, &talk, 0..size, around)?);
    talk.rest()?;
    end(stage, talk)
}

fn stage() -> Result<Stage> {
    Stage::build_by("pause", CONFIG, |c| c.connections(4_000).pipes(512))
}

fn end(stage: Stage, talk: Talk) -> Result<()> {
    drop(talk);
    stage.end()
}

/// Opens sessions that HAProxy is seen to splice.
fn talk(stage: &Stage, count: usize) -> Result<Talk> {
    let between = Between {
        client: &stage.lab.client,
        to: proxied(),
        server: &stage.lab.server,
        at: server(),
    };
    // Two at least: a single end is not polled.
    let talk = Talk::open(between, count.max(2))?;
    talk.run(0..count)?;
    wait::until("HAProxy to be seen splicing", PATIENCE, || {
        (stage.pairs().ok()? >= count as u64).then_some(())
    })?;
    stage.wait_removable(count)?;
    talk.rest()?;
    Ok(talk)
}

/// Returns the longest gaps during a command that changes nothing.
fn unchanged(stage: &Stage, talk: &Talk, around: Duration) -> Result<Vec<f64>> {
    let begun = Instant::now();
    talk.mark()?;
    stage.fleet.dyscoctl(&stage.lab.proxy, &["status"])?;
    std::thread::sleep(around.saturating_sub(begun.elapsed()));
    talk.longest()
}

/// Returns the longest gaps of sessions while their proxy leaves.
fn changed(
    stage: &Stage,
    talk: &Talk,
    sessions: std::ops::Range<usize>,
    around: Duration,
) -> Result<Vec<f64>> {
    let count = sessions.len();
    let name = |local| format!("{}>{local}", proxied());
    let names: Vec<_> = talk.locals[sessions].iter().map(name).collect();
    let words = ["remove-middlebox", "self", "--wait", "-o", "json"];
    let names = names.iter().flat_map(|name| ["--session", name]);
    let words: Vec<_> = words.into_iter().chain(names).collect();
    let begun = Instant::now();
    talk.mark()?;
    let ran = stage.fleet.try_dyscoctl(&stage.lab.proxy, &words)?;
    std::thread::sleep(around.saturating_sub(begun.elapsed()));
    let gaps = talk.longest()?;
    let done: Value = serde_json::from_str(&ran.stdout)
        .with_context(|| format!("dyscoctl printed no JSON: {} {}", ran.stdout, ran.stderr))?;
    ensure!(
        done["summary"]["removed"] == count,
        "not all {count} were removed: {}",
        done["summary"]
    );
    Ok(gaps)
}

impl Gaps {
    /// Returns the median and the 99th percentile of the time that a change adds to the gap.
    fn figures(&self, name: &str, effort: &Effort) -> [Figure; 2] {
        let both = self.changed.iter().zip(&self.unchanged);
        let added: Vec<f64> = both.map(|(with, without)| with - without).collect();
        let buckets = buckets(&self.changed, &self.unchanged);
        effort.say(&text(name, &buckets));
        let ranks = [&added, &self.changed, &self.unchanged].map(|all| sorted(all));
        let [more, with, without] = &ranks;
        let p50 = Figure::median(format!("pause_added_us_p50_{name}"), "µs", added)
            .aside("changes", self.changed.len() as f64)
            .aside("with the change: p50", rank(with, 50))
            .aside("with the change: p99", rank(with, 99))
            .aside("with the change: longest", rank(with, 100))
            .aside("without: p50", rank(without, 50))
            .aside("without: p99", rank(without, 99))
            .aside("without: longest", rank(without, 100))
            .histogram(buckets);
        let p99 = Figure::new(format!("pause_added_us_p99_{name}"), "µs", rank(more, 99))
            .aside("longest", rank(more, 100));
        [p50, p99]
    }
}

/// Counts gaps in buckets whose bounds double, from the first with any to the last.
fn buckets(changed: &[f64], unchanged: &[f64]) -> Vec<Bucket> {
    let bounds = (4..31).map(|power| f64::from(1_u32 << power));
    let within = |all: &[f64], bound: f64| {
        let inside = |gap: &&f64| **gap <= bound && (bound <= 16.0 || **gap > bound / 2.0);
        all.iter().filter(inside).count()
    };
    let bucket = |up_to_us: f64| Bucket {
        up_to_us,
        changed: within(changed, up_to_us),
        unchanged: within(unchanged, up_to_us),
    };
    let all: Vec<_> = bounds.map(bucket).collect();
    let filled = |b: &Bucket| b.changed + b.unchanged > 0;
    let first = all.iter().position(filled).unwrap_or(all.len());
    let last = all.iter().rposition(filled).map_or(0, |at| at + 1);
    all.into_iter().take(last).skip(first).collect()
}

/// Returns a histogram as text: gaps with a change and gaps without it, side by side.
fn text(name: &str, buckets: &[Bucket]) -> String {
    const WIDTH: usize = 30;
    let counts = buckets.iter().flat_map(|b| [b.changed, b.unchanged]);
    let most = counts.max().unwrap_or(1).max(1);
    let bar = |count: usize| "#".repeat((count * WIDTH).div_ceil(most));
    let mut text = format!("  longest gaps, {name}\n");
    text += &format!(
        "  {:>12}  {:37}  {}\n",
        "up to, µs", "with the change", "without"
    );
    for b in buckets {
        let (with, without) = (bar(b.changed), bar(b.unchanged));
        text += &format!(
            "  {:>12.0}  {:>6} {with:WIDTH$}  {:>6} {without}\n",
            b.up_to_us, b.changed, b.unchanged
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_gap_is_in_one_bucket() {
        let (changed, unchanged) = ([3.0, 16.0, 17.0, 900.0, 70_000.0], [32.0, 33.0]);
        let all = buckets(&changed, &unchanged);
        let counts = |of: fn(&Bucket) -> usize| all.iter().map(of).sum::<usize>();
        assert_eq!(counts(|b| b.changed), changed.len());
        assert_eq!(counts(|b| b.unchanged), unchanged.len());
        assert_eq!((all[0].up_to_us, all[0].changed), (16.0, 2));
        assert_eq!((all[1].changed, all[1].unchanged), (1, 1));
        assert_eq!(all.last().unwrap().up_to_us, 131_072.0);
        assert!(buckets(&[], &[]).is_empty());
        assert_eq!(text("x", &all).lines().count(), 2 + all.len());
    }
}
