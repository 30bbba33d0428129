//! Files that `dyscod` keeps below `/run/dysco`: only their owner reads them, during changes and
//! after them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::world::World;
use crate::world::fates::SETTLED;
use anyhow::{Context, Result, ensure};
use dysco_netns::stream::{Plan, all_intact};
use dysco_netns::{Family, Lab, Role, wait};

const MIB: u64 = 1 << 20;

/// Returns all entries below a directory, with their modes. Sockets are left out.
fn modes(below: &Path) -> std::io::Result<Vec<(PathBuf, bool, u32)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(below)? {
        let entry = entry?;
        let (path, about) = (entry.path(), entry.metadata()?);
        if about.file_type().is_socket() {
            continue;
        }
        if about.is_dir() {
            all.extend(modes(&path)?);
        }
        all.push((path, about.is_dir(), about.permissions().mode() & 0o7777));
    }
    Ok(all)
}

/// Checks the modes on all hosts. Returns the number of files.
fn private(w: &World) -> Result<usize> {
    let mut files = 0;
    for host in Role::ALL {
        let all = w.lab.host(host).run(|| modes(Path::new("/run/dysco")));
        for (path, is_dir, mode) in all.context("failed to read /run/dysco")? {
            let allowed: &[u32] = if is_dir {
                &[0o700, 0o755]
            } else {
                &[0o600, 0o400]
            };
            let shown = path.display();
            ensure!(allowed.contains(&mode), "{shown} of {host:?}: {mode:o}");
            files += usize::from(!is_dir);
        }
    }
    Ok(files)
}

#[test]
fn records_and_histories_are_private() -> Result<()> {
    let mut w = World::new(Lab::builder("private"), Family::V4)?;
    let group = w.open(2, &Plan::gentle())?;
    group.run();
    group.wait_progress(MIB)?;
    let ends = w.ends(&group)?;
    w.wait_removable(&ends)?;

    w.fault(Role::Client, "die:Cut")?;
    w.begin(&ends[0])?;
    let daemon = w.daemon(Role::Client)?;
    wait::until("the daemon to die", SETTLED, || {
        (!daemon.runs()).then_some(())
    })?;
    let record = || fs::metadata("/run/dysco/state/changes").map(|about| about.len());
    let record = w.lab.client.run(record).context("no record")?;
    ensure!(record > 0, "the change has no record");
    private(&w)?;
    w.fault(Role::Client, "")?;
    w.restart(Role::Client)?;
    w.settle(&ends)?;
    w.remove_all()?;

    let put = ["service", "put", "+count", "--all", "--wait"];
    w.fleet.dyscoctl(&w.lab.client, &put)?;
    group.wait_progress(MIB)?;
    ensure!(private(&w)? > 0, "there is no file");
    all_intact(&group.finish()?)?;
    w.finish()
}
