//! Memory of a daemon that drains again and again.

use super::*;

const DRAINS: usize = 10;
/// Maximum growth, as a part of the memory after the second drain. The history of removals and the
/// former names of sessions have bounds, and are not full by then.
const GROWTH: u64 = 12;

/// Returns the resident memory of a process, in bytes.
fn resident(process: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    Ok(1024 * kilobytes.context("no VmRSS")?)
}

#[test]
fn the_memory_of_ten_drains_is_that_of_two() -> Result<()> {
    let mut w = World::new(Lab::builder("memory"), Family::V4)?;
    let mut after = Vec::new();
    for drain in 0..DRAINS {
        let (group, ends) = opened(&w, many())?;
        let ran = (w.fleet).try_dyscoctl(&w.lab.proxy, &["drain", ":8080", "-o", "json"])?;
        ensure!(ran.code == Some(0), "drain {drain}: {ran:?}");
        w.settle(&ends)?;
        group.wait_progress(500)?;
        all_intact(&group.finish()?)?;
        let pids = Role::ALL.map(|role| w.daemon(role).map(|d| d.id()));
        let all = pids.map(|pid| pid.and_then(resident));
        after.push(all.into_iter().collect::<Result<Vec<_>>>()?);
    }
    for (at, role) in Role::ALL.iter().enumerate() {
        let (second, last) = (after[1][at], after[DRAINS - 1][at]);
        let most = second + second / GROWTH;
        ensure!(last <= most, "{role:?}: {second} became {last}: {after:?}");
    }
    w.no_resets()?;
    w.finish()
}
