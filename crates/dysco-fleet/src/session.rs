//! The task that follows etcd: connections, one after the other.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    Client, EventType, GetOptions, KeyValue, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    WatchOptions, WatchResponse,
};
use tokio::sync::watch;

use crate::client::{answered, connect, failed};
use crate::contents::{Change, Contents};
use crate::error::FleetError;
use crate::tls::RevokedList;
use crate::{Event, Member, OwnState, Settings};

/// Bounds of the pause before the next attempt.
const PAUSE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(5)];

/// Follows etcd for ever.
pub(crate) async fn run(
    settings: Arc<Settings>,
    mut own: watch::Receiver<OwnState>,
    mut revoked: watch::Receiver<Option<RevokedList>>,
    tell: impl Fn(Event) + Send + Sync + 'static,
) {
    // Hosts spread over the members.
    let mut next = rand::random::<u32>() as usize;
    let mut pause = PAUSE[0];
    loop {
        let member = &settings.members[next % settings.members.len()];
        next = next.wrapping_add(1);
        let mut connected = false;
        let mut session = Session {
            settings: &settings,
            member,
            own: &mut own,
            revoked: &mut revoked,
            contents: Contents::default(),
        };
        let error = session.follow(&tell, &mut connected).await;
        tell(Event::Lost(error));
        if connected {
            pause = PAUSE[0];
        }
        // Hosts that have lost the same member do not come back at the same moment.
        let share: f64 = rand::random();
        tokio::time::sleep(pause.mul_f64(0.5 + share / 2.0)).await;
        pause = (2 * pause).min(PAUSE[1]);
    }
}

/// One connection to a member.
struct Session<'a> {
    settings: &'a Settings,
    member: &'a Member,
    own: &'a mut watch::Receiver<OwnState>,
    revoked: &'a mut watch::Receiver<Option<RevokedList>>,
    contents: Contents,
}

/// Lease of this host's entry.
struct Lease {
    id: i64,
    keeper: LeaseKeeper,
    /// Time that etcd has granted.
    time: Duration,
    renewed: Instant,
}

impl Session<'_> {
    /// Follows the member until it is lost. Returns the reason.
    async fn follow(&mut self, tell: &impl Fn(Event), connected: &mut bool) -> FleetError {
        match self.connected(tell, connected).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn connected(
        &mut self,
        tell: &impl Fn(Event),
        connected: &mut bool,
    ) -> Result<Infallible, FleetError> {
        let revoked = self.revoked.borrow_and_update().clone();
        let mut client = connect(self.settings, self.member, revoked).await?;
        let revision = self.read(&mut client).await?;
        *connected = true;
        tell(Event::Connected {
            url: self.member.url.clone(),
        });
        tell(Event::Contents(self.contents.clone()));
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1);
        let watch = client.watch(self.prefix(), Some(options));
        let mut changes = answered("watch", self.member, watch).await?;
        let (mut lease, mut answers) = self.lease(&mut client).await?;
        let mut ticks = tokio::time::interval(lease.time / 3);
        loop {
            tokio::select! {
                change = changes.message() => {
                    let change = change.map_err(|e| failed("watch", self.member, e))?;
                    let change = change.ok_or_else(|| self.ended("the watch has ended"))?;
                    if self.take(&change)? {
                        tell(Event::Contents(self.contents.clone()));
                    }
                    if !self.contents.hosts.contains_key(&self.settings.name) && is_deletion(&change) {
                        self.register(&mut client, lease.id).await?;
                    }
                }
                answer = answers.message() => {
                    let answer = answer.map_err(|e| failed("keep a lease of", self.member, e))?;
                    if answer.is_none_or(|answer| answer.ttl() <= 0) {
                        return Err(self.ended("the lease of this host's entry has ended"));
                    }
                    lease.renewed = Instant::now();
                }
                _ = ticks.tick() => self.renew(&mut lease).await?,
                // The certificate of this member may be on it.
                Ok(()) = self.revoked.changed() => {
                    return Err(self.ended("the list of revoked certificates is another one"));
                }
                Ok(()) = self.own.changed() => self.register(&mut client, lease.id).await?,
            }
        }
    }

    /// Registers this host under a lease. Returns the lease, and the stream of its renewals.
    async fn lease(
        &mut self,
        client: &mut Client,
    ) -> Result<(Lease, LeaseKeepAliveStream), FleetError> {
        let seconds = i64::try_from(self.settings.lease.as_secs()).unwrap_or(i64::MAX);
        let grant = client.lease_grant(seconds, None);
        let granted = answered("get a lease of", self.member, grant).await?;
        self.register(client, granted.id()).await?;
        let keep = client.lease_keep_alive(granted.id());
        let (keeper, answers) = answered("keep a lease of", self.member, keep).await?;
        let lease = Lease {
            id: granted.id(),
            keeper,
            time: Duration::from_secs(granted.ttl().max(1).unsigned_abs()),
            renewed: Instant::now(),
        };
        Ok((lease, answers))
    }

    fn prefix(&self) -> String {
        format!("{}/", self.settings.prefix)
    }

    fn ended(&self, why: impl Into<String>) -> FleetError {
        FleetError::Ended {
            url: self.member.url.clone(),
            why: why.into(),
        }
    }

    /// Reads all keys. Returns the revision at which they have these values.
    async fn read(&mut self, client: &mut Client) -> Result<i64, FleetError> {
        let all = client.get(self.prefix(), Some(GetOptions::new().with_prefix()));
        let all = answered("read the policy and the hosts of", self.member, all).await?;
        for pair in all.kvs() {
            let change = Change {
                key: pair.key(),
                value: Some(pair.value()),
                revision: pair.mod_revision(),
            };
            self.contents.take(self.settings, &change);
        }
        Ok(all.header().map_or(0, |header| header.revision()))
    }

    /// Takes changes in. Returns true if the contents differ then.
    fn take(&mut self, response: &WatchResponse) -> Result<bool, FleetError> {
        if response.canceled() {
            let why = match response.compact_revision() {
                0 => format!("etcd has ended the watch: {}", response.cancel_reason()),
                _ => "etcd has compacted changes that this host had not seen".into(),
            };
            return Err(self.ended(why));
        }
        let mut differs = false;
        for event in response.events() {
            let Some(pair) = event.kv() else {
                continue;
            };
            let change = Change {
                key: pair.key(),
                value: (event.event_type() == EventType::Put).then(|| pair.value()),
                revision: pair.mod_revision(),
            };
            differs |= self.contents.take(self.settings, &change);
            self.warn_of_namesake(pair);
        }
        Ok(differs)
    }

    /// Warns if another host has this host's name: each of them would replace the other's entry.
    fn warn_of_namesake(&self, pair: &KeyValue) {
        let name = &self.settings.name;
        let is_own = pair.key() == self.settings.own_key().as_bytes();
        let entry = self.contents.hosts.get(name).filter(|_| is_own);
        if let Some(other) = entry.filter(|e| e.addresses != self.settings.addresses) {
            let addresses = &other.addresses;
            tracing::warn!(
                %name, ?addresses,
                "another host is registered by this host's name; give each its own under [host]"
            );
        }
    }

    /// Writes this host's entry.
    async fn register(&mut self, client: &mut Client, lease: i64) -> Result<(), FleetError> {
        let entry = self.settings.own_entry(&self.own.borrow_and_update());
        // Addresses, a number and a text have a form in JSON.
        let value = serde_json::to_vec(&entry).unwrap_or_default();
        let options = PutOptions::new().with_lease(lease);
        let put = client.put(self.settings.own_key(), value, Some(options));
        answered("register in", self.member, put).await.map(drop)
    }

    async fn renew(&self, lease: &mut Lease) -> Result<(), FleetError> {
        if lease.renewed.elapsed() > lease.time {
            return Err(FleetError::Silent {
                what: "keep a lease of",
                url: self.member.url.clone(),
            });
        }
        let asked = lease.keeper.keep_alive();
        answered("keep a lease of", self.member, asked).await
    }
}

fn is_deletion(response: &WatchResponse) -> bool {
    let mut events = response.events().iter();
    events.any(|event| event.event_type() == EventType::Delete)
}
