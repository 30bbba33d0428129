//! The kernel's record of the calls that take bytes from a pair's sockets, in addition to the
//! shim's report. A shim sees only the calls that it intercepts. The kernel sees each receiving
//! call of any process, and a splice is no such call. A program that reads a direction that is
//! reported as spliced endlessly may change the bytes; this record detects it.
//!
//! One thread processes reports. It watches the sources of a report before the claim becomes
//! known here.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dysco_agent::{AgentError, Receives};
use tracing::{info, warn};

use super::lock;
use super::pair::{Direction, Pair, Witness};

/// Time for which the program stays attached after the last source was removed.
const IDLE: Duration = Duration::from_secs(60);

/// The watched sources, and the program that watches them.
pub(crate) struct Receipts {
    room: u32,
    state: Mutex<State>,
}

struct State {
    kernel: Kernel,
    /// Cookies of the sockets that endless directions are read from.
    sources: HashSet<u64>,
    /// Time since which there are no sources.
    idle: Option<Instant>,
    complained: bool,
}

enum Kernel {
    /// Nothing was watched yet.
    Unasked,
    /// A thread attaches the program, and then watches the sources that are known.
    Asked,
    /// The kernel has no such tracepoint (before Linux 6.3), so only the shim's report remains.
    Silent,
    Speaks(Box<Receives>),
}

impl Receipts {
    /// Returns a value for at most this number of pairs. Makes no system call yet.
    pub(crate) fn new(pairs: usize) -> Receipts {
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

    /// Starts a thread that attaches the program. Attaching takes up to a second on a busy
    /// machine, and no report waits for it.
    pub(crate) fn prepare(self: &Arc<Self>) {
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

    /// Returns true if the program is being attached.
    pub(crate) fn is_opening(&self) -> bool {
        matches!(lock(&self.state).kernel, Kernel::Asked)
    }

    /// Watches the sources of the directions that a shim reports as endless, each from its first
    /// such report, and no other sources of this pair. Makes system calls.
    pub(crate) fn follow(self: &Arc<Self>, pair: &Pair) {
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

    /// Stops watching these sources, and detaches the program once it is not needed.
    pub(crate) fn forget(&self, sources: &[u64]) {
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

    /// Returns a direction that is reported as spliced and was read by other calls, and the
    /// number of these calls.
    pub(crate) fn against(&self, pair: &Pair) -> Option<(&'static str, u32)> {
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

/// Returns the source socket of each direction.
fn sources(pair: &Pair) -> [(u64, &Direction); 2] {
    [
        (pair.a.cookie, &pair.forward),
        (pair.b.cookie, &pair.reverse),
    ]
}

/// Returns true if the shim itself observes the splices. A program that declares a direction may
/// move its bytes by any call.
fn is_spliced(pair: &Pair, way: &Direction) -> bool {
    pair.witness == Witness::Shim && way.endless && !way.declared
}

impl State {
    fn opened(&mut self, opened: Result<Receives, AgentError>) {
        self.kernel = match opened {
            Ok(receives) => Kernel::Speaks(Box::new(receives)),
            Err(error) => {
                info!(
                    "a shim's reports of splices are accepted unchecked, because this kernel does \
                     not report the calls that read from a proxy's sockets: run Linux 6.3 or later \
                     ({error})"
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
                    "a shim's reports on a spliced session are accepted unchecked, because the \
                     kernel does not watch the session (others are not logged): {error}"
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
