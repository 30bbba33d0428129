//! One end of a session: sends its pattern and checks the pattern of the other end.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::{Phase, Session, lock, other};
use crate::plan::{SessionKind, Side};
use crate::relay::TURNED;

/// Length of the greeting in each direction. Its bytes count in the offsets of the bytes after it.
pub(super) const GREETING: u64 = 8;
/// Maximum number of bytes in one write.
const WRITE: usize = 32 << 10;
/// Time for which an end that can no longer send waits for the reason.
const LISTENS: Duration = Duration::from_secs(5);
/// Interval between two looks at the progress of the other end.
const LOOK: Duration = Duration::from_millis(2);

/// Sends the number of the session, and waits until the server has received it.
pub(super) async fn greet(stream: &mut TcpStream, id: u64) -> io::Result<()> {
    stream.write_u64(id).await?;
    match stream.read_u64().await? {
        heard if heard == id => Ok(()),
        heard => Err(io::Error::other(format!(
            "the server answered session {heard}"
        ))),
    }
}

/// Performs the server's part of the greeting.
pub(super) async fn hear_greeting(stream: &mut TcpStream) -> io::Result<u64> {
    let id = stream.read_u64().await?;
    stream.write_u64(id).await?;
    Ok(id)
}

/// Runs one end until it is over.
pub(super) async fn run(mut stream: TcpStream, session: &Session, side: Side) {
    let (mut read, mut write) = stream.split();
    let sent = async {
        let sent = send(&mut write, session, side).await;
        if let Err(error) = &sent {
            // The kernel reports the reset once. The reader then gets the end of the stream. After
            // a FIN, the error would be EPIPE (tcp_reset, net/ipv4/tcp_input.c).
            if error.kind() == io::ErrorKind::ConnectionReset {
                lock(&session.end(side).seen).error = Some(error.to_string());
            }
            sleep(LISTENS).await;
        }
        sent
    };
    let heard = receive(&mut read, session, side);
    tokio::pin!(sent, heard);
    let outcome = tokio::select! {
        done = &mut heard => match done {
            Ok(()) => sent.await,
            Err(error) => Err(error),
        },
        done = &mut sent => match done {
            Ok(()) => heard.await,
            Err(error) => Err(error),
        },
    };
    if let Err(error) = outcome {
        lock(&session.end(side).seen).error = Some(error.to_string());
    }
    session.end(side).over.store(true, Ordering::Relaxed);
}

/// Data that a side sends, and its timing.
enum Sending {
    /// A rate in bytes per second, and the number of milliseconds for which the side sends, if
    /// limited.
    Steady(u64, Option<u64>),
    /// Requests: bytes of a request, bytes of the answer that precedes the next one, and the pause.
    Ask(u64, u64, u64),
    /// Answers: bytes of an answer, and bytes of the request that precedes it.
    Answer(u64, u64),
}

fn sending(kind: SessionKind, side: Side) -> Sending {
    match (kind, side) {
        (SessionKind::Bulk { up, .. }, Side::Client) => Sending::Steady(up, None),
        (SessionKind::Bulk { down, .. }, Side::Server) => Sending::Steady(down, None),
        (
            SessionKind::Requests {
                ask,
                answer,
                pause_ms,
            },
            Side::Client,
        ) => Sending::Ask(ask.into(), answer.into(), pause_ms),
        (SessionKind::Requests { ask, answer, .. }, Side::Server) => {
            Sending::Answer(ask.into(), answer.into())
        }
        (SessionKind::SlowReader { side: slow, rate }, _) if side != slow => {
            Sending::Steady((4 * rate).max(4_000_000), None)
        }
        (SessionKind::SlowReader { .. }, _) => Sending::Steady(20_000, None),
        (
            SessionKind::HalfClosed {
                side: closes,
                after_ms,
                rate,
            },
            _,
        ) => Sending::Steady(rate, (closes == side).then_some(after_ms)),
        (SessionKind::TinyWindow { rate, .. }, _) => Sending::Steady(rate, None),
    }
}

struct Sender<'a, 'b> {
    write: &'a mut WriteHalf<'b>,
    session: &'a Session,
    side: Side,
    phase: watch::Receiver<Phase>,
    buffer: Vec<u8>,
}

async fn send(write: &mut WriteHalf<'_>, session: &Session, side: Side) -> io::Result<()> {
    let mut sender = Sender {
        write,
        session,
        side,
        phase: session.phase.clone(),
        buffer: vec![0; WRITE],
    };
    match sending(session.plan.kind, side) {
        Sending::Steady(rate, until) => sender.steadily(rate, until).await?,
        Sending::Ask(ask, answer, pause) => sender.ask(ask, answer, pause).await?,
        Sending::Answer(ask, answer) => sender.answer(ask, answer).await?,
    }
    write.shutdown().await
}

impl Sender<'_, '_> {
    fn runs(&self) -> bool {
        *self.phase.borrow() == Phase::Run
    }

    async fn wait_close(&mut self) {
        let _ = self.phase.wait_for(|p| *p == Phase::Close).await;
    }

    async fn steadily(&mut self, rate: u64, until_ms: Option<u64>) -> io::Result<()> {
        let (start, mut sent) = (Instant::now(), 0);
        let until = until_ms.map(Duration::from_millis);
        let goes_on = |sender: &Self| sender.runs() && until.is_none_or(|t| start.elapsed() < t);
        while goes_on(self) {
            let due = (start.elapsed().as_secs_f64() * rate as f64) as u64;
            let room = due.saturating_sub(sent).min(WRITE as u64);
            // A slow rate also sends its first bytes: small segments are a case to be tested.
            if room == 0 || (room < 1_000 && rate > 100_000) {
                let _ = timeout(Duration::from_millis(10), self.phase.changed()).await;
                continue;
            }
            // The side does not catch up on data for which the buffers had no room.
            let began = Instant::now();
            self.write(room).await?;
            sent += room;
            if began.elapsed() > Duration::from_millis(100) {
                sent = sent.max((start.elapsed().as_secs_f64() * rate as f64) as u64);
            }
        }
        match until {
            // The last bytes must arrive first: proxies discard what they hold of a half that
            // closes.
            Some(_) => self.wait_arrived().await,
            None => self.wait_close().await,
        }
        Ok(())
    }

    /// Waits until the other end has received everything, or sessions are to close.
    async fn wait_arrived(&mut self) {
        let sent = self.session.sent(self.side);
        while self.session.received(other(self.side)) < sent && *self.phase.borrow() != Phase::Close
        {
            sleep(LOOK).await;
        }
    }

    async fn ask(&mut self, ask: u64, answer: u64, pause_ms: u64) -> io::Result<()> {
        let mut answers = 0;
        while self.runs() {
            self.write(ask).await?;
            answers += answer;
            while self.session.received(self.side) < answers {
                if *self.phase.borrow() == Phase::Close {
                    return Ok(());
                }
                sleep(LOOK).await;
            }
            if pause_ms > 0 {
                let pause = Duration::from_millis(pause_ms);
                let _ = timeout(pause, self.phase.wait_for(|p| *p != Phase::Run)).await;
            }
        }
        self.wait_close().await;
        Ok(())
    }

    async fn answer(&mut self, ask: u64, answer: u64) -> io::Result<()> {
        let mut asked = 0;
        loop {
            while self.session.received(self.side) < asked + ask {
                if *self.phase.borrow() == Phase::Close {
                    return Ok(());
                }
                sleep(LOOK).await;
            }
            asked += ask;
            self.write(answer).await?;
        }
    }

    /// Writes this number of bytes of the pattern.
    async fn write(&mut self, bytes: u64) -> io::Result<()> {
        let counter = &self.session.end(self.side).sent;
        let (pattern, mut left) = (self.session.pattern(self.side), bytes);
        while left > 0 {
            let room = left.min(WRITE as u64) as usize;
            let at = counter.load(Ordering::Relaxed);
            pattern.fill(at, &mut self.buffer[..room]);
            let n = tokio::select! {
                n = self.write.write(&self.buffer[..room]) => n?,
                // Permanently full buffers do not keep the side from ending.
                Ok(_) = self.phase.wait_for(|p| *p == Phase::Close) => return Ok(()),
            };
            counter.fetch_add(n as u64, Ordering::Relaxed);
            left -= n as u64;
        }
        Ok(())
    }
}

async fn receive(read: &mut ReadHalf<'_>, session: &Session, side: Side) -> io::Result<()> {
    let pattern = session.pattern(other(side));
    let slow = match session.plan.kind {
        SessionKind::SlowReader { side: slow, rate } if slow == side => Some(rate),
        _ => None,
    };
    let end = session.end(side);
    let mut phase = session.phase.clone();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let resting = *phase.borrow() != Phase::Run;
        let room = match slow {
            // Twenty reads per second make up the rate.
            Some(rate) if !resting => buffer.len().min((rate / 20).max(1) as usize),
            _ => buffer.len(),
        };
        let n = read.read(&mut buffer[..room]).await?;
        if n == 0 {
            let mut seen = lock(&end.seen);
            seen.eof = seen.error.is_none();
            return Ok(());
        }
        let at = end.received.load(Ordering::Relaxed);
        turn_back(session.rewritten, at, &mut buffer[..n]);
        if let Some(wrong) = pattern.first_wrong(at, &buffer[..n]) {
            lock(&end.seen).wrong_at.get_or_insert(wrong);
        }
        end.received.store(at + n as u64, Ordering::Relaxed);
        if slow.is_some() && !resting {
            let pause = Duration::from_millis(50);
            let _ = timeout(pause, phase.wait_for(|p| *p != Phase::Run)).await;
        }
    }
}

/// Reverses the rewriting of a proxy, according to its plan.
fn turn_back(rewritten: Option<u64>, at: u64, bytes: &mut [u8]) {
    if let Some(from) = rewritten {
        let first = from.saturating_sub(at + GREETING).min(bytes.len() as u64) as usize;
        bytes[first..].iter_mut().for_each(|b| *b ^= TURNED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_rewritten_is_turned_back() {
        let mut bytes = [0; 4];
        turn_back(Some(20), 10, &mut bytes);
        assert_eq!(bytes, [0, 0, TURNED, TURNED]);
        let mut bytes = [0; 2];
        turn_back(Some(20), 100, &mut bytes);
        assert_eq!(bytes, [TURNED; 2]);
        turn_back(None, 100, &mut bytes);
        assert_eq!(bytes, [TURNED; 2]);
    }
}
