//! List of revoked certificates of the authority (RFC 5280, section 5).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::time::ASN1Time;

use super::error::PkiError;
use super::issue::{CA_DAYS, DAY, INIT_HINT, SKEW, authority, date, generate};
use super::list::{List, Revoked};
use super::{REVOKED, files, subject};

/// List that was signed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedList {
    /// Path of the list.
    pub path: PathBuf,
    /// Number of certificates in it.
    pub revoked: usize,
    /// True if there was no list before.
    pub is_first: bool,
}

/// Adds certificates to the list of the authority in `dir`, and signs the list again.
pub fn revoke(dir: &Path, certificates: &[PathBuf]) -> Result<SignedList, PkiError> {
    let (ca, issuer) = authority(dir)?;
    let path = dir.join(REVOKED);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let before = read(&path)?;
    let is_first = before.is_none();
    let (mut all, number): (Revoked, _) =
        before.map_or_else(Default::default, |l| (l.revoked, l.number));
    for certificate in certificates {
        let serial = serial(certificate, &ca)?;
        all.entry(serial).or_insert(date(now)?);
    }
    let entry = |(serial, at): (&Vec<u8>, &ASN1Time)| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time: at.to_datetime(),
        reason_code: Some(RevocationReason::Unspecified),
        invalidity_date: None,
    };
    let list = CertificateRevocationListParams {
        this_update: date(now.saturating_sub(SKEW))?.to_datetime(),
        // Daemons use a list until they are given another.
        next_update: date(now + CA_DAYS * DAY)?.to_datetime(),
        crl_number: SerialNumber::from_slice(&(number + 1u32).to_bytes_be()),
        issuing_distribution_point: None,
        revoked_certs: all.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = list
        .signed_by(&issuer)
        .map_err(generate("sign the list of revoked certificates"))?;
    let pem = list
        .pem()
        .map_err(generate("write the list of revoked certificates"))?;
    files::replace(&path, files::PUBLIC, &pem)?;
    Ok(SignedList {
        path,
        revoked: all.len(),
        is_first,
    })
}

/// Returns the list that is there; none if there is none yet.
fn read(path: &Path) -> Result<Option<List>, PkiError> {
    let malformed = || PkiError::Malformed {
        path: path.into(),
        what: "list of revoked certificates",
        hint: "put back the one that 'dyscoctl pki revoke' wrote",
    };
    let pem = match files::read("the list of revoked certificates", path, INIT_HINT) {
        Err(PkiError::Read { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Ok(None);
        }
        read => read?,
    };
    let der = CertificateRevocationListDer::from_pem_slice(&pem).map_err(|_| malformed())?;
    List::parse(&der).map(Some).ok_or_else(malformed)
}

/// Returns the serial number of a certificate of this authority.
fn serial(path: &Path, ca: &str) -> Result<Vec<u8>, PkiError> {
    let hint = "name a host.crt that 'dyscoctl pki issue' wrote";
    let malformed = || PkiError::Malformed {
        path: path.into(),
        what: "certificate",
        hint,
    };
    let pem = files::read("the certificate", path, hint)?;
    let der = CertificateDer::from_pem_slice(&pem).map_err(|_| malformed())?;
    let certificate = subject::parse(&der).ok_or_else(malformed)?;
    let ca = CertificateDer::from_pem_slice(ca.as_bytes()).map_err(|_| malformed())?;
    let authority = subject::parse(&ca).ok_or_else(malformed)?;
    let theirs = certificate.issuer() == authority.subject();
    if !theirs || certificate.raw_serial() == authority.raw_serial() {
        return Err(PkiError::NotIssued(path.into()));
    }
    Ok(certificate.raw_serial().to_vec())
}
