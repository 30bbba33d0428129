//! Judgement of changes of some of a session's services, while the others stay ([`super::partial`]).

use dysco_api::ServiceSpec;
use dysco_common::Session;
use dysco_explain::Cause;
use dysco_runner::Ends;

use super::choice::{self, Judged, busy};
use super::{Serviced, Services, packets, request, words};
use crate::handlers::Owner;

/// Version of the handler's messages from which on it can carry out such a change.
const VERSION: u32 = 3;
/// The same for services at both ends.
pub(super) const HALVES: u32 = 4;

impl Services {
    /// Returns all reasons for which more services cannot come into a session, the decisive one
    /// first.
    pub(super) fn against_more(
        &self,
        one: &Serviced,
        more: &[ServiceSpec],
        s: &Session,
    ) -> Vec<Cause> {
        if packets::wanted(more) != Ok(None) {
            return vec![words::has_others()];
        }
        let mut reasons = Vec::new();
        reasons.extend((!one.is_settled()).then(busy));
        let mut all: Vec<&ServiceSpec> = one.services.iter().collect();
        for new in more {
            if all.iter().any(|has| has.name == new.name) {
                reasons.push(words::is_in(&new.name));
            }
            all.push(new);
        }
        let by_other = one.paired.as_ref().is_some_and(|pair| !pair.asks());
        reasons.extend(by_other.then(words::by_other_host));
        let at_both = more.iter().any(|service| is_half(service, s));
        let version = if at_both { HALVES } else { VERSION };
        reasons.extend(self.too_old(one.owner, version));
        if one.owner != Owner::System {
            reasons.push(
                Cause::new("its services are those of a user's program")
                    .hint("name all services in 'dyscoctl run'"),
            );
        }
        match choice::needs(more, s) {
            Err(cause) => reasons.push(cause),
            Ok(needs) => {
                if needs.ends == Ends::Pair {
                    reasons.extend(one.paired.is_none().then(words::one_end));
                    let mixed = !more.iter().all(|service| is_half(service, s));
                    reasons.extend(mixed.then(words::mixed));
                } else if one.paired.is_some() && !needs.keeps_bytes {
                    reasons.push(words::beside_both());
                }
                if let Some(name) = &needs.congestion {
                    reasons.extend(choice::no_congestion(name));
                    reasons.extend(one.sockets.is_none().then(words::of_earlier));
                }
                reasons.extend(needs.from_start.then(words::too_late));
            }
        }
        reasons
    }

    /// Judges whether the services with these names can leave a session.
    pub(super) fn judge_part(&self, one: &Serviced, names: &[String], s: &Session) -> Judged {
        let going = request::named(one.services.clone(), names);
        if going.is_empty() {
            return Judged::Unchanged;
        }
        let all = going.len() == one.services.len();
        let settled = one.is_settled() || all && one.rests.goes;
        if !settled {
            return Judged::Refused(vec![busy()]);
        }
        if all {
            return Judged::Possible;
        }
        choice::judged(self.against_part(one, &going, s))
    }

    /// Judges whether a service can take the place of another one.
    pub(super) fn judge_replace(
        &self,
        one: &Serviced,
        old: &str,
        new: &ServiceSpec,
        s: &Session,
    ) -> Judged {
        let going = request::named(one.services.clone(), &[old.to_owned()]);
        if going.is_empty() {
            return Judged::Unchanged;
        }
        let new = std::slice::from_ref(new);
        let mut reasons = Vec::new();
        let at_both = going.iter().chain(new).any(|one| is_half(one, s));
        reasons.extend(at_both.then(words::no_replacement));
        reasons.extend(self.against_more(one, new, s));
        reasons.extend(self.against_part(one, &going, s));
        choice::judged(reasons)
    }

    /// Returns all reasons for which some services cannot leave a session that keeps others.
    fn against_part(&self, one: &Serviced, going: &[ServiceSpec], s: &Session) -> Vec<Cause> {
        // Arguments of services that an earlier process has put in are not known.
        let split = one.sockets.is_none() && going.iter().any(|service| service.name == "split");
        let mut reasons: Vec<Cause> = self.too_old(one.owner, VERSION).into_iter().collect();
        reasons.extend(split.then(words::of_earlier));
        let halves = |all: &[ServiceSpec]| all.iter().filter(|one| is_half(one, s)).count();
        if let Some(paired) = &one.paired
            && halves(going) > 0
        {
            reasons.extend((!paired.asks()).then(words::by_other_host));
            reasons.extend(self.too_old(one.owner, HALVES));
            let last = halves(going) == halves(&one.services);
            reasons.extend(last.then(words::last_at_both));
        }
        reasons
    }

    /// Returns the reason for which the handler of an owner does not know the messages of a version.
    pub(super) fn too_old(&self, owner: Owner, version: u32) -> Option<Cause> {
        let handler = self.handlers.get(&owner);
        let knows = handler.is_some_and(|handler| handler.understands(version));
        (!knows).then(words::old_handler)
    }
}

/// Returns true if a service has to be at both ends.
pub(super) fn is_half(service: &ServiceSpec, s: &Session) -> bool {
    let needs = choice::needs(std::slice::from_ref(service), s);
    needs.is_ok_and(|needs| needs.ends == Ends::Pair)
}

/// Returns the place of the service at both ends that is next to the program.
pub(super) fn first_half(services: &[ServiceSpec], s: &Session) -> usize {
    let mut all = services.iter();
    all.position(|service| is_half(service, s)).unwrap_or(0)
}
