//! `cargo xtask dist`: packages for Debian and for distributions with RPM.
//!
//! [`stage`] fills a tree with the files of the packages. The distributions' own tools pack the
//! tree, by `packaging/debian` and `packaging/rpm` ([`pack`]). [`check`] installs the result in a
//! Debian 12, and [`container`] builds and runs the image.

mod check;
mod container;
mod debian;
mod pack;
mod sessions;
mod stage;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::setup::Need;
use crate::{build, setup, shell};

/// Build the packages.
#[derive(Args)]
pub(crate) struct Dist {
    /// Cargo profile of the programs; dev builds sooner, to try the packages. DYSCO_BIN_DIR names
    /// a folder of programs that are built already
    #[arg(long, value_enum, default_value_t = Profile::Release)]
    profile: Profile,
    /// Install, upgrade and remove the package in a Debian 12, and check the unit
    #[arg(long)]
    check: bool,
}

/// A profile of cargo's.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Profile {
    Release,
    Dev,
}

/// Version of everything that is built here.
const VERSION: &str = env!("CARGO_PKG_VERSION");

impl Dist {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        setup::ensure(match self.check {
            true => Need::PackageChecks,
            false => Need::Packages,
        })?;
        if self.profile == Profile::Release {
            setup::ensure(Need::ReleasePackages)?;
        }
        let folder = shell::target()?.join("dist");
        let tree = stage::fill(&folder, self.profile)?;
        let deb = pack::deb(&tree, &folder, VERSION)?;
        let rpm = pack::rpm(&tree, &folder, VERSION)?;
        println!("{}\n{}", deb.display(), rpm.display());
        if self.check {
            if self.profile == Profile::Release && !build::is_given() {
                check::sbom(&tree)?;
            }
            check::all(&check::Made { folder, deb, rpm }, &tree)?;
        }
        Ok(())
    }
}

/// Makes an empty folder.
fn empty(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("failed to empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("failed to make {}", folder.display()))
}
