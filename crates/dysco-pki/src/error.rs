//! Errors of keys and certificates, each with its remedy.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// Failure that concerns keys or certificates. Never holds key material.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read.
    #[error("failed to read {what} {path}: {source}; {mend}")]
    Read {
        /// Kind of file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
        /// Remedy.
        mend: &'static str,
    },
    /// A file cannot be written.
    #[error("failed to write {path}: {source}")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file exists already.
    #[error("failed to write {path}: it exists; move it away first, nothing was overwritten")]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// Other users may read a key.
    #[error(
        "failed to use the key {path}: others may read it (mode {mode:04o}); run 'chmod 0600 {path}'"
    )]
    Exposed {
        /// Path of the key.
        path: PathBuf,
        /// File mode.
        mode: u32,
    },
    /// A file is not PEM, or holds another kind of object.
    #[error("failed to read {path}: it holds no {what} in PEM form; {mend}")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Expected object.
        what: &'static str,
        /// Remedy.
        mend: &'static str,
    },
    /// A key does not belong to its certificate.
    #[error(
        "failed to use {key}: it is not the key of {cert}; keep the two of one 'dyscoctl pki' run together"
    )]
    Mismatch {
        /// Path of the key.
        key: PathBuf,
        /// Path of the certificate.
        cert: PathBuf,
    },
    /// A certificate is not valid at this time.
    #[error(
        "failed to use {path}: {when}; check the clock, or issue a new one with 'dyscoctl pki issue'"
    )]
    OutOfTime {
        /// Path of the certificate.
        path: PathBuf,
        /// Time of expiry, or time from which it is valid.
        when: String,
    },
    /// A certificate is of another fleet.
    #[error(
        "failed to use {cert}: the authority {ca} did not issue it for a daemon ({why}); issue it again with 'dyscoctl pki issue'"
    )]
    Untrusted {
        /// Path of the certificate.
        cert: PathBuf,
        /// Path of the authority's certificate.
        ca: PathBuf,
        /// Message of the verifier.
        why: String,
    },
    /// This host's certificate is revoked.
    #[error("failed to use {cert}: {list} revokes it; issue another with 'dyscoctl pki issue'")]
    Revoked {
        /// Path of the certificate.
        cert: PathBuf,
        /// Path of the list.
        list: PathBuf,
    },
    /// The authority did not sign a list of revoked certificates.
    #[error(
        "failed to use {list}: it is not a list of the authority {ca} ({why}); copy the one here that 'dyscoctl pki revoke' wrote"
    )]
    List {
        /// Path of the list.
        list: PathBuf,
        /// Path of the authority's certificate.
        ca: PathBuf,
        /// Message of the verifier.
        why: String,
    },
    /// A certificate is for another host.
    #[error(
        "failed to use {path}: it does not name this host's address {address} (it names {named}); issue it again with '--address {address}'"
    )]
    WrongHost {
        /// Path of the certificate.
        path: PathBuf,
        /// Address that is missing.
        address: IpAddr,
        /// Addresses that the certificate names.
        named: String,
    },
    /// No certificate can be issued for a name or an address.
    #[error("failed to issue a certificate: {0}")]
    BadRequest(String),
    /// The authority did not issue this certificate to a host.
    #[error(
        "failed to revoke {0}: it is not a host's certificate of this authority; name a host.crt that 'dyscoctl pki issue' wrote"
    )]
    NotIssued(PathBuf),
    /// The certificate library failed.
    #[error("failed to {what}: {source}")]
    Generate {
        /// Attempted operation.
        what: &'static str,
        /// Cause.
        source: rcgen::Error,
    },
    /// The TLS library refuses the authority.
    #[error("failed to set up the authority {path}: {why}")]
    Authority {
        /// Path of the authority's certificate.
        path: PathBuf,
        /// Cause.
        why: String,
    },
}
