//! The kernel's word on how the bytes of a pair are taken from its sockets, beside the
//! shim's. A shim sees the calls that it stands before. The kernel sees each call that
//! receives, whoever makes it and however, and a splice is none of these: who reads a
//! direction that is said to be spliced endlessly may change it, and is found out.
//!
//! Reports are taken by one thread, which watches what they say before it is known here.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dysco_agent::{AgentError, Receives};
use tracing::{info, warn};

use super::lock;
use super::pair::{Direction, Pair, Witness};

/// The program stays for so long once nothing is watched.
const IDLE: Duration = Duration::from_secs(60);

/// What is watched, and by what.
pub struct Receipts {
    room: u32,
    state: Mutex<State>,
}

struct State {
    kernel: Kernel,
    /// The sources of endless directions.
    sources: HashSet<u64>,
    /// Since when there are none.
    idle: Option<Instant>,
    complained: bool,
}

enum Kernel {
    /// Nothing was watched yet.
    Unasked,
    /// A thread attaches the program, and then watches what is known by then.
    Asked,
    /// It has no such word (before Linux 6.3): the shim's alone is left.
    Silent,
    Speaks(Box<Receives>),
}

impl Receipts {
    /// For so many pairs at most. Asks nothing of the kernel yet.
    pub fn new(pairs: usize) -> Receipts {
        Receipts {
            room: u32::try_from(pairs).unwrap_or(u32::MAX).saturating_mul(2),
            state: Mutex::new(State {
                kernel: Kernel::Unasked,
                sources: HashSet::new(),
                idle: None,
                complained: false,
            }),
        }
    }

    /// Has a thread attach the program: on a busy machine that takes up to a second, and no
    /// report waits for it.
    pub fn prepare(self: &Arc<Self>) {
        let mut state = lock(&self.state);
        state.idle = None;
        if !matches!(state.kernel, Kernel::Unasked) {
            return;
        }
        state.kernel = Kernel::Asked;
        let receipts = Arc::clone(self);
        std::thread::spawn(move || {
            let opened = Receives::open(receipts.room);
            lock(&receipts.state).opened(opened);
        });
    }

    /// Is the program about to be attached?
    pub fn is_opening(&self) -> bool {
        matches!(lock(&self.state).kernel, Kernel::Asked)
    }

    /// Watches the sources of what a shim calls endless, each from the moment on at which
    /// it first did, and no others of this pair. Makes system calls.
    pub fn follow(self: &Arc<Self>, pair: &Pair) {
        if sources(pair).iter().any(|(_, way)| is_spliced(pair, way)) {
            self.prepare();
        }
        let mut state = lock(&self.state);
        for (source, way) in sources(pair) {
            match is_spliced(pair, way) {
                true => state.watch(source),
                false => state.forget(source),
            }
        }
    }

    /// Watches these sources no more, and takes the program away that nobody needs.
    pub fn forget(&self, sources: &[u64]) {
        let mut state = lock(&self.state);
        for source in sources {
            state.forget(*source);
        }
        let state = &mut *state;
        if !state.sources.is_empty() {
            state.idle = None;
        } else if state.idle.get_or_insert_with(Instant::now).elapsed() > IDLE
            && matches!(state.kernel, Kernel::Speaks(_))
        {
            state.kernel = Kernel::Unasked;
        }
    }

    /// The direction that is said to be spliced and was read by other calls, and by how
    /// many.
    pub fn against(&self, pair: &Pair) -> Option<(&'static str, u32)> {
        let state = lock(&self.state);
        let Kernel::Speaks(receives) = &state.kernel else {
            return None;
        };
        let names = ["forward", "reverse"];
        sources(pair)
            .into_iter()
            .zip(names)
            .filter(|((_, way), _)| is_spliced(pair, way))
            .find_map(|((source, _), name)| {
                let calls = receives.calls(source).filter(|calls| *calls > 0)?;
                Some((name, calls))
            })
    }
}

/// What each direction is read from.
fn sources(pair: &Pair) -> [(u64, &Direction); 2] {
    [
        (pair.a.cookie, &pair.forward),
        (pair.b.cookie, &pair.reverse),
    ]
}

/// By the shim's own eyes. A program that declares a direction may move it as it likes.
fn is_spliced(pair: &Pair, way: &Direction) -> bool {
    pair.witness == Witness::Shim && way.endless && !way.declared
}

impl State {
    fn opened(&mut self, opened: Result<Receives, AgentError>) {
        self.kernel = match opened {
            Ok(receives) => Kernel::Speaks(Box::new(receives)),
            Err(error) => {
                info!(
                    "the kernel does not tell by which calls a proxy takes its bytes (Linux 6.3 does): what a shim says is taken at its word ({error})"
                );
                Kernel::Silent
            }
        };
        for source in std::mem::take(&mut self.sources) {
            self.watch(source);
        }
    }

    fn watch(&mut self, source: u64) {
        if self.sources.contains(&source) {
            return;
        }
        let watched = match &mut self.kernel {
            Kernel::Speaks(receives) => receives.watch(source),
            Kernel::Asked => Ok(()),
            Kernel::Unasked | Kernel::Silent => return,
        };
        match watched {
            Ok(()) => {
                self.sources.insert(source);
            }
            Err(error) if !std::mem::replace(&mut self.complained, true) => {
                warn!(
                    "a spliced session is not watched by the kernel, and its shim is taken at its word (said once): {error}"
                );
            }
            Err(_) => {}
        }
    }

    fn forget(&mut self, source: u64) {
        let known = self.sources.remove(&source);
        if let (true, Kernel::Speaks(receives)) = (known, &mut self.kernel) {
            receives.forget(source);
        }
    }
}
