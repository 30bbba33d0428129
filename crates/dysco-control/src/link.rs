//! Connection to a peer, from the handshake on.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dysco_common::chain;
use dysco_pki::{Validity, addresses_of, validity_of};
use quinn::{Connection, ConnectionError, RecvStream, SendStream, VarInt};
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::io::BufReader;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::error::DownReason;
use super::frame::{self, FrameError};
use super::{Identity, Secret};

/// Error codes of connections that this side closes.
pub(crate) mod close {
    /// The daemon stops.
    pub(crate) const STOPPING: u32 = 0;
    /// The peer broke the framing.
    pub(crate) const FRAMING: u32 = 1;
    /// The peer's certificate names no address.
    pub(crate) const ANONYMOUS: u32 = 2;
    /// The peer has too many connections.
    pub(crate) const TOO_MANY: u32 = 3;
    /// The peer's certificate is revoked.
    pub(crate) const REVOKED: u32 = 4;
    /// The peer's certificate is of another authority than the present one.
    pub(crate) const FOREIGN: u32 = 5;
    /// The peer's certificate has expired.
    pub(crate) const EXPIRED: u32 = 6;
}

/// Interval at which the clock is read while a time is waited for: it may be set meanwhile.
const CLOCK: Duration = Duration::from_secs(60);

/// Connection whose two ends have accepted each other's certificate.
pub(crate) struct Link {
    /// Identity of the peer.
    pub identity: Arc<Identity>,
    /// Certificate that proves the identity.
    pub certificate: CertificateDer<'static>,
    /// Time in which the certificate is valid.
    pub validity: Validity,
    /// Reason for which this side has closed the connection.
    closed_for: OnceLock<&'static str>,
    connection: Connection,
    out: Mutex<SendStream>,
}

/// Frames of the peer.
pub(crate) type Frames = BufReader<RecvStream>;

impl Link {
    /// Sends a greeting, and waits for the peer's greeting: only that proves to a client that the
    /// server accepted its certificate.
    pub(crate) async fn establish(connection: Connection) -> Result<(Link, Frames), DownReason> {
        let certificate = certificate(&connection).ok_or(DownReason::Anonymous)?;
        let validity = validity_of(&certificate).ok_or(DownReason::Anonymous)?;
        let identity = Identity {
            addresses: addresses_of(&certificate),
        };
        if identity.addresses.is_empty() {
            connection.close(
                VarInt::from_u32(close::ANONYMOUS),
                b"no address in certificate",
            );
            return Err(DownReason::Anonymous);
        }
        let mut out = connection.open_uni().await.map_err(|e| down_reason(&e))?;
        // If this write fails, the read below fails too and returns the reason.
        let _ = out.write_all(&frame::HELLO).await;
        let stream = connection.accept_uni().await.map_err(|e| down_reason(&e))?;
        let mut frames = BufReader::with_capacity(4 * frame::MAX_MESSAGE, stream);
        let link = Link {
            identity: Arc::new(identity),
            certificate,
            validity,
            closed_for: OnceLock::new(),
            connection,
            out: Mutex::new(out),
        };
        match frame::read(&mut frames).await {
            Ok(Some(hello)) if hello.is_empty() => Ok((link, frames)),
            Err(FrameError::Broken) => Err(link.why_closed().await),
            _ => Err(link.refuse_framing("no greeting")),
        }
    }

    /// Returns a key that only the two ends of this connection can derive, and its name. Ends with
    /// another version of the SYN's format derive other keys, so that neither steers to the other.
    pub(crate) fn key(&self) -> Option<(u64, Secret)> {
        let mut bytes = [0; 24];
        self.connection
            .export_keying_material(&mut bytes, b"EXPORTER-dysco-chain", &[chain::VERSION])
            .ok()?;
        let word = |at: usize| {
            let bytes = bytes[at..at + 8].iter().rev();
            bytes.fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        Some((word(0), Secret([word(8), word(16)])))
    }

    /// Writes frames, in order with those written before.
    pub(crate) async fn write(&self, frames: &[u8]) -> Result<(), quinn::WriteError> {
        self.out.lock().await.write_all(frames).await
    }

    /// Returns the source address of the peer's packets.
    pub(crate) fn via(&self) -> IpAddr {
        self.connection.remote_address().ip().to_canonical()
    }

    /// Returns true if the connection is usable, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    /// Waits for a time, in seconds since 1970. Returns false if the connection ends before.
    pub(crate) async fn lasts_until(&self, at: u64) -> bool {
        loop {
            let left = at.saturating_sub(UnixTime::now().as_secs());
            if left == 0 {
                return self.is_open();
            }
            let left = Duration::from_secs(left).min(CLOCK);
            if timeout(left, self.connection.closed()).await.is_ok() {
                return false;
            }
        }
    }

    /// Returns the round-trip time.
    pub(crate) fn rtt(&self) -> std::time::Duration {
        self.connection.rtt()
    }

    /// Closes the connection.
    pub(crate) fn close(&self, code: u32, why: &'static str) {
        // The first reason counts.
        let _ = self.closed_for.set(why);
        self.connection
            .close(VarInt::from_u32(code), why.as_bytes());
    }

    /// Closes the connection because of the peer's frames.
    pub(crate) fn refuse_framing(&self, why: &'static str) -> DownReason {
        self.close(close::FRAMING, why);
        DownReason::Framing(why)
    }

    /// Waits until the connection is closed, and returns the reason.
    pub(crate) async fn why_closed(&self) -> DownReason {
        match (self.connection.closed().await, self.closed_for.get()) {
            (ConnectionError::LocallyClosed, Some(why)) => DownReason::ClosedHere(why),
            (error, _) => down_reason(&error),
        }
    }
}

fn certificate(connection: &Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?;
    let chain = chain.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.first().cloned()
}

/// TLS alerts are transport errors from here on.
const CRYPTO_ERRORS: std::ops::Range<u64> = 0x100..0x200;

/// Returns the reason for which a connection ended, in an operator's words.
pub(crate) fn down_reason(error: &ConnectionError) -> DownReason {
    match error {
        ConnectionError::TransportError(e) if CRYPTO_ERRORS.contains(&u64::from(e.code)) => {
            DownReason::Tls(format!(
                "its certificate was not accepted here: {}",
                e.reason
            ))
        }
        ConnectionError::TransportError(e) => DownReason::Closed(e.to_string()),
        ConnectionError::ConnectionClosed(e)
            if CRYPTO_ERRORS.contains(&u64::from(e.error_code)) =>
        {
            DownReason::Tls(format!(
                "it did not accept this host's certificate: {}",
                printable(&e.reason)
            ))
        }
        ConnectionError::ConnectionClosed(e) => DownReason::Closed(e.error_code.to_string()),
        ConnectionError::ApplicationClosed(e) => DownReason::Closed(printable(&e.reason)),
        ConnectionError::Reset => DownReason::Closed("it was restarted".into()),
        ConnectionError::TimedOut => DownReason::Silent,
        ConnectionError::LocallyClosed => DownReason::ClosedHere("dyscod stops"),
        ConnectionError::VersionMismatch | ConnectionError::CidsExhausted => {
            DownReason::Closed(error.to_string())
        }
    }
}

/// Returns a peer's text, fit for a log line.
fn printable(words: &[u8]) -> String {
    let words = &words[..words.len().min(100)];
    words.escape_ascii().to_string()
}
