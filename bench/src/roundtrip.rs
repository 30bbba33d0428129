//! A message of the control channel and its answer, between two ends of `dyscod`'s own channel
//! without other work, one exchange after the other: a lower bound for two daemons.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use dysco_control::{Control, ControlConfig, Event};
use dysco_netns::Host;
use dysco_pki::{self as pki, PkiPaths};
use dysco_scheduling as scheduling;
use tokio::sync::{mpsc, oneshot};

/// Port of the channel, different from `dyscod`'s own.
const PORT: u16 = 7_979;
/// Length of a message, typical of the messages of a removal.
const MESSAGE: usize = 128;
const PATIENCE: Duration = Duration::from_secs(5);

/// The channel's end on a host.
struct End<'a> {
    host: &'a Host,
    address: IpAddr,
    /// True if its thread runs before other processes.
    first: bool,
}

impl End<'_> {
    /// Runs `work` with a channel on this host, in a thread of its own.
    fn thread<T, F>(
        &self,
        name: &str,
        work: impl FnOnce(Control, mpsc::Receiver<Event>) -> F + Send + 'static,
    ) -> Result<std::thread::JoinHandle<Result<T>>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>>,
    {
        let (keys, address) = (self.host.dir().join("pki"), self.address);
        let first = self.first;
        self.host.thread(name, move || {
            let credentials = pki::load(&PkiPaths::in_dir(&keys), &[address])?;
            scheduling::take(first);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("failed to start a runtime")?;
            runtime.block_on(async {
                let (control, events) = Control::start(ControlConfig {
                    listen: vec![SocketAddr::new(address, PORT)],
                    peer_port: PORT,
                    credentials,
                })?;
                work(control, events).await
            })
        })
    }
}

/// Returns the milliseconds of `count` round trips from one host to another. Both hosts have keys
/// of one authority. If `first`, both threads run before other processes, as a daemon's do while few
/// sessions change; else they have normal priority.
///
/// # Errors
/// If no answer arrives.
pub(crate) fn measure(
    from: (&Host, IpAddr),
    to: (&Host, IpAddr),
    count: usize,
    first: bool,
) -> Result<Vec<f64>> {
    let end = |(host, address)| End {
        host,
        address,
        first,
    };
    let peer = to.1;
    let (listening, listens) = std::sync::mpsc::channel();
    let (over, ended) = oneshot::channel();
    let answering = end(to).thread("answer", move |control, events| {
        let _ = listening.send(());
        answer(control, events, ended)
    })?;
    // A request before the other end listens fails because no peer answers. An error here is an
    // error of that thread, which reports it below.
    let _ = listens.recv();
    let asking = end(from).thread("ask", move |control, events| {
        ask(control, events, peer, count)
    })?;
    let panicked = |_| anyhow!("a thread of the control channel panicked");
    let times = asking.join().map_err(panicked)?;
    let _ = over.send(());
    answering.join().map_err(panicked)??;
    times
}

/// Returns each received message, until the measurement is over.
async fn answer(
    control: Control,
    mut events: mpsc::Receiver<Event>,
    mut over: oneshot::Receiver<()>,
) -> Result<()> {
    loop {
        tokio::select! {
            _ = &mut over => return Ok(()),
            event = events.recv() => match event.context("the channel has ended")? {
                Event::Message(heard) => control.send(heard.via, heard.message),
                Event::PeerUp(_) | Event::PeerDown(..) | Event::Key { .. } | Event::KeyGone(_) | Event::KeyRevoked(_) => {}
            }
        }
    }
}

async fn ask(
    control: Control,
    mut events: mpsc::Receiver<Event>,
    peer: IpAddr,
    count: usize,
) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count);
    // The first message waits for the connection.
    for said in 0..=count {
        let message = vec![said as u8; MESSAGE];
        let begun = Instant::now();
        control.send(peer, message.clone());
        let heard = tokio::time::timeout(PATIENCE, next(&mut events));
        let heard = heard.await.context("no answer arrived")??;
        ensure!(heard == message, "the answer differs from the message");
        if said > 0 {
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(times)
}

/// Returns the next message.
async fn next(events: &mut mpsc::Receiver<Event>) -> Result<Vec<u8>> {
    loop {
        match events.recv().await.context("the channel has ended")? {
            Event::Message(heard) => return Ok(heard.message),
            Event::PeerDown(_, why) => return Err(anyhow!("the peer does not answer: {why}")),
            Event::PeerUp(_) | Event::Key { .. } | Event::KeyGone(_) | Event::KeyRevoked(_) => {}
        }
    }
}
