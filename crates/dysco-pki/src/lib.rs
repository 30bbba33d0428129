//! Keys and certificates: one authority per fleet, one certificate per host, which names the host's
//! addresses. Keys are never printed. The configuration, the control channel and the command line
//! read and make them; the crate depends on none of the others, and on no runtime.

mod error;
mod files;
mod issue;
mod list;
mod load;
mod revoke;
mod subject;

use std::path::{Path, PathBuf};

use serde::Serialize;

pub use error::PkiError;
pub use issue::{HOST_DAYS, IssueRequest, init, issue};
pub use list::{Outdated, Revocations, is_one_authority};
pub use load::{Credentials, load};
pub use revoke::{SignedList, revoke};
pub use subject::{Validity, addresses_of, validity_of};

/// File of the authority's certificate, in every directory.
pub const CA_CERT: &str = "ca.crt";
/// File of the authority's key, where certificates are issued.
pub const CA_KEY: &str = "ca.key";
/// File of a host's certificate.
pub const HOST_CERT: &str = "host.crt";
/// File of a host's key.
pub const HOST_KEY: &str = "host.key";

/// File of the list of revoked certificates, beside the authority's certificate.
pub const REVOKED: &str = "revoked.crl";

/// Paths of a host's keys and certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PkiPaths {
    /// Certificate of the fleet's authority.
    pub ca: PathBuf,
    /// Certificate of this host.
    pub cert: PathBuf,
    /// Key of this host.
    pub key: PathBuf,
    /// Certificates that the authority has revoked; none without a file.
    pub revoked: PathBuf,
}

impl PkiPaths {
    /// Returns the usual names in a directory.
    pub fn in_dir(dir: &Path) -> PkiPaths {
        PkiPaths {
            ca: dir.join(CA_CERT),
            cert: dir.join(HOST_CERT),
            key: dir.join(HOST_KEY),
            revoked: dir.join(REVOKED),
        }
    }
}

#[cfg(test)]
mod tests;
