//! Middleboxes that are hosts of a session's chain: the session gets another chain, and a request
//! for a removal is answered as any other.

use std::net::IpAddr;

use dysco_api::RemovalReport;
use dysco_common::view::ChainState;
use dysco_common::{Element, Session};

use super::Removals;
use super::leaving::as_removal;
use crate::engine::Plane;
use crate::engine::chain_requests::EndedForRemoval;
use crate::engine::chain_updates::opener::{has_opened, has_passed, opens};
use crate::engine::core::Core;

impl Removals {
    /// Ends a removal of that kind.
    pub(in crate::engine) fn left_chain(&mut self, core: &mut Core, ended: EndedForRemoval) {
        let accepted = self.batches.get(&ended.removal).map(|b| b.accepted);
        let begun = (accepted.zip(ended.begun))
            .map(|(accepted, begun)| begun.saturating_duration_since(accepted).as_micros() as u64);
        let report = ended.report;
        let report = RemovalReport {
            session: report.session,
            local: report.local,
            remote: report.remote,
            outcome: as_removal(report.outcome),
            reason: report.reason,
            reasons: Vec::new(),
            timed_out: report.timed_out,
            mode: None,
            why_mode: Some("it is a host of the session's chain".into()),
            accepted_to_begin_us: begun,
            request_to_switch_us: report.request_to_switch_us,
            request_to_close_us: report.request_to_end_us,
            change_id: report.change_id,
        };
        self.finish(core, ended.removal, report, ended.why.as_ref());
    }
}

/// Returns the element by which the host (`None`: this one) is in a session's chain. A session
/// that was opened elsewhere may have any host in its chain: its opener knows. An ended session
/// still has its chain, for a request that names the session.
pub(in crate::engine) fn in_chain(
    here: &Plane,
    slot: u32,
    host: Option<IpAddr>,
) -> Option<Element> {
    let s = here.agent.session(slot);
    let Some(host) = host else {
        let own = here.config.host.addresses.first().copied();
        let own = own.filter(|_| has_passed(&s));
        return own.map(Element::Host);
    };
    let elsewhere = s.chain_state() == ChainState::Open && here.opened_elsewhere(&s).is_some();
    let is_end = s.name().remote.ip() == host;
    let opened = has_opened(&s).then(|| element_at(here, slot, &s, host));
    let elsewhere = (elsewhere && !is_end).then_some(Element::Host(host));
    opened.flatten().or(elsewhere)
}

/// Returns true if the session was opened here, with the host in its chain.
pub(super) fn opens_through(here: &Plane, slot: u32, s: &Session, host: IpAddr) -> bool {
    opens(s) && element_at(here, slot, s, host).is_some()
}

/// Returns the element at a host in the chain of a session that was opened here.
fn element_at(here: &Plane, slot: u32, s: &Session, host: IpAddr) -> Option<Element> {
    let chain = here.chain_now(slot, s);
    chain.into_iter().find(|element| element.host() == host)
}
