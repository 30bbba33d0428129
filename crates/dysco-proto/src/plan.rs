//! The translation that follows from the facts of three hosts. Pure functions.

use dysco_common::session::{offer, translation};
use dysco_common::{Offer, Translation};

use super::message::{Facts, Measurement};
use super::names::Subsession;
use super::reason::{End, Reason};

/// Ticks of a millisecond by which the new path's timestamps start ahead of the middlebox's, so
/// that PAWS discards nothing.
pub const TS_LEAD: u32 = 20;

/// Ticks by which the clock that one end sent and the clock that the other received may differ. The
/// difference comes from segments that are under way or lost, and from the time between two
/// samples. A device that shifts clocks does so by a random part of 2^32.
pub const CLOCK_SLACK: u32 = 1 << 20;

/// Refuses a change by the measurement alone, before any other host is asked.
pub fn check(m: &Measurement) -> Result<(), Reason> {
    objections(m).into_iter().next().map_or(Ok(()), Err)
}

/// Returns all reasons that the measurement alone has against a change. The first one counts:
/// reasons that remain after any wait precede reasons that another session would not have.
pub fn objections(m: &Measurement) -> Vec<Reason> {
    if [&m.a, &m.b].into_iter().any(is_over) {
        return vec![Reason::Closing];
    }
    let mut all = Vec::new();
    if m.subsession_a.left.is_ipv4() != m.subsession_b.right.is_ipv4() {
        let why = "one end uses IPv4 and the other IPv6, and Dysco does not translate between them";
        all.push(Reason::NewPathUnusable(why.into()));
    }
    let offers = [m.a.local, m.a.remote, m.b.local, m.b.remote];
    if offers.iter().any(|o| o.flags & offer::SEEN == 0) {
        // Nothing more is known about a session that was not seen.
        all.push(Reason::NotSeen);
        return all;
    }
    if is_foreign(&m.a) || is_foreign(&m.b) {
        all.push(Reason::Foreign);
    }
    if negotiated(&m.a, offer::SACK) != negotiated(&m.b, offer::SACK) {
        all.push(Reason::SackMismatch);
    }
    // Each end sends segments of the length that the middlebox announced to it.
    all.extend(fits(End::Left, m.a.local.mss, m.b.remote.mss).err());
    all.extend(fits(End::Right, m.b.local.mss, m.a.remote.mss).err());
    all
}

fn is_foreign(f: &Facts) -> bool {
    offer::are_foreign(f.local.flags, f.remote.flags)
}

/// Returns the left anchor's translation. `left` and `right` are the anchors' facts about their own
/// sessions, sampled before `m` was measured or less than [`TS_LEAD`] later. Only then are their
/// later timestamps ahead of those that the middlebox has sent.
pub fn plan(m: &Measurement, left: &Facts, right: &Facts) -> Result<Translation, Reason> {
    check(m)?;
    same_session(&m.a, left, m.subsession_a)?;
    same_session(&m.b, right, m.subsession_b)?;
    if is_over(left) || is_over(right) {
        return Err(Reason::Closing);
    }
    // A session that is translated already keeps its translation, including its clocks.
    if let Some(translation) = m.relay {
        return Ok(translation);
    }
    let scaled_a = negotiated(&m.a, offer::WSCALE);
    let scaled_b = negotiated(&m.b, offer::WSCALE);
    let scale = |on: bool, o: &Offer| if on { o.wscale } else { 0 };
    let timestamps = negotiated(&m.a, offer::TIMESTAMPS) && negotiated(&m.b, offer::TIMESTAMPS);
    let ahead = |clock: u32, sent: u32| {
        if timestamps {
            clock.wrapping_add(TS_LEAD).wrapping_sub(sent)
        } else {
            0
        }
    };
    // Deltas are modulo 2^32, like the sequence numbers that they shift.
    Ok(Translation {
        seq_out: (m.b.local.isn)
            .wrapping_sub(m.a.remote.isn)
            .wrapping_add(m.delta_forward as u32),
        seq_in: (m.a.local.isn)
            .wrapping_sub(m.b.remote.isn)
            .wrapping_add(m.delta_reverse as u32),
        ts_out: ahead(m.clock_b, left.tsval_out),
        ts_in: ahead(m.clock_a, right.tsval_out),
        wscale_local: scale(scaled_a, &m.a.remote),
        wscale_local_at_peer: scale(scaled_b, &m.b.local),
        wscale_remote_at_peer: scale(scaled_b, &m.b.remote),
        wscale_remote: scale(scaled_a, &m.a.local),
        flags: strip(m, offer::TIMESTAMPS, translation::STRIP_TIMESTAMPS)
            | strip(m, offer::ECN, translation::STRIP_ECN),
    })
}

/// Checks that the session may take a path on which no host translates. Both ends must have seen
/// the same opening, so that nothing on the present path rewrites the session.
pub fn unchanged(session: Subsession, left: &Facts, right: &Facts) -> Result<(), Reason> {
    if is_over(left) || is_over(right) {
        return Err(Reason::Closing);
    }
    same_session(right, left, session)
}

fn negotiated(f: &Facts, flag: u8) -> bool {
    f.local.flags & f.remote.flags & flag != 0
}

fn strip(m: &Measurement, flag: u8, bit: u32) -> u32 {
    if negotiated(&m.a, flag) == negotiated(&m.b, flag) {
        0
    } else {
        bit
    }
}

fn is_over(f: &Facts) -> bool {
    f.reset || (f.fin_out && f.fin_in)
}

fn fits(from: End, sends: u16, accepts: u16) -> Result<(), Reason> {
    if sends > accepts {
        return Err(Reason::MssMismatch {
            from,
            sends,
            accepts,
        });
    }
    Ok(())
}

/// Checks that both ends of a subsession have seen the same opening. The MSS may be clamped on the
/// way, so that only the middlebox's values of it count. The numbers, clocks and options that the
/// translation depends on must be unchanged.
fn same_session(middle: &Facts, anchor: &Facts, which: Subsession) -> Result<(), Reason> {
    if [anchor.local, anchor.remote]
        .iter()
        .any(|o| o.flags & offer::SEEN == 0)
    {
        return Err(Reason::NotSeen);
    }
    if is_foreign(anchor) {
        return Err(Reason::Foreign);
    }
    // The options that were agreed on are compared, since the offers of an adopted session are
    // unknown.
    let options = [offer::SACK, offer::TIMESTAMPS, offer::WSCALE];
    let agreed = |flag| negotiated(middle, flag) == negotiated(anchor, flag);
    let scaled = negotiated(middle, offer::WSCALE);
    let same = |a: &Offer, b: &Offer| a.isn == b.isn && (!scaled || a.wscale == b.wscale);
    if options.into_iter().all(agreed)
        && same(&middle.local, &anchor.remote)
        && same(&middle.remote, &anchor.local)
        && (!negotiated(middle, offer::TIMESTAMPS) || same_clocks(middle, anchor))
    {
        Ok(())
    } else {
        Err(Reason::Rewritten(which))
    }
}

/// Returns true if both ends have the same clocks. Otherwise an end would discard all segments of a
/// path that does not shift them as the present path does (PAWS; RFC 7323, 5).
fn same_clocks(middle: &Facts, anchor: &Facts) -> bool {
    let near = |sent: u32, heard: u32| {
        let ahead = sent.wrapping_sub(heard);
        let known = sent != 0 && heard != 0;
        !known || ahead.min(ahead.wrapping_neg()) <= CLOCK_SLACK
    };
    near(middle.tsval_out, anchor.tsval_in) && near(anchor.tsval_out, middle.tsval_in)
}
