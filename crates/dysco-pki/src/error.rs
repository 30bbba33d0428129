//! What is wrong with keys and certificates, and what mends it.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

/// A failure about keys or certificates. Never holds key material.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read.
    #[error("failed to read {what} {path}: {source}; {mend}")]
    Read {
        /// What the file is.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
        /// What to do.
        mend: &'static str,
    },
    /// A file cannot be written.
    #[error("failed to write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is there already.
    #[error("failed to write {path}: it exists; move it away first, nothing was overwritten")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Others may read a key.
    #[error(
        "failed to use the key {path}: others may read it (mode {mode:04o}); run 'chmod 0600 {path}'"
    )]
    Exposed {
        /// The key.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// Not PEM, or not what it should be.
    #[error("failed to read {path}: it holds no {what} in PEM form; {mend}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// What to do.
        mend: &'static str,
    },
    /// A key that is not its certificate's.
    #[error(
        "failed to use {key}: it is not the key of {cert}; keep the two of one 'dyscoctl pki' run together"
    )]
    Mismatch {
        /// The key.
        key: PathBuf,
        /// The certificate.
        cert: PathBuf,
    },
    /// A certificate out of its time.
    #[error(
        "failed to use {path}: {when}; check the clock, or issue a new one with 'dyscoctl pki issue'"
    )]
    OutOfTime {
        /// The certificate.
        path: PathBuf,
        /// Expired when, or valid from when.
        when: String,
    },
    /// A certificate of another fleet.
    #[error(
        "failed to use {cert}: the authority {ca} did not issue it for a daemon ({why}); issue it again with 'dyscoctl pki issue'"
    )]
    Untrusted {
        /// The certificate.
        cert: PathBuf,
        /// The authority.
        ca: PathBuf,
        /// What the verifier says.
        why: String,
    },
    /// This host's certificate is revoked.
    #[error("failed to use {cert}: {list} revokes it; issue another with 'dyscoctl pki issue'")]
    Revoked {
        /// The certificate.
        cert: PathBuf,
        /// The list.
        list: PathBuf,
    },
    /// A list of revoked certificates that the authority did not sign.
    #[error(
        "failed to use {list}: it is not a list of the authority {ca} ({why}); copy the one here that 'dyscoctl pki revoke' wrote"
    )]
    List {
        /// The list.
        list: PathBuf,
        /// The authority.
        ca: PathBuf,
        /// What the verifier says.
        why: String,
    },
    /// A certificate for another host.
    #[error(
        "failed to use {path}: it does not name this host's address {address} (it names {named}); issue it again with '--address {address}'"
    )]
    WrongHost {
        /// The certificate.
        path: PathBuf,
        /// The address that is missing.
        address: IpAddr,
        /// Those that are there.
        named: String,
    },
    /// A name or address that no certificate can be for.
    #[error("failed to issue a certificate: {0}")]
    BadRequest(String),
    /// A certificate that the authority did not issue to a host.
    #[error(
        "failed to revoke {0}: it is not a host's certificate of this authority; name a host.crt that 'dyscoctl pki issue' wrote"
    )]
    NotIssued(PathBuf),
    /// The library.
    #[error("failed to {what}: {source}")]
    Generate {
        /// What was tried.
        what: &'static str,
        /// Why.
        source: rcgen::Error,
    },
    /// The TLS library.
    #[error("failed to set up the authority {path}: {why}")]
    Authority {
        /// The authority.
        path: PathBuf,
        /// Why.
        why: String,
    },
}
