//! Contents of a certificate that identify its host.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;
use x509_parser::time::ASN1Time;

/// Returns the certificate, if it is one and nothing follows it.
pub(crate) fn parse<'a>(der: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    match parse_x509_certificate(der) {
        Ok(([], certificate)) => Some(certificate),
        _ => None,
    }
}

/// Returns the addresses that a certificate names, IPv4-mapped ones as IPv4. Empty if it names
/// none, or is no certificate.
pub fn addresses_of(der: &CertificateDer<'_>) -> Vec<IpAddr> {
    let Some(certificate) = parse(der) else {
        return Vec::new();
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else {
        return Vec::new();
    };
    names.value.general_names.iter().filter_map(ip).collect()
}

/// Time in which a certificate is valid, in seconds since 1970. Both ends belong to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Validity {
    /// Begin.
    pub not_before: u64,
    /// End.
    pub not_after: u64,
}

/// Returns the time in which a certificate is valid; none if it is no certificate.
pub fn validity_of(der: &CertificateDer<'_>) -> Option<Validity> {
    let certificate = parse(der)?;
    let validity = certificate.validity();
    let seconds = |time: &ASN1Time| u64::try_from(time.timestamp()).unwrap_or(0);
    Some(Validity {
        not_before: seconds(&validity.not_before),
        not_after: seconds(&validity.not_after),
    })
}

fn ip(name: &GeneralName<'_>) -> Option<IpAddr> {
    let GeneralName::IPAddress(bytes) = name else {
        return None;
    };
    if let Ok(v4) = <[u8; 4]>::try_from(*bytes) {
        return Some(Ipv4Addr::from(v4).into());
    }
    let v6 = <[u8; 16]>::try_from(*bytes).ok()?;
    Some(Ipv6Addr::from(v6).to_canonical())
}
