//! Work of the proxy's side that the machine's commands have asked for. It is begun once all commands
//! are carried out, in one pass over the proxy's sockets for all sessions.

use dysco_proto::{ChangeId, Reason, Subsession};
use dysco_proxy::port::HeldPort;
use dysco_proxy::{Left, MeasureError, Measured, Pair, ProxySide};
use tokio::sync::mpsc::UnboundedSender;

use super::{Answer, Plane};

/// Work that has not begun.
#[derive(Default)]
pub(super) struct Jobs {
    measures: Vec<(ChangeId, Pair)>,
    closes: Vec<Close>,
}

/// Sockets that are to be closed.
#[derive(Clone)]
struct Close {
    change: ChangeId,
    pair: Pair,
    /// Session that the proxy has opened.
    opened: Subsession,
}

/// Measurement of a pair for a change.
pub(super) type PairMeasured = (ChangeId, Pair, Result<Measured, MeasureError>);

/// A proxy has left a session, or could not.
pub(super) struct ProxyLeft {
    /// The change.
    pub change: ChangeId,
    /// Session that the proxy had opened.
    pub opened: Subsession,
    /// Port by which it was opened: held, or not. Nothing if the sockets are not closed.
    pub port: Option<std::io::Result<HeldPort>>,
    /// Success if the sockets are closed.
    pub result: Result<(), Reason>,
}

impl ProxyLeft {
    fn new(close: Close, (closed, port): Left) -> ProxyLeft {
        ProxyLeft {
            change: close.change,
            opened: close.opened,
            port,
            result: closed.map(drop).map_err(|e| Reason::Failed(e.cause())),
        }
    }
}

impl Jobs {
    /// Adds a measurement.
    pub(super) fn measure(&mut self, change: ChangeId, pair: Pair) {
        self.measures.push((change, pair));
    }

    /// Adds the closing of a pair's sockets.
    pub(super) fn close(&mut self, change: ChangeId, pair: Pair, opened: Subsession) {
        self.closes.push(Close {
            change,
            pair,
            opened,
        });
    }
}

impl Plane {
    /// Begins the work that waits.
    pub(super) fn begin_jobs(&mut self) {
        let Jobs { measures, closes } = std::mem::take(&mut self.jobs);
        match &measures[..] {
            [] => {}
            [(change, pair)] => measure_alone(&self.proxy, &self.answers, *change, *pair),
            _ => self.measure_together(measures),
        }
        if !closes.is_empty() {
            let (proxy, answers) = (self.proxy.clone(), self.answers.clone());
            tokio::spawn(async move {
                let pairs = closes.iter().map(|close| close.pair).collect();
                let left = closes.into_iter().zip(proxy.leave(pairs).await);
                let left = left.map(|(close, left)| ProxyLeft::new(close, left));
                let _ = answers.send(Answer::Left(left.collect()));
            });
        }
    }

    /// Measures many pairs in one pass, and then each that needs more by itself.
    fn measure_together(&self, all: Vec<(ChangeId, Pair)>) {
        let (proxy, answers) = (self.proxy.clone(), self.answers.clone());
        tokio::spawn(async move {
            let pairs = all.iter().map(|(_, pair)| *pair).collect();
            let seen = proxy.measure_many(pairs).await;
            let mut measured = Vec::with_capacity(all.len());
            for ((change, pair), seen) in all.into_iter().zip(seen) {
                match seen {
                    Some(result) => measured.push((change, pair, result)),
                    None => measure_alone(&proxy, &answers, change, pair),
                }
            }
            let _ = answers.send(Answer::Measured(measured));
        });
    }
}

fn measure_alone(
    proxy: &ProxySide,
    answers: &UnboundedSender<Answer>,
    change: ChangeId,
    pair: Pair,
) {
    let (proxy, answers) = (proxy.clone(), answers.clone());
    tokio::spawn(async move {
        let result = proxy.measure(&pair).await;
        let _ = answers.send(Answer::Measured(vec![(change, pair, result)]));
    });
}
