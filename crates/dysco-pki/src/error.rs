//! Errors of keys and certificates, each with a hint.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use dysco_explain::{Cause, Explain, Explanation, display_explained};

/// Failure that concerns keys or certificates. Never holds key material.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file cannot be read.
    Read {
        /// Kind of file.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
        /// Hint for the operator.
        hint: &'static str,
    },
    /// A file cannot be written.
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file exists already.
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// Other users may read a key.
    Exposed {
        /// Path of the key.
        path: PathBuf,
        /// File mode.
        mode: u32,
    },
    /// A file is not PEM, or holds another kind of object.
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Expected object.
        what: &'static str,
        /// Hint for the operator.
        hint: &'static str,
    },
    /// A key does not belong to its certificate.
    Mismatch {
        /// Path of the key.
        key: PathBuf,
        /// Path of the certificate.
        cert: PathBuf,
    },
    /// A certificate is not valid at this time.
    OutOfTime {
        /// Path of the certificate.
        path: PathBuf,
        /// Time of expiry, or time from which it is valid.
        when: String,
    },
    /// A certificate is of another fleet.
    Untrusted {
        /// Path of the certificate.
        cert: PathBuf,
        /// Path of the authority's certificate.
        ca: PathBuf,
        /// Message of the verifier.
        why: String,
    },
    /// This host's certificate is revoked.
    Revoked {
        /// Path of the certificate.
        cert: PathBuf,
        /// Path of the list.
        list: PathBuf,
    },
    /// The authority did not sign a list of revoked certificates.
    List {
        /// Path of the list.
        list: PathBuf,
        /// Path of the authority's certificate.
        ca: PathBuf,
        /// Message of the verifier.
        why: String,
    },
    /// A certificate is for another host.
    WrongHost {
        /// Path of the certificate.
        path: PathBuf,
        /// Address that is missing.
        address: IpAddr,
        /// Addresses that the certificate names.
        named: String,
    },
    /// No certificate can be issued for a name or an address.
    BadRequest(Cause),
    /// The authority did not issue this certificate to a host.
    NotIssued(PathBuf),
    /// The certificate library failed.
    Generate {
        /// Attempted operation.
        what: &'static str,
        /// Cause.
        source: rcgen::Error,
    },
    /// The TLS library refuses the authority.
    Authority {
        /// Path of the authority's certificate.
        path: PathBuf,
        /// Cause.
        why: String,
    },
}

display_explained!(PkiError);

impl Explain for PkiError {
    #[expect(
        clippy::too_many_lines,
        reason = "a table, with an arm for each variant"
    )]
    fn explain(&self) -> Explanation {
        let used =
            |path: &Path, why: String| Explanation::new(format!("use {}", path.display()), why);
        match self {
            PkiError::Read {
                what,
                path,
                source,
                hint,
            } => Explanation::new(format!("read {what} {}", path.display()), source).hint(hint),
            PkiError::Write { path, source } => {
                Explanation::new(format!("write {}", path.display()), source)
            }
            PkiError::Exists { path } => {
                Explanation::new(format!("write {}", path.display()), "it exists")
                    .hint("move it away first, nothing was overwritten")
            }
            PkiError::Exposed { path, mode } => {
                let path = path.display();
                Explanation::new(
                    format!("use the key {path}"),
                    format!("others may read it (mode {mode:04o})"),
                )
                .hint(format!("run 'chmod 0600 {path}'"))
            }
            PkiError::Malformed { path, what, hint } => Explanation::new(
                format!("read {}", path.display()),
                format!("it holds no {what} in PEM form"),
            )
            .hint(hint),
            PkiError::Mismatch { key, cert } => {
                used(key, format!("it is not the key of {}", cert.display()))
                    .hint("keep the two of one 'dyscoctl pki' run together")
            }
            PkiError::OutOfTime { path, when } => used(path, when.clone())
                .hint("check the clock, or issue a new one with 'dyscoctl pki issue'"),
            PkiError::Untrusted { cert, ca, why } => used(
                cert,
                format!(
                    "the authority {} did not issue it for a daemon ({why})",
                    ca.display()
                ),
            )
            .hint("issue it again with 'dyscoctl pki issue'"),
            PkiError::Revoked { cert, list } => {
                used(cert, format!("{} revokes it", list.display()))
                    .hint("issue another with 'dyscoctl pki issue'")
            }
            PkiError::List { list, ca, why } => used(
                list,
                format!("it is not a list of the authority {} ({why})", ca.display()),
            )
            .hint("copy the one here that 'dyscoctl pki revoke' wrote"),
            PkiError::WrongHost {
                path,
                address,
                named,
            } => used(
                path,
                format!("it does not name this host's address {address} (it names {named})"),
            )
            .hint(format!("issue it again with '--address {address}'")),
            PkiError::BadRequest(cause) => cause.clone().of("issue a certificate"),
            PkiError::NotIssued(path) => Explanation::new(
                format!("revoke {}", path.display()),
                "it is not a host's certificate of this authority",
            )
            .hint("name a host.crt that 'dyscoctl pki issue' wrote"),
            PkiError::Generate { what, source } => Explanation::new(what, source),
            PkiError::Authority { path, why } => {
                Explanation::new(format!("set up the authority {}", path.display()), why)
            }
        }
    }
}
