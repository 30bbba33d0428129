//! `cargo xtask dependencies`: the licences, sources and versions of all crates that this
//! repository builds with.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

use anyhow::{Context, Result, bail};
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package, PackageId};
use clap::Args;
use serde::Serialize;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::shell;

/// Check the licences, sources and versions of all dependencies.
#[derive(Args)]
pub(crate) struct Dependencies {
    /// Print the faults as JSON
    #[arg(long)]
    json: bool,
}

/// Licences that allow what this repository does: it ships programs under MIT or Apache-2.0, and
/// eBPF programs under GPL-2.0.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages of the programs that run on a host.
const SHIPPED: &[&str] = &["dysco-daemon", "dysco-ctl", "dysco-splice-preload"];

/// Crates of which cargo resolves two versions for the shipped programs: an optional one that
/// nothing turns on (embedded-io, for postcard), and older ones of ring (getrandom) and tonic
/// (base64).
const TWICE: &[&str] = &["base64", "embedded-io", "getrandom"];

/// A fault of the dependencies.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
enum Fault {
    /// The licence is missing, unknown or not in [`LICENCES`].
    Licence { of: String, licence: String },
    /// The crate comes from elsewhere than the public registry.
    Source { of: String, source: String },
    /// A shipped program contains several versions, and [`TWICE`] does not list the crate.
    Versions { of: String, versions: Vec<String> },
    /// [`TWICE`] lists a crate of which there is one version.
    Once { of: String },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Licence { of, licence } => {
                write!(f, "{of} has a licence that is not accepted: {licence}")
            }
            Fault::Source { of, source } => {
                write!(f, "{of} is not from the public registry, but from {source}")
            }
            Fault::Versions { of, versions } => write!(
                f,
                "a program that ships contains {of} {}: update what depends on the older one, or \
                 list {of} in xtask/src/dependencies.rs",
                versions.join(" and ")
            ),
            Fault::Once { of } => write!(
                f,
                "{of} is listed as present in two versions, and is not: remove it from \
                 xtask/src/dependencies.rs"
            ),
        }
    }
}

impl Dependencies {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<()> {
        let metadata = read()?;
        let faults = faults_of(&metadata)?;
        if self.json {
            println!("{}", serde_json::to_string(&faults)?);
        } else {
            faults.iter().for_each(|fault| println!("{fault}"));
            println!(
                "{} crates, {} faults",
                metadata.packages.len(),
                faults.len()
            );
        }
        match faults.len() {
            0 => Ok(()),
            n => bail!("{n} faults of dependencies"),
        }
    }
}

/// Reads the dependencies that the lock file pins, for this platform.
fn read() -> Result<Metadata> {
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = MetadataCommand::new();
    command
        .cargo_path(shell::cargo_path())
        .current_dir(shell::root());
    let options = ["--locked", "--filter-platform", &platform].map(String::from);
    command.other_options(options);
    command.exec().context("failed to read the dependencies")
}

fn faults_of(metadata: &Metadata) -> Result<BTreeSet<Fault>> {
    let mut faults = BTreeSet::new();
    let members: BTreeSet<_> = metadata.workspace_members.iter().collect();
    for package in &metadata.packages {
        if members.contains(&package.id) {
            continue;
        }
        let of = format!("{} {}", package.name, package.version);
        faults.extend(fault_of_licence(&of, package.license.as_deref()));
        faults.extend(fault_of_source(&of, package));
    }
    let versions = versions_of(&shipped(metadata)?);
    faults.extend(faults_of_versions(&versions, TWICE));
    Ok(faults)
}

/// Checks a licence expression (SPDX), in which older crates write `/` for `OR`.
fn fault_of_licence(of: &str, licence: Option<&str>) -> Option<Fault> {
    let is_accepted = |licence: &str| {
        let expression = Expression::parse_mode(licence, ParseMode::LAX);
        expression.is_ok_and(|expression| expression.evaluate(is_listed))
    };
    let licence = licence.unwrap_or("none");
    (!is_accepted(licence)).then(|| Fault::Licence {
        of: of.into(),
        licence: licence.into(),
    })
}

fn is_listed(required: &LicenseReq) -> bool {
    LICENCES.contains(&required.to_string().as_str())
}

fn fault_of_source(of: &str, package: &Package) -> Option<Fault> {
    let source = package.source.as_ref();
    let is_public = source.is_some_and(|source| source.is_crates_io());
    (!is_public).then(|| Fault::Source {
        of: of.into(),
        source: source.map_or_else(|| "a folder".into(), |source| source.repr.clone()),
    })
}

/// Returns the crates that the shipped programs contain.
fn shipped(metadata: &Metadata) -> Result<Vec<&Package>> {
    let resolve = metadata
        .resolve
        .as_ref()
        .context("cargo resolved nothing")?;
    let nodes: HashMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let packages: HashMap<&PackageId, &Package> =
        metadata.packages.iter().map(|p| (&p.id, p)).collect();
    let roots = metadata.packages.iter();
    let roots = roots.filter(|p| SHIPPED.contains(&p.name.as_str()));
    let mut open: Vec<&PackageId> = roots.map(|p| &p.id).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = open.pop() {
        let package = packages.get(id).context("cargo names an unknown crate")?;
        // A macro runs in the compiler, and is in no program.
        if package.targets.iter().any(|target| target.is_proc_macro()) || !seen.insert(id) {
            continue;
        }
        let deps = nodes.get(id).into_iter().flat_map(|node| &node.deps);
        let normal = deps.filter(|dep| {
            let mut kinds = dep.dep_kinds.iter();
            kinds.any(|kind| kind.kind == DependencyKind::Normal)
        });
        open.extend(normal.map(|dep| &dep.pkg));
    }
    Ok(seen.into_iter().map(|id| packages[id]).collect())
}

type Versions = BTreeMap<String, BTreeSet<String>>;

fn versions_of(packages: &[&Package]) -> Versions {
    let mut versions = Versions::new();
    for package in packages {
        let of = versions.entry(package.name.to_string()).or_default();
        of.insert(package.version.to_string());
    }
    versions
}

fn faults_of_versions(versions: &Versions, twice: &[&str]) -> Vec<Fault> {
    let several = versions.iter().filter(|(_, versions)| versions.len() > 1);
    let several: BTreeMap<_, _> = several.collect();
    let listed = |of: &String| twice.contains(&of.as_str());
    let unlisted = several.iter().filter(|(of, _)| !listed(of));
    let unlisted = unlisted.map(|(of, versions)| Fault::Versions {
        of: of.to_string(),
        versions: versions.iter().cloned().collect(),
    });
    let once = twice.iter().filter(|of| !several.keys().any(|k| k == *of));
    let once = once.map(|of| Fault::Once { of: of.to_string() });
    unlisted.chain(once).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_are_accepted_by_their_expressions() {
        let accepted = |licence| fault_of_licence("a 1.0.0", licence).is_none();
        assert!(accepted(Some("MIT OR Apache-2.0")) && accepted(Some("Unlicense/MIT")));
        assert!(accepted(Some("GPL-2.0-only OR MIT")) && accepted(Some("Apache-2.0 AND ISC")));
        assert!(accepted(Some("Apache-2.0 WITH LLVM-exception OR MIT")));
        assert!(!accepted(Some("GPL-3.0-only")) && !accepted(Some("MIT AND GPL-3.0-only")));
        assert!(!accepted(None) && !accepted(Some("my own")));
    }

    #[test]
    fn two_versions_are_a_fault_unless_they_are_listed() {
        let some = |versions: &[&str]| versions.iter().map(|v| v.to_string()).collect();
        let versions = Versions::from([
            ("a".to_string(), some(&["1.0.0", "2.0.0"])),
            ("b".to_string(), some(&["1.0.0"])),
        ]);
        let faults = faults_of_versions(&versions, &[]);
        assert!(matches!(&faults[..], [Fault::Versions { of, .. }] if of == "a"));
        assert!(faults_of_versions(&versions, &["a"]).is_empty());
        let faults = faults_of_versions(&versions, &["a", "b"]);
        assert!(matches!(&faults[..], [Fault::Once { of }] if of == "b"));
    }
}
