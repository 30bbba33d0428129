//! Credentials by which a daemon is known to its peers, checked before use.

use std::fmt;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::CertifiedKey;
use rustls::{CertificateError, RootCertStore};
use x509_parser::time::ASN1Time;

use super::error::PkiError;
use super::{PkiPaths, files, subject};

const ISSUE_HINT: &str =
    "issue one with 'dyscoctl pki issue' and copy it here, or set pki_dir in [control]";

const RIGHTS_HINT: &str = "only root may read it: run dyscod, and 'dyscod --check', as root";

const LIST_HINT: &str = "copy revoked.crl here again, as 'dyscoctl pki revoke' wrote it";

/// Certificate and key of this host, and the fleet's authority.
pub struct Credentials {
    /// Certificate of the authority.
    pub ca: CertificateDer<'static>,
    /// Certificate of the host.
    pub cert: CertificateDer<'static>,
    /// Key of the host.
    pub key: PrivateKeyDer<'static>,
    /// List of revoked certificates of the authority, if there is one.
    pub revoked: Option<CertificateRevocationListDer<'static>>,
    /// Addresses that the certificate names.
    pub addresses: Vec<IpAddr>,
}

impl Credentials {
    /// Returns the times at which the authority's and the host's certificate expire, in seconds
    /// since 1970.
    pub fn not_after(&self) -> [i64; 2] {
        [&self.ca, &self.cert].map(|der| {
            // Both were parsed before.
            let certificate = subject::parse(der);
            certificate.map_or(0, |c| c.validity().not_after.timestamp())
        })
    }

    /// Returns the whole days until the authority's and the host's certificate expire; below 0 if they
    /// have expired.
    pub fn days_left(&self) -> [i64; 2] {
        let now = ASN1Time::now().timestamp();
        self.not_after().map(|end| (end - now).div_euclid(86_400))
    }
}

impl Credentials {
    /// Returns these credentials with another list of revoked certificates, that of `paths`.
    ///
    /// # Errors
    /// If the authority did not sign it, or the host's certificate is on it.
    pub fn with_list(
        self,
        list: CertificateRevocationListDer<'static>,
        paths: &PkiPaths,
    ) -> Result<Credentials, PkiError> {
        let provider = Arc::new(ring::default_provider());
        issued_by(paths, &self.cert, &self.ca, Some(&list), provider)?;
        Ok(Credentials {
            revoked: Some(list),
            ..self
        })
    }
}

impl Clone for Credentials {
    fn clone(&self) -> Self {
        Credentials {
            ca: self.ca.clone(),
            cert: self.cert.clone(),
            key: self.key.clone_key(),
            revoked: self.revoked.clone(),
            addresses: self.addresses.clone(),
        }
    }
}

impl fmt::Debug for Credentials {
    // The key stays hidden.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut s = f.debug_struct("Credentials");
        s.field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Reads a host's credentials, and checks that they belong together, are valid at this time, and
/// name all of the host's addresses.
pub fn load(paths: &PkiPaths, host: &[IpAddr]) -> Result<Credentials, PkiError> {
    let ca = certificate("the authority's certificate", &paths.ca)?;
    let cert = certificate("the host's certificate", &paths.cert)?;
    let key = files::read_key("the host's key", &paths.key, ISSUE_HINT).map_err(of_rights)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|_| malformed(&paths.key, "key"))?;

    in_time(&paths.ca, &ca)?;
    in_time(&paths.cert, &cert)?;
    let provider = Arc::new(ring::default_provider());
    keys_match(paths, &cert, &key, &provider)?;
    issued_by(paths, &cert, &ca, None, Arc::clone(&provider))?;
    let revoked = revocations(&paths.revoked)?;
    if let Some(list) = &revoked {
        issued_by(paths, &cert, &ca, Some(list), provider)?;
    }

    let addresses = subject::addresses_of(&cert);
    if let Some(missing) = host.iter().find(|a| !addresses.contains(&a.to_canonical())) {
        return Err(PkiError::WrongHost {
            path: paths.cert.clone(),
            address: *missing,
            named: named(&addresses),
        });
    }
    Ok(Credentials {
        ca,
        cert,
        key,
        revoked,
        addresses,
    })
}

/// Reads the list of revoked certificates; none if there is no file.
fn revocations(path: &Path) -> Result<Option<CertificateRevocationListDer<'static>>, PkiError> {
    let pem = match files::read("the list of revoked certificates", path, LIST_HINT) {
        Err(PkiError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(None);
        }
        read => read.map_err(of_rights)?,
    };
    let list = CertificateRevocationListDer::from_pem_slice(&pem);
    list.map(Some).map_err(|_| PkiError::Malformed {
        path: path.into(),
        what: "list of revoked certificates",
        hint: LIST_HINT,
    })
}

fn certificate(what: &'static str, path: &Path) -> Result<CertificateDer<'static>, PkiError> {
    let pem = files::read(what, path, ISSUE_HINT).map_err(of_rights)?;
    CertificateDer::from_pem_slice(&pem).map_err(|_| malformed(path, "certificate"))
}

/// Replaces the remedy of a file that exists and may not be read: another file would not help.
fn of_rights(error: PkiError) -> PkiError {
    match error {
        PkiError::Read {
            what, path, source, ..
        } if source.kind() == ErrorKind::PermissionDenied => PkiError::Read {
            what,
            path,
            source,
            hint: RIGHTS_HINT,
        },
        other => other,
    }
}

fn malformed(path: &Path, what: &'static str) -> PkiError {
    PkiError::Malformed {
        path: path.into(),
        what,
        hint: ISSUE_HINT,
    }
}

fn in_time(path: &Path, der: &CertificateDer<'_>) -> Result<(), PkiError> {
    let certificate = subject::parse(der).ok_or_else(|| malformed(path, "certificate"))?;
    let validity = certificate.validity();
    let now = ASN1Time::now();
    let when = if now < validity.not_before {
        format!("it is valid only from {}", validity.not_before)
    } else if now > validity.not_after {
        format!("it expired on {}", validity.not_after)
    } else {
        return Ok(());
    };
    Err(PkiError::OutOfTime {
        path: path.into(),
        when,
    })
}

fn keys_match(
    paths: &PkiPaths,
    cert: &CertificateDer<'static>,
    key: &PrivateKeyDer<'static>,
    provider: &CryptoProvider,
) -> Result<(), PkiError> {
    let pair = CertifiedKey::from_der(vec![cert.clone()], key.clone_key(), provider);
    pair.map(drop).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => PkiError::Mismatch {
            key: paths.key.clone(),
            cert: paths.cert.clone(),
        },
        _ => malformed(&paths.key, "key that TLS can use"),
    })
}

fn issued_by(
    paths: &PkiPaths,
    cert: &CertificateDer<'static>,
    ca: &CertificateDer<'static>,
    revoked: Option<&CertificateRevocationListDer<'static>>,
    provider: Arc<CryptoProvider>,
) -> Result<(), PkiError> {
    let authority = |why: String| PkiError::Authority {
        path: paths.ca.clone(),
        why,
    };
    let mut roots = RootCertStore::empty();
    roots
        .add(ca.clone())
        .map_err(|e| authority(e.to_string()))?;
    let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
        .with_crls(revoked.cloned())
        .build()
        .map_err(|e| authority(e.to_string()))?;
    let verdict = verifier.verify_client_cert(cert, &[], UnixTime::now());
    verdict.map(drop).map_err(|e| match (e, revoked) {
        (rustls::Error::InvalidCertificate(CertificateError::Revoked), _) => PkiError::Revoked {
            cert: paths.cert.clone(),
            list: paths.revoked.clone(),
        },
        (e, Some(_)) => PkiError::List {
            list: paths.revoked.clone(),
            ca: paths.ca.clone(),
            why: e.to_string(),
        },
        (e, None) => PkiError::Untrusted {
            cert: paths.cert.clone(),
            ca: paths.ca.clone(),
            why: e.to_string(),
        },
    })
}

fn named(addresses: &[IpAddr]) -> String {
    if addresses.is_empty() {
        return "none".into();
    }
    let words: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_may_not_be_read_is_not_to_be_issued_again() {
        let reported = |kind: ErrorKind| {
            of_rights(PkiError::Read {
                what: "the host's key",
                path: "host.key".into(),
                source: kind.into(),
                hint: ISSUE_HINT,
            })
            .to_string()
        };
        assert!(reported(ErrorKind::PermissionDenied).contains("as root"));
        assert!(reported(ErrorKind::NotFound).contains("pki issue"));
    }
}
