//! Words about services, for events and reasons.

use dysco_api::ServiceSpec;
use dysco_explain::Cause;

/// Returns services as an event names them.
pub(in crate::engine) fn of(services: &[ServiceSpec]) -> String {
    let names = services.iter().map(|service| format!("+{}", service.name));
    names.collect::<Vec<_>>().join(" ")
}

/// Returns the reason for which a session with services cannot be changed otherwise.
pub(in crate::engine) fn in_the_way() -> Cause {
    Cause::new("services are in the session, or have added bytes to it")
        .hint("take them out with 'dyscoctl service take'")
}

/// Returns the reason for which no services enter a session that has some.
pub(super) fn has_others() -> Cause {
    Cause::new("other services are in it").hint("take them out first with 'dyscoctl service take'")
}

/// Returns the reason for which a service that acts on the first bytes does not come into a session.
pub(super) fn too_late() -> Cause {
    Cause::new("one of these services acts on the first bytes of a session, which have passed")
        .hint("give it to new sessions, by a rule without hosts or by 'dyscoctl run'")
}

/// Returns the reason for which a service that acts on the first bytes is not beside hosts.
pub(super) fn too_late_beside_hosts() -> Cause {
    Cause::new(
        "one of these services acts on the first bytes of a session, and these pass before services come \
         into a session with hosts",
    )
    .hint("write a rule without hosts")
}

/// Returns the reason for which no others enter a session that is held.
pub(super) fn has_its_own() -> Cause {
    Cause::new("services of a rule or a run are about to come into it")
        .hint("ask again in a moment")
}

/// Returns the reason for which services at both ends do not come into a session that has services at
/// one end.
pub(super) fn one_end() -> Cause {
    Cause::new("its services are at one end, and these need both")
        .hint("take all services out, and put all wanted ones in by one request")
}

/// Returns the reason for which services for one end do not come in with services at both ends, into a
/// session that has some.
pub(super) fn mixed() -> Cause {
    Cause::new("services for one end and at both ends do not come into it together")
        .hint("put those for one end in by a request of their own")
}

/// Returns the reason for which the last services at both ends do not leave a session that keeps others.
pub(super) fn last_at_both() -> Cause {
    Cause::new("these are its last services at both ends, and others would stay")
        .hint("take all services out, and put all wanted ones in by one request")
}

/// Returns the reason for which a service at both ends does not take the place of another one.
pub(super) fn no_replacement() -> Cause {
    Cause::new("a service at both ends does not take the place of another one")
        .hint("put the new one in with 'dyscoctl service put', then take the other one out")
}

/// Returns the reason for which some of a session's services do not leave while they rest.
pub(super) fn all_rest() -> Cause {
    Cause::new("its services rest, since the session gains nothing by them")
        .hint("take all of them out, or ask again once they are in")
}

/// Returns the reason for which a service is not put beside services at both ends.
pub(super) fn beside_both() -> Cause {
    Cause::new("a service that changes the stream cannot be beside services at both ends")
        .hint("take these out first")
}

/// Returns the reason for which a service does not come into a session twice.
pub(super) fn is_in(name: &str) -> Cause {
    Cause::new(format!("{name} is in it already")).hint(format!(
        "take it out first ('dyscoctl service take +{name}'), or change it ('dyscoctl service call')"
    ))
}

/// Returns the reason for which this host does not put more services beside those of the other one.
pub(super) fn by_other_host() -> Cause {
    Cause::new("the host of its other end, or an earlier dyscod, has put its services in")
        .hint("ask there, or take all services out")
}

/// Returns the reason for which a handler of an earlier process does not do something.
pub(super) fn of_earlier() -> Cause {
    Cause::new("an earlier dyscod has put its services in")
        .hint("take all services out, and put all wanted ones in by one request")
}

/// Returns the reason for which a handler does not know a request.
pub(super) fn old_handler() -> Cause {
    Cause::new("its handler is of an earlier release")
        .hint("take all services out, and put all wanted ones in by one request")
}
