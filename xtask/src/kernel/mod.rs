//! `cargo xtask test --kernel`: tests of the host programs on other kernels of Debian, under qemu.
//!
//! The kernel comes as a package ([`packages`]) and is booted with this machine's file system, or
//! one of another architecture ([`userland`]), below a layer in memory ([`image`], [`machine`]).
//! There this program runs as `cargo xtask guest` ([`guest`]) and writes its findings.

pub(crate) mod arch;
pub(crate) mod guest;
mod image;
mod machine;
mod on_time;
pub(crate) mod packages;
mod userland;

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

use crate::setup::Need;
use crate::{setup, shell};
use arch::Arch;
use userland::Userland;

/// Series that `all` selects, of those in Debian: those of its releases, and the newest.
const ALL: &[&str] = &["6.1", "6.12", packages::NEWEST];
/// Series of a guest for which none is named: the oldest that Dysco supports.
const OLDEST: &str = "6.1";
/// Number of guests that run at the same time. A guest waits for a third of its time.
const AT_ONCE: usize = 2;

/// Guests to test.
pub(crate) struct Guests {
    /// Their architecture.
    pub arch: Arch,
    /// Their kernels: the series of a release, or `all`; the oldest if there is none.
    pub kernels: Vec<String>,
    /// True if the demo of a removal also runs over each kind of link, and the tests that need a
    /// kernel other than this machine's.
    pub links: bool,
}

/// Findings on a kernel.
#[derive(Serialize, Deserialize, Debug, Default)]
pub(crate) struct Found {
    /// Release of the kernel, as `uname -r` prints it.
    kernel: String,
    /// True if the kernel accepts the eBPF programs.
    loaded: bool,
    /// Number of instructions that its verifier processed, by program.
    instructions: BTreeMap<String, u32>,
    /// Number of the demo's sessions that lost their proxy; `None` if the demo did not run.
    removed: Option<u64>,
    /// True if every byte of the demo arrived.
    intact: Option<bool>,
    /// Number of sessions that lost their proxy, of those that were open before `dyscod` started.
    adopted: Option<u64>,
    /// Number of sessions that the reload lost.
    reload_lost: Option<u64>,
    /// Number of times that services came into a session and left it again.
    services_taken: Option<u64>,
    /// Services of the packet plane over an interface with the queueing discipline `fq`.
    on_time: Option<on_time::OnTime>,
    /// Results by kind of link: true if all sessions lost their proxy over it.
    links: BTreeMap<String, bool>,
    /// Features that the kernel lacks, and the consequences.
    lacks: Vec<String>,
    /// Failures.
    failures: Vec<String>,
}

impl Found {
    /// True if everything works on this kernel.
    fn is_well(&self) -> bool {
        self.loaded && self.failures.is_empty()
    }
}

/// Tests the host programs in guests.
///
/// # Errors
/// If a guest cannot be made, or does not work.
pub(crate) fn test(guests: &Guests, json: bool) -> Result<()> {
    dysco_netns::require_root()?;
    setup::ensure(guests.arch.need())?;
    // Guests of other architectures have programs of their own.
    if guests.links && guests.arch == Arch::Amd64 {
        setup::ensure(Need::Links)?;
    }
    let folder = shell::target()?.join("kernels");
    let userland = Userland::make(guests.arch, &folder, guests.links)?;
    let mut ill = Vec::new();
    // One `apt` at a time uses the folder.
    let ready: Vec<_> = series(&guests.kernels)
        .into_iter()
        .map(|series| Ready::make(&series, guests, &userland, &folder).map_err(|e| (series, e)))
        .collect();
    for some in ready.chunks(AT_ONCE) {
        for found in at_once(some, guests, &userland, &folder) {
            match json {
                true => println!("{}", serde_json::to_string(&found)?),
                false => print(&found),
            }
            if !found.is_well() {
                ill.push(format!("{} ({})", found.kernel, found.failures.join("; ")));
            }
        }
    }
    ensure!(ill.is_empty(), "it does not work on {}", ill.join(", "));
    Ok(())
}

/// A kernel that can be booted.
struct Ready {
    kernel: packages::Kernel,
    image: image::Image,
}

/// A series without a kernel that can be booted, and the reason.
type Missing = (String, anyhow::Error);

impl Ready {
    fn make(series: &str, guests: &Guests, userland: &Userland, folder: &Path) -> Result<Self> {
        let arch = guests.arch;
        eprintln!(
            "Linux {series} for {}: looking for its package",
            arch.name()
        );
        let kernel = packages::fetch(folder, series, arch)?;
        let image = image::make(folder, &kernel, arch, userland)?;
        Ok(Self { kernel, image })
    }

    fn boot(&self, guests: &Guests, userland: &Userland, folder: &Path) -> Result<Found> {
        eprintln!("Linux {}: booting it under qemu", self.kernel.release);
        let guest = (guests.arch, guests.links);
        machine::run(folder, &self.kernel, &self.image, guest, userland)
    }
}

/// Boots these kernels at the same time. The failure of one does not hide the findings on the next.
fn at_once(
    some: &[Result<Ready, Missing>],
    guests: &Guests,
    userland: &Userland,
    folder: &Path,
) -> Vec<Found> {
    let failed = |kernel: &str, error: &anyhow::Error| Found {
        kernel: kernel.to_owned(),
        failures: vec![format!("{error:#}")],
        ..Found::default()
    };
    let boot = |ready: &Result<Ready, Missing>| match ready {
        Ok(ready) => ready
            .boot(guests, userland, folder)
            .unwrap_or_else(|error| failed(&ready.kernel.release, &error)),
        Err((series, error)) => failed(series, error),
    };
    std::thread::scope(|scope| {
        let boots: Vec<_> = some.iter().map(|one| scope.spawn(|| boot(one))).collect();
        let joined = boots.into_iter().map(|boot| boot.join());
        joined
            .map(|found| found.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn series(kernels: &[String]) -> Vec<String> {
    if kernels.is_empty() {
        return vec![OLDEST.to_owned()];
    }
    match kernels.iter().any(|k| k == "all") {
        true => ALL.iter().map(|k| (*k).to_owned()).collect(),
        false => kernels.to_vec(),
    }
}

fn print(found: &Found) {
    println!("Linux {}", found.kernel);
    let programs: Vec<_> = found
        .instructions
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    println!("  verified instructions: {}", programs.join(", "));
    let number = |n: Option<u64>| n.map_or("-".into(), |n| n.to_string());
    println!(
        "  sessions that lost their proxy: {}, every byte arrived: {}, adopted ones: {}, lost by a \
         reload: {}, services came and left: {}",
        number(found.removed),
        found
            .intact
            .map_or("-", |all| if all { "yes" } else { "no" }),
        number(found.adopted),
        number(found.reload_lost),
        number(found.services_taken)
    );
    if let Some(on_time) = &found.on_time {
        let [without, with] = on_time.round_trip_ms;
        println!(
            "  with fq: {:.2} of a rate passed, {} packets dropped; a delay of 50 ms: {without:.1} \
             ms, and then {with:.1}",
            on_time.share_of_rate, on_time.dropped
        );
    }
    for (kind, well) in &found.links {
        println!("  over {kind}: {}", if *well { "yes" } else { "no" });
    }
    for lack in &found.lacks {
        println!("  lacks: {lack}");
    }
    for failure in &found.failures {
        println!("  failed: {failure}");
    }
}

#[cfg(test)]
mod tests {
    use super::{ALL, OLDEST, series};

    #[test]
    fn all_kernels_include_the_oldest_which_is_the_default() {
        assert_eq!(series(&[]), [OLDEST]);
        assert!(ALL.contains(&OLDEST));
        assert_eq!(series(&["6.12".into(), "all".into()]), ALL);
        assert_eq!(series(&["6.12".into()]), ["6.12"]);
    }
}
