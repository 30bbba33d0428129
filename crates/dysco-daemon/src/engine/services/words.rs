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
