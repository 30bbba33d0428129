//! TLS as the channel uses it: version 1.3, both sides with a certificate of the fleet's authority
//! that is not on its list of revoked ones, no resumption.

use std::sync::Arc;
use std::time::Duration;

use dysco_pki::{Credentials, Validity};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{IdleTimeout, TransportConfig, VarInt};
use quinn_proto::HashedConnectionIdGenerator;
use ring::hmac;
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{CertificateError, RootCertStore};

use super::error::ControlError;
use super::frame::MAX_MESSAGE;

/// Name of the protocol in the handshake.
pub(crate) const ALPN: &[u8] = b"dysco/1";

const IDLE: Duration = Duration::from_secs(30);
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Assumed round-trip time. Hosts of a fleet are near: a lost first packet is retransmitted after
/// three times this.
const INITIAL_RTT: Duration = Duration::from_millis(50);
/// Window with room for 256 of the longest messages in flight.
const WINDOW: u32 = 256 * MAX_MESSAGE as u32;

/// Configuration with which this host accepts and connects by certain credentials, ready for use.
pub(crate) struct Tls {
    pub server: quinn::ServerConfig,
    pub client: quinn::ClientConfig,
    pub judge: Judge,
}

impl Tls {
    pub(crate) fn new(credentials: &Credentials) -> Result<Tls, ControlError> {
        let judge = Judge(verifier(credentials)?);
        Ok(Tls {
            server: server(credentials, Arc::clone(&judge.0))?,
            client: client(credentials)?,
            judge,
        })
    }
}

/// Judge of the certificates of connections that exist.
#[derive(Clone)]
pub(crate) struct Judge(Arc<dyn ClientCertVerifier>);

/// Verdict on a certificate that was accepted once. It does not depend on the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The certificate is the fleet's.
    Good,
    /// The list of the authority has it.
    Revoked,
    /// The authority is another one now.
    Foreign,
}

impl Judge {
    /// Judges a certificate at a time of its own validity: the verifier would not look an expired one
    /// up in the list.
    pub(crate) fn verdict(&self, certificate: &CertificateDer<'_>, validity: Validity) -> Verdict {
        let now = UnixTime::now().as_secs();
        let at = now.max(validity.not_before).min(validity.not_after);
        let at = UnixTime::since_unix_epoch(Duration::from_secs(at));
        match self.0.verify_client_cert(certificate, &[], at) {
            Ok(_) => Verdict::Good,
            Err(rustls::Error::InvalidCertificate(CertificateError::Revoked)) => Verdict::Revoked,
            Err(_) => Verdict::Foreign,
        }
    }
}

fn verifier(credentials: &Credentials) -> Result<Arc<dyn ClientCertVerifier>, ControlError> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots(credentials)?, provider());
    Ok(builder.with_crls(credentials.revoked.clone()).build()?)
}

fn server(
    credentials: &Credentials,
    verifier: Arc<dyn ClientCertVerifier>,
) -> Result<quinn::ServerConfig, ControlError> {
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![credentials.cert.clone()], credentials.key.clone_key())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.send_tls13_tickets = 0;
    let crypto = Arc::new(QuicServerConfig::try_from(tls)?);
    let mut config = quinn::ServerConfig::with_crypto(crypto);
    config.transport_config(transport());
    Ok(config)
}

/// Returns the configuration with which this host connects.
pub(crate) fn client(credentials: &Credentials) -> Result<quinn::ClientConfig, ControlError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(credentials)?, provider());
    let verifier = verifier.with_crls(credentials.revoked.clone()).build()?;
    let mut tls = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(vec![credentials.cert.clone()], credentials.key.clone_key())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    tls.resumption = Resumption::disabled();
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport());
    Ok(config)
}

/// Returns the endpoint's configuration. A restarted daemon must be able to report to peers that it
/// knows nothing of their connections. The keys by which it recognises these connections and proves
/// its identity therefore outlive it.
pub(crate) fn endpoint(credentials: &Credentials) -> quinn::EndpointConfig {
    let secret = hmac::Key::new(hmac::HMAC_SHA256, credentials.key.secret_der());
    let derive = |label: &[u8]| hmac::sign(&secret, label);
    let reset = derive(b"dysco/1 stateless reset");
    let reset = hmac::Key::new(hmac::HMAC_SHA256, reset.as_ref());
    let ids = derive(b"dysco/1 connection ids");
    let ids = ids.as_ref().iter().take(8);
    let ids = ids.fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
    let mut config = quinn::EndpointConfig::new(Arc::new(reset));
    config.cid_generator(move || Box::new(HashedConnectionIdGenerator::from_key(ids)));
    config
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(provider::default_provider())
}

fn roots(credentials: &Credentials) -> Result<Arc<RootCertStore>, ControlError> {
    let mut roots = RootCertStore::empty();
    roots.add(credentials.ca.clone())?;
    Ok(Arc::new(roots))
}

fn transport() -> Arc<TransportConfig> {
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_uni_streams(VarInt::from_u32(1))
        .max_concurrent_bidi_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(WINDOW.into())
        .initial_rtt(INITIAL_RTT)
        .keep_alive_interval(Some(KEEP_ALIVE))
        .max_idle_timeout(IdleTimeout::try_from(IDLE).ok());
    Arc::new(transport)
}
