//! Listings of sessions, one page in each turn of the engine: a large table neither delays the
//! engine nor is copied. Listed sessions wait in the client's channel, and the next page waits
//! until there is room for it.

use dysco_api::{Listing, Reply};
use tokio::sync::mpsc;

use super::{Plane, clock};

/// Number of sessions in one turn, which take less than a millisecond.
const PAGE: usize = 128;
/// Number of slots that are looked at in one turn: most slots of a large table are free.
const SLOTS: u32 = 16_384;

/// Listing in progress.
pub(super) struct Begun {
    listing: Listing,
    /// First slot that was not looked at.
    next: u32,
    replies: mpsc::Sender<Reply>,
}

/// Queue in which listings wait for the engine's next turn.
pub(super) struct Pages {
    sender: mpsc::UnboundedSender<Begun>,
}

impl Pages {
    /// Returns the queue, and the receiver from which the engine takes listings.
    pub(super) fn new() -> (Pages, mpsc::UnboundedReceiver<Begun>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Pages { sender }, receiver)
    }

    /// Begins a listing.
    pub(super) fn begin(&self, listing: Listing, replies: mpsc::Sender<Reply>) {
        let next = listing.after.map_or(0, |id| id.slot().saturating_add(1));
        self.go_on(Begun {
            listing,
            next,
            replies,
        });
    }

    /// Continues the listing once the client has room for a page.
    fn go_on(&self, begun: Begun) {
        let sender = self.sender.clone();
        tokio::spawn(async move {
            // A client that has left wants no more. The end of the listing has room, too.
            if begun.replies.reserve_many(PAGE + 1).await.is_ok() {
                let _ = sender.send(begun);
            }
        });
    }
}

impl Begun {
    /// Sends a session, if it is wanted and there is room. Returns false once the page, or the
    /// requested number, is full.
    fn offer(&mut self, report: dysco_api::SessionReport) -> bool {
        if !self.listing.filter.matches(&report) {
            return true;
        }
        let sent = self.replies.try_send(Reply::Session(Box::new(report)));
        if let Some(left) = self.listing.limit.as_mut() {
            *left = left.saturating_sub(1);
        }
        sent.is_ok() && self.listing.limit != Some(0)
    }
}

impl Pages {
    /// Lists the next sessions, as many as fit into a turn.
    pub(super) fn list(&self, plane: &Plane, mut begun: Begun) {
        let boot = clock::boot_time();
        let slots = begun.next..begun.next.saturating_add(SLOTS).min(plane.agent.capacity());
        let mut wants = begun.listing.limit != Some(0);
        let mut listed = 0;
        begun.next = slots.end;
        for (slot, s) in plane.agent.sessions_in(slots) {
            if !wants {
                break;
            }
            if listed == PAGE {
                begun.next = slot;
                break;
            }
            if !s.is_current() {
                continue;
            }
            listed += 1;
            let report = match begun.listing.brief {
                true => plane.brief_report(slot, &s, boot),
                false => plane.report_of(slot, &s),
            };
            wants = begun.offer(report);
        }
        match wants && begun.next < plane.agent.capacity() {
            true => self.go_on(begun),
            // There is room for more than a page, unless the client has left.
            false => drop(begun.replies.try_send(Reply::Done { summary: None })),
        }
    }
}

#[cfg(test)]
mod tests {
    use dysco_api::{SessionId, SessionReport};

    use super::*;

    fn report(port: u16) -> SessionReport {
        let (local, remote) = (([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 80).into());
        SessionReport::tracked(SessionId(port.into()), local, remote)
    }

    #[tokio::test]
    async fn the_engine_goes_on_when_the_client_has_room_and_is_there() {
        let (pages, mut turns) = Pages::new();
        let (replies, mut client) = mpsc::channel(PAGE + 1);
        for _ in 0..=PAGE {
            replies.try_send(Reply::Done { summary: None }).unwrap();
        }
        pages.begin(Listing::default(), replies.clone());
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(turns.try_recv().is_err(), "there is no room");
        for _ in 0..=PAGE {
            client.recv().await.unwrap();
        }
        let begun = turns.recv().await.unwrap();
        assert_eq!(begun.next, 0);
        drop(client);
        pages.go_on(begun);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(turns.try_recv().is_err(), "it has left");
    }

    #[tokio::test]
    async fn a_page_begins_behind_the_last_and_ends_with_the_limit() {
        let (pages, mut turns) = Pages::new();
        let (replies, mut client) = mpsc::channel(2 * PAGE);
        let listing = Listing {
            filter: "port=1".parse().unwrap(),
            after: Some(SessionId::new(6, 9)),
            limit: Some(2),
            ..Listing::default()
        };
        pages.begin(listing, replies);
        let mut begun = turns.recv().await.unwrap();
        assert_eq!(begun.next, 7);
        assert!(begun.offer(report(2)), "another is not wanted");
        assert!(begun.offer(report(1)), "one more is");
        assert!(!begun.offer(report(1)), "two are enough");
        assert_eq!(client.len(), 2);
        drop(client.recv().await);
        drop(client);
        begun.listing.limit = None;
        assert!(!begun.offer(report(1)), "it has left");
    }
}
