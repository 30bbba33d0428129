//! Server of pages by HTTP: on a unix socket, and on a TCP port if one is configured.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use dysco_explain::{Explain, Explanation, display_explained};
use dysco_pki::Credentials;
use futures::future::OptionFuture;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::handshakes::{Handshake, Handshakes};
use super::page::Format;
use super::snapshot::Snapshot;
use super::tls::{self, TlsError};
use crate::api::{self, ApiError};

/// Maximum number of connections to the unix socket, and of those to the TCP port: pages are made
/// one after the other.
const CONNECTIONS: usize = 16;
/// Time after which a client is closed that does not complete its request or its TLS handshake.
const SLOW: Duration = Duration::from_secs(10);
/// Time after which a connection is closed, even if its client is active.
const LONGEST: Duration = Duration::from_secs(600);
/// Time after which a failed accept is repeated.
const AGAIN: Duration = Duration::from_millis(50);

/// Configuration key that names the unix socket.
const SOCKET_KEY: &str = "[metrics] socket";

/// Request for the present numbers.
pub type Scrape = oneshot::Sender<Snapshot>;

/// Error that keeps the server from starting.
#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    /// The unix socket cannot be used.
    Socket(#[from] ApiError),
    /// The TCP port cannot be used.
    Listen {
        /// Address and port.
        address: SocketAddr,
        /// Cause.
        source: io::Error,
    },
    /// TLS cannot use the keys.
    Tls(#[from] TlsError),
}

display_explained!(MetricsError);

impl Explain for MetricsError {
    fn explain(&self) -> Explanation {
        match self {
            MetricsError::Socket(error) => error.explain(),
            MetricsError::Listen { address, source } => {
                Explanation::new(format!("listen on {address} for metrics"), source)
                    .hint("set [metrics] listen to an address and a free port of this host")
            }
            MetricsError::Tls(error) => Explanation::new("set up TLS for metrics", error)
                .hint("set [metrics] tls = false, or issue the host's certificate anew"),
        }
    }
}

/// Sockets to listen on.
pub struct ServerConfig {
    /// Path of the unix socket.
    pub socket: PathBuf,
    /// Group that may use the unix socket.
    pub gid: Option<u32>,
    /// TCP address and port.
    pub listen: Option<SocketAddr>,
    /// Keys for TLS on that port.
    pub tls: Option<Credentials>,
}

/// Server of metrics. It ends when this value is dropped.
pub struct Server {
    socket: PathBuf,
    tls: watch::Sender<Option<TlsAcceptor>>,
    task: JoinHandle<()>,
}

impl Server {
    /// Accepts readers by other keys from now on, if it uses TLS. Existing connections continue.
    ///
    /// # Errors
    /// If the keys cannot be used; the present keys stay.
    pub fn renew(&self, credentials: &Credentials) -> Result<(), TlsError> {
        if self.tls.borrow().is_some() {
            self.tls.send_replace(Some(tls::acceptor(credentials)?));
        }
        Ok(())
    }

    /// Lets another group use the unix socket from now on. Existing connections continue.
    ///
    /// # Errors
    /// If the socket cannot be given to the group.
    pub fn admit(&self, gid: Option<u32>) -> Result<(), ApiError> {
        api::admit(&self.socket, gid, SOCKET_KEY)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        // Best effort: the next daemon replaces a socket on which nobody listens.
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Starts to listen. Must be called inside a tokio runtime.
pub fn serve(config: ServerConfig, scrapes: mpsc::Sender<Scrape>) -> Result<Server, MetricsError> {
    let (keys, tls) = watch::channel(config.tls.as_ref().map(tls::acceptor).transpose()?);
    let tcp = config.listen.map(bind).transpose()?;
    let unix = api::bind(&config.socket, config.gid, SOCKET_KEY)?;
    let task = tokio::spawn(accept(Listening { unix, tcp, tls }, scrapes));
    Ok(Server {
        socket: config.socket,
        tls: keys,
        task,
    })
}

fn bind(address: SocketAddr) -> Result<TcpListener, MetricsError> {
    let listener = std::net::TcpListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener)
    });
    listener.map_err(|source| MetricsError::Listen { address, source })
}

struct Listening {
    unix: UnixListener,
    tcp: Option<TcpListener>,
    tls: watch::Receiver<Option<TlsAcceptor>>,
}

async fn accept(on: Listening, scrapes: mpsc::Sender<Scrape>) {
    // Clients of the port cannot keep those of the unix socket away.
    let [of_unix, of_tcp] = [(); 2].map(|()| Arc::new(Semaphore::new(CONNECTIONS)));
    let handshakes = Handshakes::default();
    loop {
        let tcp = OptionFuture::from(on.tcp.as_ref().map(TcpListener::accept));
        let accepted = tokio::select! {
            unix = on.unix.accept() => unix.map(|(stream, _)| {
                take(stream, &of_unix, &scrapes);
            }),
            Some(tcp) = tcp => tcp.map(|(stream, client)| {
                let tls = on.tls.borrow().clone();
                match tls {
                    None => take(stream, &of_tcp, &scrapes),
                    Some(tls) => if let Some(handshake) = handshakes.begin(client.ip()) {
                        let room = Arc::clone(&of_tcp);
                        tokio::spawn(answer_tls(tls, stream, handshake, room, scrapes.clone()));
                    },
                }
            }),
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "failed to accept a reader of metrics");
            // Out of descriptors: the loop must not spin until some are free.
            tokio::time::sleep(AGAIN).await;
        }
    }
}

/// Serves a connection if there is room, and closes it otherwise.
fn take(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    room: &Arc<Semaphore>,
    scrapes: &mpsc::Sender<Scrape>,
) {
    if let Ok(permit) = Arc::clone(room).try_acquire_owned() {
        tokio::spawn(answer(stream, permit, scrapes.clone()));
    }
}

/// Serves a connection once its client has shown a certificate of the fleet. Until then it takes
/// none of the room of those that have.
async fn answer_tls(
    tls: TlsAcceptor,
    stream: TcpStream,
    handshake: Handshake,
    room: Arc<Semaphore>,
    scrapes: mpsc::Sender<Scrape>,
) {
    let accepted = timeout(SLOW, tls.accept(stream)).await;
    drop(handshake);
    // A client that fails here has no such certificate; TLS reports that to it.
    if let Ok(Ok(stream)) = accepted {
        take(stream, &room, &scrapes);
    }
}

async fn answer(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    _permit: OwnedSemaphorePermit,
    scrapes: mpsc::Sender<Scrape>,
) {
    let service = service_fn(|request| respond(request, &scrapes));
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(SLOW);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    // An error means that the client has left, or spoke no HTTP.
    let _ = timeout(LONGEST, connection).await;
}

async fn respond(
    request: Request<Incoming>,
    scrapes: &mpsc::Sender<Scrape>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            let format = wanted(request.headers().get_all(ACCEPT).iter());
            match page(scrapes, format).await {
                Some(page) => {
                    let mut response = plain(StatusCode::OK, page);
                    let kind = HeaderValue::from_static(media_type(format));
                    response.headers_mut().insert(CONTENT_TYPE, kind);
                    response
                }
                None => plain(StatusCode::SERVICE_UNAVAILABLE, "dyscod is stopping\n"),
            }
        }
        (_, "/metrics") => {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
            let allowed = HeaderValue::from_static("GET, HEAD");
            response.headers_mut().insert(ALLOW, allowed);
            response
        }
        _ => plain(StatusCode::NOT_FOUND, "metrics are at /metrics\n"),
    })
}

async fn page(scrapes: &mpsc::Sender<Scrape>, format: Format) -> Option<String> {
    let (sender, snapshot) = oneshot::channel();
    scrapes.send(sender).await.ok()?;
    let page = snapshot.await.ok()?.page().write(format);
    page.inspect_err(|error| tracing::error!(%error, "failed to write metrics"))
        .ok()
}

fn plain(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, text);
    response
}

/// Returns the format that a reader accepts: Prometheus names OpenMetrics, other programs do not.
fn wanted<'a>(mut accepted: impl Iterator<Item = &'a HeaderValue>) -> Format {
    let names = |value: &HeaderValue| {
        let value = value.to_str().unwrap_or_default();
        value.contains("application/openmetrics-text")
    };
    match accepted.any(names) {
        true => Format::OpenMetrics,
        false => Format::Prometheus,
    }
}

fn media_type(format: Format) -> &'static str {
    match format {
        Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
    }
}
