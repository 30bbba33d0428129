//! The lab: a client, a proxy and a server around one router.

use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result};

use crate::folder::Folder;
use crate::idle::{self, Hook};
use crate::link::{HostOptions, Role, join};
use crate::wire::Wire;
use crate::{Host, require_root};

/// Configuration of a [`Lab`].
pub struct Builder {
    name: String,
    options: [HostOptions; 3],
    loss: f64,
}

impl Builder {
    /// Changes one host.
    pub fn host(mut self, role: Role, change: impl FnOnce(HostOptions) -> HostOptions) -> Self {
        let at = &mut self.options[role as usize];
        *at = change(std::mem::take(at));
        self
    }

    /// Changes all hosts.
    pub fn hosts(mut self, change: impl Fn(HostOptions) -> HostOptions) -> Self {
        for role in Role::ALL {
            self = self.host(role, &change);
        }
        self
    }

    /// Sets the percentage of TCP packets that the router loses at random.
    pub fn loss(mut self, percent: f64) -> Self {
        self.loss = percent;
        self
    }

    /// Creates the hosts and joins them.
    pub fn build(self) -> Result<Lab> {
        require_root()?;
        let folder = Folder::make(&self.name)?;
        let make = |name: &str| Host::new(name, &folder.path.join(name));
        let router = make("router")?;
        router.sysctl("net.ipv4.ip_forward", "1")?;
        router.sysctl("net.ipv6.conf.all.forwarding", "1")?;
        let (mut polled, mut wires) = (Vec::new(), Vec::new());
        let [client, proxy, server] = Role::ALL.map(|role| {
            let host = make(role.name())?;
            let options = &self.options[role as usize];
            wires.extend(join(&host, &router, role, options)?);
            if options.polled {
                polled.push(idle::attach(&router, role.name(), Hook::Xdp)?);
            }
            Ok::<_, anyhow::Error>(host)
        });
        let lab = Lab {
            client: client?,
            proxy: proxy?,
            server: server?,
            router,
            _polled: polled,
            _wires: wires,
            folder,
        };
        lab.router.input("nft", &["-f", "-"], TABLE)?;
        lab.set_loss(self.loss)?;
        Ok(lab)
    }
}

const TABLE: &str = "
table inet lab {
  counter proxy { }
  chain loss { }
  chain forward {
    type filter hook forward priority 0
    meta l4proto tcp jump loss
    meta l4proto tcp iifname proxy counter name proxy
    meta l4proto tcp oifname proxy counter name proxy
  }
}
";

/// Four hosts. Dropping the lab ends everything that runs on them. Its folder, with every log and
/// capture, stays unless [`Lab::finish`] was called.
pub struct Lab {
    /// Host that opens the sessions.
    pub client: Host,
    /// Host of the middlebox.
    pub proxy: Host,
    /// Host that accepts the sessions.
    pub server: Host,
    /// Router that joins the other three hosts.
    pub router: Host,
    /// Links of the programs of [`HostOptions::polled`].
    _polled: Vec<OwnedFd>,
    /// The links of [`HostOptions::headerless`].
    _wires: Vec<Wire>,
    folder: Folder,
}

impl Lab {
    /// Returns a builder for a lab with default settings.
    pub fn builder(name: &str) -> Builder {
        Builder {
            name: name.into(),
            options: Default::default(),
            loss: 0.0,
        }
    }

    /// Returns the host of a role.
    pub fn host(&self, role: Role) -> &Host {
        match role {
            Role::Client => &self.client,
            Role::Proxy => &self.proxy,
            Role::Server => &self.server,
        }
    }

    /// Folder that contains a folder for each host.
    pub fn dir(&self) -> &Path {
        &self.folder.path
    }

    /// Makes the router lose this percentage of all TCP packets from now on, in both directions.
    /// Control messages between daemons are not TCP.
    pub fn set_loss(&self, percent: f64) -> Result<()> {
        let mut rules = String::from("flush chain inet lab loss\n");
        if percent > 0.0 {
            let share = (percent * 100.0) as u32;
            rules += &format!("add rule inet lab loss numgen random mod 10000 < {share} drop\n");
        }
        self.router.input("nft", &["-f", "-"], &rules).map(drop)
    }

    /// Inserts an nftables rule for packets that the router forwards, before all others.
    pub fn add_rule(&self, rule: &str) -> Result<()> {
        let rule = format!("insert rule inet lab forward {rule}\n");
        self.router.input("nft", &["-f", "-"], &rule).map(drop)
    }

    /// Number of TCP packets to and from the proxy's host since the lab began.
    pub fn proxy_packets(&self) -> Result<u64> {
        let text = self
            .router
            .output("nft", &["list", "counter", "inet", "lab", "proxy"])?;
        let mut words = text
            .split_whitespace()
            .skip_while(|w| *w != "packets")
            .skip(1);
        let packets = words.next().and_then(|w| w.parse().ok());
        packets.with_context(|| format!("nft did not say the packets: {text}"))
    }

    /// Ends the lab successfully, and keeps nothing of it.
    ///
    /// # Errors
    /// If a process is left on a host after everything there should have ended.
    pub fn finish(mut self, parts: impl Sized) -> Result<()> {
        drop(parts);
        let hosts = [&self.client, &self.proxy, &self.server, &self.router];
        self.folder.finish(hosts)
    }

    /// Ends the lab and removes its folder in any case.
    pub fn discard(mut self) {
        self.folder.keep = false;
    }
}
