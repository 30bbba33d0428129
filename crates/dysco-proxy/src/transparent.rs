//! Checks if a pair may lose its proxy: by its claims, and by the evidence for its listener.

use std::net::SocketAddr;

use super::pair::{Pair, Witness};
use super::{NotTransparent, ProxySide, listener, lock};

impl ProxySide {
    /// Returns an error if this pair may not lose its proxy according to the newest claim, which
    /// may differ from `pair`. The claim is not checked here. With `word`, the operator has vouched
    /// for the listener in the request.
    pub fn transparent(&self, pair: &Pair, word: bool) -> Result<(), NotTransparent> {
        let now = self.registry().newest(pair);
        let now = now.ok_or(NotTransparent::Gone(pair.id))?;
        if now.witness == Witness::Counts {
            return match word || self.is_declared(&now.a.key.local()) {
                true => Ok(()),
                false => Err(NotTransparent::OnlyCounts {
                    listener: now.a.key.local(),
                    forward: now.forward.delta,
                    reverse: now.reverse.delta,
                }),
            };
        }
        let direction = match (now.forward.endless, now.reverse.endless) {
            (true, true) => return Ok(()),
            (false, false) => return Err(NotTransparent::NotSpliced),
            (true, false) => "reverse",
            (false, true) => "forward",
        };
        if word {
            return Ok(());
        }
        self.vouched(&now, direction)
    }

    /// Returns an error unless the configuration or HAProxy vouches for the listener of a pair
    /// whose `direction` is not spliced.
    fn vouched(&self, pair: &Pair, direction: &'static str) -> Result<(), NotTransparent> {
        let listener = pair.a.key.local();
        if self.is_declared(&listener) {
            return Ok(());
        }
        match lock(&self.0.modes).of(pair.id.pid, &listener) {
            Some(m) if m.mode == "tcp" => Ok(()),
            Some(m) => Err(NotTransparent::Parsed {
                direction,
                listener,
                frontend: m.frontend.clone(),
                mode: m.mode.clone(),
            }),
            None => Err(NotTransparent::OneDirection {
                direction,
                listener,
            }),
        }
    }

    fn is_declared(&self, listener: &SocketAddr) -> bool {
        listener::declared(&lock(&self.0.declarations).listeners, listener)
    }

    /// Returns an error if the kernel saw receiving calls on a direction reported as spliced.
    pub fn received(&self, pair: &Pair) -> Result<(), NotTransparent> {
        let (receipts, now) = {
            let registry = self.registry();
            (registry.receipts(), registry.newest(pair))
        };
        let against = now.and_then(|now| receipts.against(&now));
        against.map_or(Ok(()), |(direction, calls)| {
            Err(NotTransparent::Received { direction, calls })
        })
    }
}
