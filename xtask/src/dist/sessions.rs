//! Sessions through a proxy, whose bytes are checked.

use anyhow::Result;
use dysco_netns::stream::{Group, Plan, Server, all_intact};
use dysco_netns::{Family, Lab, Role};

/// Number of sessions that are opened at a time.
pub(super) const SESSIONS: usize = 8;
/// Port of the proxy.
pub(super) const PORT: u16 = 8080;

/// Sessions from the client to the server.
pub(super) struct Sessions(Vec<Group>);

impl Sessions {
    /// Opens sessions through the proxy, and waits until each has carried data both ways.
    pub(super) fn open(lab: &Lab, server: &Server) -> Result<Sessions> {
        // Each session has its own rate: sessions with equal counts cannot be distinguished.
        let open = |at: usize| {
            let plan = Plan {
                rate: Some((64 + 8 * at as u64) << 10),
                write: (4 << 10) + 100 * at,
                ..Plan::default()
            };
            let address = Role::Proxy.at(Family::V4, PORT);
            let group = Group::open(&lab.client, server, address, 1, &plan)?;
            group.run();
            Ok(group)
        };
        let sessions = Sessions((0..SESSIONS).map(open).collect::<Result<_>>()?);
        sessions.go_on()?;
        Ok(sessions)
    }

    /// Waits until each session has carried more data in both directions.
    pub(super) fn go_on(&self) -> Result<()> {
        self.0
            .iter()
            .try_for_each(|one| one.wait_progress(32 << 10))
    }

    /// Ends the sessions. Returns an error unless every byte of each has arrived.
    pub(super) fn finish(self) -> Result<()> {
        for one in self.0 {
            all_intact(&one.finish()?)?;
        }
        Ok(())
    }
}
