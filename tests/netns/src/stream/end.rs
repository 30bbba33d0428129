//! One end of a session: sends its pattern and checks the pattern of the other end.

use std::io;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::plan::{Amount, Close, Reading, Side};
use super::{Phase, Shared};

/// Actions and observations of one end of a session.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// Number of bytes handed to the kernel.
    pub sent: u64,
    /// Number of bytes received.
    pub received: u64,
    /// Offset of the first wrong byte.
    pub wrong_at: Option<u64>,
    /// True if the other end closed its half, and this end received the FIN.
    pub closed: bool,
    /// Error of a system call, if one failed.
    pub error: Option<String>,
}

/// Runs one end until it is over.
pub(crate) async fn run(mut stream: TcpStream, shared: &Shared, side: Side) -> End {
    let mut end = End::default();
    let mut got = End::default();
    let closed = Notify::new();
    let resets = shared.plan.close == Close::Reset(side);
    let (mut read, mut write) = stream.split();
    let outcome = {
        let mut sending = pin!(send(&mut write, shared, side, &closed, &mut end));
        let mut reading = pin!(receive(&mut read, shared, side, &closed, &mut got));
        let mut sent = None;
        let read = loop {
            tokio::select! {
                done = &mut sending, if sent.is_none() => {
                    sent = Some(done);
                    if resets { break Ok(()); }
                }
                done = &mut reading => break done,
            }
        };
        // The rest is sent after the other end's close, or fails together with it.
        let sent = match (sent, &read) {
            (Some(sent), _) => sent,
            (None, Ok(())) => sending.await,
            (None, Err(_)) => Ok(()),
        };
        read.and(sent)
    };
    if resets {
        let _ = stream.set_zero_linger();
    }
    let error = outcome.err().map(|e| e.to_string());
    End {
        sent: end.sent,
        error,
        ..got
    }
}

async fn send(
    write: &mut WriteHalf<'_>,
    shared: &Shared,
    side: Side,
    closed: &Notify,
    end: &mut End,
) -> io::Result<()> {
    let mut phase = shared.phase.clone();
    let _ = phase.wait_for(|p| *p != Phase::Opened).await;
    let mut until = shared.plan.amount(side);
    let mut waits = shared.plan.close == Close::First(side.other());
    let start = Instant::now();
    let mut buffer = vec![0; shared.plan.write];
    loop {
        let left = match until {
            Amount::Bytes(all) => all - end.sent,
            Amount::UntilStopped if *phase.borrow() == Phase::Resting => 0,
            Amount::UntilStopped if waits || *phase.borrow() == Phase::Running => u64::MAX,
            Amount::UntilStopped => 0,
        };
        let room = buffer.len().min(left.try_into().unwrap_or(usize::MAX));
        if room == 0 && *phase.borrow() == Phase::Resting {
            shared.sent[side as usize].store(end.sent, Ordering::Relaxed);
            let _ = phase.wait_for(|p| *p != Phase::Resting).await;
            shared.sent[side as usize].store(u64::MAX, Ordering::Relaxed);
            continue;
        }
        if room == 0 && waits {
            closed.notified().await;
            (waits, until) = (false, last(until, end.sent, shared.plan.after_close));
            continue;
        }
        if room == 0 {
            break;
        }
        shared.pattern(side).fill(end.sent, &mut buffer[..room]);
        tokio::select! {
            n = write.write(&buffer[..room]) => {
                end.sent += n? as u64;
            }
            () = closed.notified(), if waits => {
                (waits, until) = (false, last(until, end.sent, shared.plan.after_close));
            }
            Ok(()) = phase.changed() => {}
        }
        if let Some(rate) = shared.plan.rate {
            sleep_until(start + Duration::from_secs_f64(end.sent as f64 / rate as f64)).await;
        }
    }
    shared.sent[side as usize].store(end.sent, Ordering::Relaxed);
    if shared.plan.close == Close::Reset(side) {
        Ok(())
    } else {
        write.shutdown().await
    }
}

/// Total amount to send once the other end has closed its half.
fn last(until: Amount, sent: u64, after_close: u64) -> Amount {
    match until {
        Amount::Bytes(all) => Amount::Bytes(all.max(sent) + after_close),
        Amount::UntilStopped => Amount::Bytes(sent + after_close),
    }
}

async fn receive(
    read: &mut ReadHalf<'_>,
    shared: &Shared,
    side: Side,
    closed: &Notify,
    got: &mut End,
) -> io::Result<()> {
    let mut reading = shared.reading[side as usize].clone();
    let pattern = shared.pattern(side.other());
    let mut buffer = vec![0; 32 << 10];
    let outcome = loop {
        let now = *reading.borrow_and_update();
        let room = match now {
            Reading::Fast => buffer.len(),
            // Twenty reads per second make up the rate.
            Reading::Slow(rate) => buffer.len().min((rate / 20).max(1) as usize),
            Reading::Paused => {
                if reading.changed().await.is_err() {
                    break Ok(());
                }
                continue;
            }
        };
        let n = match read.read(&mut buffer[..room]).await {
            Ok(0) => break Ok(()),
            Ok(n) => n,
            Err(error) => break Err(error),
        };
        got.wrong_at = got
            .wrong_at
            .or(pattern.first_wrong(got.received, &buffer[..n]));
        got.received += n as u64;
        shared.received[side as usize].store(got.received, Ordering::Relaxed);
        if let Reading::Slow(_) = now {
            // A change of the reading mode ends the wait.
            let _ = tokio::time::timeout(Duration::from_millis(50), reading.changed()).await;
        }
    };
    got.closed = outcome.is_ok();
    closed.notify_one();
    outcome
}
