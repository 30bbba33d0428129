//! Connections to a member of etcd.

use std::future::Future;
use std::path::Path;
use std::time::Duration;

use etcd_client::{Certificate, Client, ConnectOptions, Identity, TlsOptions};

use crate::error::FleetError;
use crate::{Member, Settings};

/// Time for a connection, and for the answer to a request.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval at which a silent connection is tested. etcd ends connections that are tested more
/// often than every 5 s (`--grpc-keepalive-min-time`).
const TEST: Duration = Duration::from_secs(10);

/// Connects to a member.
pub(crate) async fn connect(settings: &Settings, member: &Member) -> Result<Client, FleetError> {
    let mut options = ConnectOptions::new()
        .with_connect_timeout(PATIENCE)
        .with_keep_alive(TEST, PATIENCE)
        .with_keep_alive_while_idle(true)
        // A member that is cut off from the others knows no later policy.
        .with_require_leader(true);
    if member.url.starts_with("https:") {
        options = options.with_tls(tls(settings, member).await?);
    }
    let connected = Client::connect([&member.url], Some(options));
    answered("connect to", member, connected).await
}

async fn tls(settings: &Settings, member: &Member) -> Result<TlsOptions, FleetError> {
    let [ca, cert, key] = [
        read(&settings.keys.ca).await?,
        read(&settings.keys.cert).await?,
        read(&settings.keys.key).await?,
    ];
    Ok(TlsOptions::new()
        .ca_certificate(Certificate::from_pem(ca))
        .identity(Identity::from_pem(cert, key))
        // The URL of an IPv6 address has brackets, which are no part of it.
        .domain_name(&member.host))
}

async fn read(path: &Path) -> Result<Vec<u8>, FleetError> {
    tokio::fs::read(path)
        .await
        .map_err(|source| FleetError::Keys {
            path: path.into(),
            source,
        })
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
pub(crate) async fn publish(settings: &Settings, text: String) -> Result<i64, FleetError> {
    let mut last = None;
    for member in &settings.members {
        match publish_at(settings, member, text.clone()).await {
            Ok(revision) => return Ok(revision),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or(FleetError::Silent {
        what: "publish in",
        url: String::new(),
    }))
}

async fn publish_at(settings: &Settings, member: &Member, text: String) -> Result<i64, FleetError> {
    let mut client = connect(settings, member).await?;
    let put = client.put(settings.policy_key(), text, None);
    let answer = answered("publish in", member, put).await?;
    Ok(answer.header().map_or(0, |header| header.revision()))
}
