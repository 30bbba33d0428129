//! Authority of a fleet, and the certificates that it issues.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dysco_explain::Cause;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::time::ASN1Time;

use super::error::PkiError;
use super::files::{self, Batch, PUBLIC, SECRET};
use super::{CA_CERT, CA_KEY, HOST_CERT, HOST_KEY, subject};

/// Validity of an authority, in days.
pub(super) const CA_DAYS: u32 = 3650;
/// Validity of a host's certificate in days, unless another one is requested.
pub const HOST_DAYS: u32 = 365;
/// Tolerated difference between clocks of a fleet.
pub(super) const SKEW: Duration = Duration::from_secs(3600);
pub(super) const DAY: Duration = Duration::from_secs(86400);

pub(super) const INIT_HINT: &str =
    "make an authority with 'dyscoctl pki init', or name its directory with --dir";

/// Contents of a certificate to be issued.
#[derive(Clone, Debug)]
pub struct IssueRequest {
    /// Directory of the authority.
    pub dir: PathBuf,
    /// Name of the host.
    pub name: String,
    /// Addresses of the host.
    pub addresses: Vec<IpAddr>,
    /// Directory for certificate and key.
    pub out: PathBuf,
    /// Validity in days.
    pub days: u32,
}

/// Makes a fleet's authority: `ca.crt` and `ca.key` in `dir`.
pub fn init(dir: &Path) -> Result<(), PkiError> {
    let key = new_key()?;
    let mut params = params("dysco fleet authority", CA_DAYS)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params
        .self_signed(&key)
        .map_err(generate("sign the authority"))?;

    files::make_dir(dir)?;
    let mut batch = Batch::default();
    batch.write(&dir.join(CA_KEY), SECRET, &key.serialize_pem())?;
    batch.write(&dir.join(CA_CERT), PUBLIC, &certificate.pem())?;
    batch.keep();
    Ok(())
}

/// Issues a host's certificate: `host.crt`, `host.key` and `ca.crt` in `out`.
pub fn issue(request: &IssueRequest) -> Result<(), PkiError> {
    let addresses = check(request)?;
    let (ca_pem, issuer) = authority(&request.dir)?;
    let key = new_key()?;
    let mut params = params(&request.name, request.days)?;
    params.subject_alt_names = addresses.into_iter().map(SanType::IpAddress).collect();
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    params.use_authority_key_identifier_extension = true;
    let certificate = params
        .signed_by(&key, &issuer)
        .map_err(generate("sign the certificate"))?;

    files::make_dir(&request.out)?;
    let mut batch = Batch::default();
    batch.write(&request.out.join(HOST_KEY), SECRET, &key.serialize_pem())?;
    batch.write(&request.out.join(HOST_CERT), PUBLIC, &certificate.pem())?;
    let ca = request.out.join(CA_CERT);
    let same = std::fs::read_to_string(&ca).is_ok_and(|there| there == ca_pem);
    if !same {
        batch.write(&ca, PUBLIC, &ca_pem)?;
    }
    batch.keep();
    Ok(())
}

/// Returns the addresses, sorted and without duplicates, if a certificate can be issued for them.
fn check(request: &IssueRequest) -> Result<Vec<IpAddr>, PkiError> {
    let bad = |cause| Err(PkiError::BadRequest(cause));
    let name = &request.name;
    if name.is_empty() || name.len() > 64 || !name.chars().all(|c| c.is_ascii_graphic()) {
        let why = format!("'{}' is no host name", name.escape_default());
        return bad(Cause::new(why).hint("use up to 64 letters, digits and dashes"));
    }
    if !(1..=CA_DAYS).contains(&request.days) {
        let why = format!("--days is {}", request.days);
        return bad(Cause::new(why).hint(format!("give 1 to {CA_DAYS}")));
    }
    let mut addresses: Vec<_> = request.addresses.iter().map(IpAddr::to_canonical).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return bad(Cause::new("it must name an address of the host").hint("give --address"));
    }
    match addresses
        .iter()
        .find(|a| a.is_unspecified() || a.is_multicast())
    {
        Some(address) => bad(format!("{address} is no host's address").into()),
        None => Ok(addresses),
    }
}

/// Returns the authority of a directory: its certificate, and its key for signing.
pub(super) fn authority(dir: &Path) -> Result<(String, Issuer<'static, KeyPair>), PkiError> {
    let (cert_path, key_path) = (dir.join(CA_CERT), dir.join(CA_KEY));
    let pem = files::read("the authority's certificate", &cert_path, INIT_HINT)?;
    let key = files::read_key("the authority's key", &key_path, INIT_HINT)?;
    let malformed = |path: &Path, what| PkiError::Malformed {
        path: path.into(),
        what,
        hint: INIT_HINT,
    };
    let pem = String::from_utf8(pem).map_err(|_| malformed(&cert_path, "certificate"))?;
    let key = String::from_utf8(key).map_err(|_| malformed(&key_path, "key"))?;
    let key = KeyPair::from_pem(&key).map_err(|_| malformed(&key_path, "key"))?;
    let der = CertificateDer::from_pem_slice(pem.as_bytes())
        .map_err(|_| malformed(&cert_path, "certificate"))?;
    let certificate = subject::parse(&der).ok_or_else(|| malformed(&cert_path, "certificate"))?;
    if certificate.public_key().raw != rcgen::PublicKeyData::subject_public_key_info(&key) {
        return Err(PkiError::Mismatch {
            key: key_path,
            cert: cert_path,
        });
    }
    let issuer = Issuer::from_ca_cert_der(&der, key).map_err(generate("read the authority"))?;
    Ok((pem, issuer))
}

fn new_key() -> Result<KeyPair, PkiError> {
    KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(generate("make a key"))
}

fn params(name: &str, days: u32) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name.remove(DnType::CommonName);
    params.distinguished_name.push(DnType::CommonName, name);
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    params.not_before = date(now.saturating_sub(SKEW))?.to_datetime();
    params.not_after = date(now + days * DAY)?.to_datetime();
    Ok(params)
}

pub(super) fn date(since_1970: Duration) -> Result<ASN1Time, PkiError> {
    let seconds = i64::try_from(since_1970.as_secs()).ok();
    let date = seconds.and_then(|s| ASN1Time::from_timestamp(s).ok());
    date.ok_or_else(|| PkiError::BadRequest("the clock is out of range".into()))
}

pub(super) fn generate(what: &'static str) -> impl FnOnce(rcgen::Error) -> PkiError {
    move |source| PkiError::Generate { what, source }
}
