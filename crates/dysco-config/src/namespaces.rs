//! `[host] namespaces`: the other network namespaces of this machine that `dyscod` serves.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use dysco_explain::Cause;
use nix::sys::statfs::{FsType, statfs};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::error::ConfigError;
use super::rights::Rights;
use super::values::refuse;

/// Directory in which `ip netns` and container runtimes name network namespaces.
pub const NAMED: &str = "/run/netns";
/// The word for all namespaces.
const ALL: &str = "all";
/// Magic number of the file system of namespaces (linux/magic.h).
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// Network namespaces to serve, besides the own one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Namespaces {
    /// Those of all processes that `dyscod` sees, and those with a name in [`NAMED`].
    All,
    /// Those with these names in [`NAMED`] or these paths.
    Listed(Vec<String>),
}

impl Namespaces {
    /// Returns the path of a listed name.
    pub fn path(name: &str) -> PathBuf {
        Path::new(NAMED).join(name)
    }
}

fn checked(name: String) -> Result<String, Cause> {
    let why = match name.as_str() {
        ALL => "'all' is no namespace of a list",
        name if name.starts_with('/') => return Ok(name.into()),
        "" | "." | ".." => "a name of a network namespace is empty, or a directory",
        name if name.contains('/') => "a path of a network namespace begins with a /",
        _ => return Ok(name),
    };
    Err(Cause::new(why).hint(
        "write \"all\", or a list of names of 'ip netns' and absolute paths, as in [\"web\", \"/run/docker/netns/1a2b\"]",
    ))
}

impl Serialize for Namespaces {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Namespaces::All => s.serialize_str(ALL),
            Namespaces::Listed(names) => names.serialize(s),
        }
    }
}

impl<'de> Deserialize<'de> for Namespaces {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Written)
    }
}

struct Written;

impl<'de> Visitor<'de> for Written {
    type Value = Namespaces;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"all\", or a list of names and paths of network namespaces")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Namespaces, E> {
        match word {
            ALL => Ok(Namespaces::All),
            one => Err(refuse(
                Cause::new(format!("'{one}' is no list of network namespaces"))
                    .hint(format!("write \"all\", or [{one:?}]")),
            )),
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Namespaces, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = seq.next_element::<String>()? {
            let name = checked(name).map_err(refuse)?;
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if names.is_empty() {
            return Err(refuse(
                Cause::new("no namespace in the list").hint("leave it out for none"),
            ));
        }
        Ok(Namespaces::Listed(names))
    }
}

/// Checks that `dyscod` can enter these namespaces. Returns a warning for each that does not exist,
/// because it may be made later.
///
/// # Errors
/// If the process lacks the capability, or if a path is that of something else.
pub fn can_enter(namespaces: &Namespaces) -> Result<Vec<Cause>, ConfigError> {
    if !Rights::own().may_enter() {
        return Err(ConfigError::Namespaces(
            Cause::new("CAP_SYS_ADMIN is missing, without which no network namespace is entered")
                .hint("add it, as /usr/share/dysco/dyscod-containers.conf does for the unit, or leave out namespaces in [host]"),
        ));
    }
    let Namespaces::Listed(names) = namespaces else {
        return Ok(Vec::new());
    };
    let mut missing = Vec::new();
    for name in names {
        let path = Namespaces::path(name);
        match statfs(&path) {
            Ok(found) if found.filesystem_type() == NSFS_MAGIC => {}
            Ok(_) => {
                return Err(ConfigError::Namespaces(
                    Cause::new(format!("{} is no namespace", path.display())).hint(
                        "name one of 'ip netns list', or the path that the container runtime tells",
                    ),
                ));
            }
            Err(error) => missing.push(
                Cause::new(format!(
                    "the network namespace {} cannot be served now: {}",
                    path.display(),
                    io::Error::from(error)
                ))
                .hint("see 'ip netns list', unless it is to be made yet"),
            ),
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Namespaces, String> {
        #[derive(Debug, Deserialize)]
        struct File {
            namespaces: Namespaces,
        }
        let file: Result<File, _> = toml::from_str(&format!("namespaces = {text}\n"));
        file.map(|f| f.namespaces).map_err(|e| e.to_string())
    }

    #[test]
    fn all_or_a_list() {
        assert_eq!(parsed("\"all\""), Ok(Namespaces::All));
        let listed = parsed("[\"web\", \"/run/docker/netns/1a\", \"web\"]").unwrap();
        let names = ["web", "/run/docker/netns/1a"].map(String::from);
        assert_eq!(listed, Namespaces::Listed(names.into()));
        assert_eq!(Namespaces::path("web"), Path::new("/run/netns/web"));
        assert_eq!(Namespaces::path("/a/b"), Path::new("/a/b"));
        for (bad, reported) in [
            ("\"web\"", "write \"all\", or [\"web\"]"),
            ("[]", "leave it out for none"),
            ("[\"\"]", "is empty"),
            ("[\"all\"]", "'all' is no namespace of a list"),
            ("[\"a/b\"]", "begins with a /"),
            ("[\"..\"]", "a directory"),
        ] {
            let error = parsed(bad).unwrap_err();
            assert!(error.contains(reported), "{bad}: {error}");
        }
    }

    #[test]
    fn what_is_no_namespace_is_refused_and_what_is_missing_is_reported() {
        let listed = |names: &[&str]| {
            let names = names.iter().map(|name| name.to_string()).collect();
            can_enter(&Namespaces::Listed(names))
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = listed(&[&file.to_string_lossy()]).unwrap_err();
        assert!(error.to_string().contains("is no namespace"), "{error}");
        let missing = listed(&["/proc/self/ns/net", "not-there-at-all"]).unwrap();
        assert_eq!(missing.len(), 1);
        assert!(missing[0].why.contains("/run/netns/not-there-at-all"));
    }
}
