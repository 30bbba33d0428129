//! Connection of one client of the local API: reads its requests one after the other, and writes
//! the engine's answers.

use std::io;
use std::time::Duration;

use dysco_api::{Failure, FailureCode, Reply, Request};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::call::Call;
use super::caller::{Caller, Policy};
use super::stats;

/// Maximum length of a request, in bytes.
const MAX_LINE: usize = 64 * 1024;
/// Maximum length of a request of root, which may contain a policy.
const MAX_ROOT_LINE: usize = 1024 * 1024;
/// Time after which a client that sends no request is closed.
const SILENT: Duration = Duration::from_secs(30);
/// Time after which a client that does not read its answers is closed.
const STUCK: Duration = Duration::from_secs(5);
/// Maximum number of replies that wait for the client.
const REPLIES: usize = 1024;
/// Interval at which it is checked whether a waiting client is still there.
const LOOK: Duration = Duration::from_secs(1);
/// Number of bytes up to which waiting replies are written together.
const WRITE: usize = 64 * 1024;

/// Serves a client until it leaves.
pub(super) async fn run(
    stream: UnixStream,
    caller: Caller,
    policy: watch::Receiver<Policy>,
    calls: mpsc::Sender<Call>,
) {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let longest = if caller.is_root() {
        MAX_ROOT_LINE
    } else {
        MAX_LINE
    };
    // An error means that the client has left: nobody is there to be notified.
    while let Ok(Ok(Some(line))) = timeout(SILENT, read_line(&mut read, longest)).await {
        let asked = line
            .and_then(|line| parse(&line))
            .and_then(|request| policy.borrow().judge(&caller, &request).map(|()| request));
        let done = match asked {
            Ok(request) => {
                let ends = request == Request::Monitor;
                let (replies, answers) = mpsc::channel(REPLIES);
                let call = Call {
                    request,
                    caller: caller.clone(),
                    replies,
                };
                // Without an engine, `answers` ends at once, which reports the error.
                let _ = calls.send(call).await;
                relay(&mut read, &mut write, answers, ends).await
            }
            Err(failure) => {
                stats::count(failure.code);
                send(&mut write, &[Reply::Error(failure)]).await
            }
        };
        if done.is_err() {
            return;
        }
    }
}

/// Reports that there is no room.
pub(crate) fn turn_away(stream: UnixStream) {
    let failure = Failure {
        code: FailureCode::Busy,
        what: "ask dyscod".into(),
        why: "too many local clients are connected".into(),
        hint: "end some, such as other 'dyscoctl monitor'".into(),
    };
    stats::count(failure.code);
    let mut line = Vec::new();
    append(&mut line, &Reply::Error(failure));
    // A fresh socket has room for a line; if not, the close has to do.
    let _ = stream.try_write(&line);
}

/// Returns the next line, or an inner error if the line is too long.
async fn read_line(
    read: &mut (impl AsyncBufRead + Unpin),
    longest: usize,
) -> io::Result<Option<Result<Vec<u8>, Failure>>> {
    let mut line = Vec::new();
    let mut bounded = read.take(longest as u64 + 1);
    bounded.read_until(b'\n', &mut line).await?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(Ok(line))),
        Some(_) if line.len() > longest => {
            // The rest of the line belongs to no request.
            skip_line(read).await?;
            let why = format!("it is longer than {longest} bytes");
            let hint = "ask for fewer sessions at once, or shorten the policy";
            Ok(Some(Err(bad_request(why, hint))))
        }
        Some(_) => Ok(Some(Ok(line))),
    }
}

async fn skip_line(read: &mut (impl AsyncBufRead + Unpin)) -> io::Result<()> {
    loop {
        let bytes = read.fill_buf().await?;
        let len = bytes.len();
        let end = bytes.iter().position(|&b| b == b'\n');
        read.consume(end.map_or(len, |end| end + 1));
        if len == 0 || end.is_some() {
            return Ok(());
        }
    }
}

fn parse(line: &[u8]) -> Result<Request, Failure> {
    serde_json::from_slice(line).map_err(|error| {
        let hint = "use dyscoctl of the same version";
        bad_request(error.to_string(), hint)
    })
}

fn bad_request(why: String, hint: &str) -> Failure {
    Failure {
        code: FailureCode::BadRequest,
        what: "read the request".into(),
        why,
        hint: hint.into(),
    }
}

/// Writes answers up to the final one, as long as the client is there. If `ends` is set there is no
/// final answer: the client ends the exchange by closing, and anything that it sends before is
/// discarded.
async fn relay(
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
    mut answers: mpsc::Receiver<Reply>,
    ends: bool,
) -> io::Result<()> {
    let mut batch = Vec::new();
    loop {
        batch.clear();
        tokio::select! {
            _ = answers.recv_many(&mut batch, REPLIES) => {}
            left = left(read, ends) => return Err(left),
        }
        if batch.is_empty() {
            batch.push(Reply::Error(Failure {
                code: FailureCode::Internal,
                what: "answer the request".into(),
                why: "dyscod's engine gave no answer".into(),
                hint: "look at dyscod's log; it may be stopping".into(),
            }));
        }
        send(write, &batch).await?;
        if batch.iter().any(Reply::is_final) {
            return Ok(());
        }
    }
}

/// Waits until the client has left. If the client sends more or closes its half, only the end of
/// both halves shows that it has left.
async fn left(read: &mut BufReader<OwnedReadHalf>, ends: bool) -> io::Error {
    loop {
        match read.fill_buf().await {
            Ok([]) if ends => return io::ErrorKind::UnexpectedEof.into(),
            Ok(early) if ends => {
                let len = early.len();
                read.consume(len);
            }
            Ok(_) => return hung_up(read.get_ref()).await,
            Err(error) => return error,
        }
    }
}

async fn hung_up(read: &OwnedReadHalf) -> io::Error {
    loop {
        match read.ready(Interest::WRITABLE).await {
            Ok(ready) if ready.is_write_closed() => return io::ErrorKind::BrokenPipe.into(),
            Ok(_) => tokio::time::sleep(LOOK).await,
            Err(error) => return error,
        }
    }
}

async fn send(write: &mut OwnedWriteHalf, replies: &[Reply]) -> io::Result<()> {
    let mut lines = Vec::new();
    for reply in replies {
        append(&mut lines, reply);
        if lines.len() >= WRITE {
            flush(write, &mut lines).await?;
        }
    }
    flush(write, &mut lines).await
}

async fn flush(write: &mut OwnedWriteHalf, lines: &mut Vec<u8>) -> io::Result<()> {
    timeout(STUCK, write.write_all(lines)).await??;
    lines.clear();
    Ok(())
}

fn append(lines: &mut Vec<u8>, reply: &Reply) {
    match serde_json::to_writer(&mut *lines, reply) {
        Ok(()) => lines.push(b'\n'),
        Err(error) => tracing::error!(%error, "failed to encode a reply"),
    }
}
