//! Effects of a path on the packets that opened it, as both anchors have seen them. See
//! `dysco_common::probe`.

use std::net::IpAddr;

use dysco_common::probe::{Arrival, Change, LengthProbe, Probe, Said};
use dysco_common::tcp::SYN;
use dysco_common::two_paths::Fins;
use dysco_common::{Element, FlowKey, Session};
use dysco_proto::{Meddling, Reason, Way};

/// Returns the longest segment that either end may send.
fn longest(s: &Session) -> u16 {
    s.local.mss.min(s.remote.mss)
}

/// Returns an error if a path between these hosts cannot be used, given how packets were changed
/// there and back. This host is the first of `ends`.
pub(super) fn judge(
    s: &Session,
    ends: (IpAddr, IpAddr),
    through: &[Element],
    [there, back]: [Change; 2],
) -> Result<(), Reason> {
    let there = Meddling::of(&there, longest(s)).map(|does| (ends, does));
    let back = Meddling::of(&back, longest(s)).map(|does| ((ends.1, ends.0), does));
    match there.or(back) {
        Some((ends, does)) => Err(meddles(ends, through, does)),
        None => Ok(()),
    }
}

/// Returns the reason that something between these hosts meddles with packets in this direction.
pub(super) fn meddles((from, to): (IpAddr, IpAddr), through: &[Element], does: Meddling) -> Reason {
    let through = through.to_vec();
    let way = Way { from, to, through };
    Reason::PathMeddles { way, does }
}

/// Judges the answer to the SYN of a bypass, and returns the FINs that it reports. Returns nothing
/// if the answer is to another SYN.
pub(super) fn judge_answer(
    s: &Session,
    path: &FlowKey,
    nonce: u32,
    answer: &Arrival,
) -> Option<Result<Fins, Reason>> {
    let ends = (path.local().ip(), path.remote().ip());
    let foreign = || Err(meddles(ends, &[], Meddling::Answers));
    let Some(probe) = Probe::from_bytes(&answer.carried) else {
        return Some(foreign());
    };
    if probe.nonce != nonce {
        return None;
    }
    Some(match probe.changes(&answer.header.0, path.is_v6()) {
        Some(changes) => judge(s, ends, &[], changes).map(|()| probe.fins()),
        None => foreign(),
    })
}

/// Known effects of a path through a chain that is being opened.
#[derive(Default)]
pub(super) struct Seen {
    /// The other end's SYN, or its answer, as received.
    syn: Option<Said>,
    /// Effect on the other end's packets.
    pub coming: Option<Change>,
    /// Effect on this end's packets, as reported by the other end.
    pub going: Option<Change>,
}

impl Seen {
    /// Records a packet that opens the path.
    pub(super) fn take(&mut self, arrival: &Arrival, v6: bool) {
        let header = &arrival.header.0;
        if arrival.header.segment(arrival.len).has(SYN) {
            self.syn = Said::of(header, v6).or(self.syn);
            return;
        }
        let Some(probe) = LengthProbe::from_bytes(&arrival.carried) else {
            return;
        };
        self.coming = probe.change(header, self.syn.as_ref(), v6).or(self.coming);
        if probe.heard != 0 {
            self.going = Some(probe.change);
        }
    }

    /// Returns the effects in both directions, once they are known.
    pub(super) fn changes(&self) -> Option<[Change; 2]> {
        Some([self.going?, self.coming?])
    }
}
