//! Errors of a configuration: the place, the fault and a hint.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dysco_explain::{AS_ROOT, Cause, Explain, Explanation, display_explained, is_of_permission};
use dysco_pki::PkiError;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A fault at a place in the file.
    At {
        /// Place in the file.
        place: Place,
        /// The fault.
        cause: Cause,
    },
    /// The host's interfaces cannot be listed.
    Interfaces(io::Error),
    /// A fault of a key or certificate.
    Pki(#[from] PkiError),
    /// The directory for pins is on no BPF file system.
    NoPins(PathBuf),
    /// An address to listen on does not belong to this host.
    Listen {
        /// Address that could not be bound.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Logging was already set up.
    Logging,
    /// Other network namespaces cannot be served.
    Namespaces(Cause),
    /// The network namespace of this name has no address yet.
    NoAddress(String),
}

display_explained!(ConfigError);

impl Explain for ConfigError {
    fn explain(&self) -> Explanation {
        match self {
            ConfigError::Read { path, source } => {
                let hint = match self.is_of_permission() {
                    true => AS_ROOT,
                    false => "name another with --config",
                };
                Explanation::new(format!("read the configuration {}", path.display()), source)
                    .hint(hint)
            }
            ConfigError::At { place, cause } => place.explain("use the configuration", cause),
            ConfigError::Interfaces(source) => {
                Explanation::new("list this host's interfaces", source)
            }
            ConfigError::Pki(error) if self.is_of_permission() => error.explain().hint(AS_ROOT),
            ConfigError::Pki(error) => error.explain(),
            ConfigError::NoPins(dir) => Explanation::new(
                format!("use {} for pinned maps", dir.display()),
                "it is on no BPF file system",
            )
            .hint("mount one there (mount -t bpf bpf /sys/fs/bpf), or name another pin_dir under [data_plane]"),
            ConfigError::Listen { address, source } => {
                Explanation::new(format!("listen for peers on UDP {address}"), source)
                    .hint("name an address of this host in [control] listen")
            }
            ConfigError::Logging => Explanation::new("set up logging", "it already is"),
            ConfigError::Namespaces(cause) => {
                cause.clone().of("serve the network namespaces of [host] namespaces")
            }
            ConfigError::NoAddress(name) => Explanation::new(
                format!("serve the network namespace {name}"),
                "none of its interfaces has an address yet",
            ),
        }
    }
}

impl ConfigError {
    /// Returns true if the user may not read the file, or a key that it names.
    pub fn is_of_permission(&self) -> bool {
        let reads = matches!(self, ConfigError::Read { .. } | ConfigError::Pki(_));
        reads && is_of_permission(self)
    }
}

/// A place in a file. Lines and columns count from one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    /// The file.
    pub path: PathBuf,
    /// Line and column, if known.
    pub at: Option<(usize, usize)>,
}

impl Place {
    /// Returns the place of a byte offset.
    pub fn of(path: &Path, text: &str, offset: Option<usize>) -> Place {
        let at = offset.and_then(|offset| text.get(..offset)).map(|before| {
            let line = before.matches('\n').count() + 1;
            let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
            (line, column)
        });
        Place {
            path: path.into(),
            at,
        }
    }
}

impl Place {
    /// Returns the explanation of a fault at this place.
    pub(crate) fn explain(&self, what: &str, cause: &Cause) -> Explanation {
        let cause = cause.clone().or_hint("correct it there");
        cause.of(format!("{what} {self}"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)?;
        match self.at {
            Some((line, column)) => write!(f, ", line {line}, column {column}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_read_the_file_is_not_told_to_name_another() {
        let read = |kind: io::ErrorKind| ConfigError::Read {
            path: "/etc/dysco/dyscod.toml".into(),
            source: kind.into(),
        };
        let denied = read(io::ErrorKind::PermissionDenied);
        assert!(denied.is_of_permission());
        assert_eq!(denied.explain().hint.as_deref(), Some(AS_ROOT));
        let missing = read(io::ErrorKind::NotFound);
        assert!(!missing.is_of_permission());
        let hint = missing.explain().hint.unwrap_or_default();
        assert!(hint.contains("--config"), "{hint}");
    }

    #[test]
    fn who_may_not_read_a_key_is_told_so() {
        let denied = ConfigError::Pki(PkiError::Read {
            what: "the key",
            path: "/etc/dysco/host.key".into(),
            source: io::ErrorKind::PermissionDenied.into(),
            hint: "issue one",
        });
        assert!(denied.is_of_permission());
        assert_eq!(denied.explain().hint.as_deref(), Some(AS_ROOT));
    }
}
