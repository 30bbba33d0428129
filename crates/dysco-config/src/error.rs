//! Errors of a configuration: the place, the fault and the remedy.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use dysco_pki::PkiError;

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("failed to read the configuration {path}: {source}; name another with --config")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A fault at a place in the file.
    #[error("failed to use the configuration {place}: {why}")]
    At {
        /// Place in the file.
        place: Place,
        /// Description of the fault, with the remedy.
        why: String,
    },
    /// The host's interfaces cannot be listed.
    #[error("failed to list this host's interfaces: {0}")]
    Interfaces(io::Error),
    /// A fault of a key or certificate.
    #[error(transparent)]
    Pki(#[from] PkiError),
    /// The directory for pins is on no BPF file system.
    #[error(
        "failed to use {0} for pinned maps: it is on no BPF file system; mount one there (mount -t bpf bpf /sys/fs/bpf), or name another pin_dir under [data_plane]"
    )]
    NoPins(PathBuf),
    /// An address to listen on does not belong to this host.
    #[error(
        "failed to run dyscod: failed to listen for peers on UDP {address}: {source}; is another dyscod running, or [control] listen not an address of this host?"
    )]
    Listen {
        /// Address that could not be bound.
        address: SocketAddr,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Logging was already set up.
    #[error("failed to set up logging: it already is")]
    Logging,
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)?;
        match self.at {
            Some((line, column)) => write!(f, ", line {line}, column {column}"),
            None => Ok(()),
        }
    }
}
