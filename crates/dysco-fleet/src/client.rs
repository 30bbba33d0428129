//! Connections to a member of etcd.

use std::fmt::Display;
use std::future::Future;
use std::io;
use std::time::Duration;

use etcd_client::{Channel, Client, ConnectOptions};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Endpoint, Uri};

use crate::error::FleetError;
use crate::tls::{self, RevokedList};
use crate::{Member, Settings};

/// Time for a connection, and for the answer to a request.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval at which a silent connection is tested. etcd ends connections that are tested more
/// often than every 5 s (`--grpc-keepalive-min-time`).
const TEST: Duration = Duration::from_secs(10);

/// Connects to a member whose certificate is not on a list of revoked ones. The connection is made with
/// the first request.
pub(crate) async fn connect(
    settings: &Settings,
    member: &Member,
    revoked: Option<RevokedList>,
) -> Result<Client, FleetError> {
    let endpoint = endpoint(&member.url).map_err(|e| failed("connect to", member, e))?;
    let channel = if member.url.starts_with("https:") {
        let tls = tls::connector(&settings.keys, revoked).await?;
        // The URL of an IPv6 address has brackets, which are no part of it.
        let name = ServerName::try_from(member.host.clone());
        let name = name.map_err(|e| failed("connect to", member, wrong(e)))?;
        let dial = move |uri| dial(tls.clone(), name.clone(), uri);
        endpoint.connect_with_connector_lazy(tower::service_fn(dial))
    } else {
        endpoint.connect_lazy()
    };
    // A member that is cut off from the others knows no later policy.
    let options = ConnectOptions::new().with_require_leader(true);
    let connected = Client::from_channel(Channel::Tonic(channel), Some(options));
    answered("connect to", member, connected).await
}

fn endpoint(url: &str) -> Result<Endpoint, etcd_client::Error> {
    let origin: Uri = url.parse().map_err(wrong)?;
    // The connector of this crate does TLS: that of the client knows no list of revoked certificates,
    // and is used for "https".
    let plain = url.replacen("https:", "http:", 1);
    let plain: Uri = plain.parse().map_err(wrong)?;
    Ok(Endpoint::from(plain)
        .origin(origin)
        .connect_timeout(PATIENCE)
        .http2_keep_alive_interval(TEST)
        .keep_alive_timeout(PATIENCE)
        .keep_alive_while_idle(true))
}

fn wrong(error: impl Display) -> etcd_client::Error {
    etcd_client::Error::InvalidArgs(error.to_string())
}

/// Connects to a member by TLS.
async fn dial(
    tls: TlsConnector,
    name: ServerName<'static>,
    uri: Uri,
) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let to = uri.authority().map_or("", |authority| authority.as_str());
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(TokioIo::new(tls.connect(name, stream).await?))
}

/// Waits for the answer of a member, as long as it may take. `what` completes "failed to … etcd".
pub(crate) async fn answered<T>(
    what: &'static str,
    member: &Member,
    answer: impl Future<Output = Result<T, etcd_client::Error>>,
) -> Result<T, FleetError> {
    let url = || member.url.clone();
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(source)) => Err(failed(what, member, source)),
        Err(_) => Err(FleetError::Silent { what, url: url() }),
    }
}

pub(crate) fn failed(
    what: &'static str,
    member: &Member,
    source: etcd_client::Error,
) -> FleetError {
    FleetError::Etcd {
        what,
        url: member.url.clone(),
        source: Box::new(source),
    }
}

/// Writes the policy to the first member that takes it. Returns its revision.
pub(crate) async fn publish(
    settings: &Settings,
    revoked: Option<RevokedList>,
    text: String,
) -> Result<i64, FleetError> {
    let mut last = None;
    for member in &settings.members {
        match publish_at(settings, member, revoked.clone(), text.clone()).await {
            Ok(revision) => return Ok(revision),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(FleetError::Silent {
        what: "publish in",
        url: String::new(),
    }))
}

async fn publish_at(
    settings: &Settings,
    member: &Member,
    revoked: Option<RevokedList>,
    text: String,
) -> Result<i64, FleetError> {
    let mut client = connect(settings, member, revoked).await?;
    let put = client.put(settings.policy_key(), text, None);
    let answer = answered("publish in", member, put).await?;
    Ok(answer.header().map_or(0, |header| header.revision()))
}
