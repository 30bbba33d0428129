//! The configuration of an instance: the `dyscod` that serves another network namespace of this
//! machine. It derives from the configuration of the `dyscod` that starts it.

use std::path::{Path, PathBuf};

use dysco_api::Mode;

use super::{
    Api, Chain, Config, Control, DataPlane, Fleet, METRICS_SOCKET, Metrics, Removal, Services, Shim,
};

/// Directory of the instances, beside the API socket and in the directory of pins.
const DIR: &str = "ns";

/// A network namespace, as the instance for it is started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Instance {
    /// Inode of the namespace. No other namespace has it as long as this one exists.
    pub inode: u64,
    /// Name in listings and logs.
    pub name: String,
}

/// File of a configuration, and the instance that it is read for.
#[derive(Clone, Debug)]
pub struct Source {
    /// Path of the file.
    pub file: PathBuf,
    /// The instance; none for the `dyscod` of the host itself.
    pub instance: Option<Instance>,
}

/// Directories of an instance, which no other instance uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Places {
    /// Directory of sockets and state.
    pub run: PathBuf,
    /// Directory of pinned maps and programs.
    pub pins: PathBuf,
}

impl Places {
    /// Path of the API socket.
    pub fn socket(&self) -> PathBuf {
        self.run.join("dyscod.sock")
    }

    /// Directory of the state that must outlive the instance.
    pub fn state(&self) -> PathBuf {
        self.run.join("state")
    }
}

impl Config {
    /// Returns the directories that contain those of all instances.
    pub fn places(&self) -> Places {
        let beside = self.api.socket.parent().unwrap_or(Path::new("/"));
        Places {
            run: beside.join(DIR),
            pins: self.data_plane.pin_dir.join(DIR),
        }
    }

    /// Returns the directories of the instance for the namespace with this inode.
    pub fn places_of(&self, inode: u64) -> Places {
        let Places { run, pins } = self.places();
        Places {
            run: run.join(inode.to_string()),
            pins: pins.join(inode.to_string()),
        }
    }

    /// Returns the directories of the instance that this configuration is for.
    pub fn own_places(&self) -> Places {
        Places {
            run: self.api.socket.parent().unwrap_or(Path::new("/")).into(),
            pins: self.data_plane.pin_dir.clone(),
        }
    }

    /// Returns the configuration of an instance, once the host's part is that of the instance.
    pub(super) fn in_places(self, inode: u64) -> Config {
        let places = self.places_of(inode);
        Config {
            control: Control {
                listen: Vec::new(),
                peers: Vec::new(),
                ..self.control
            },
            // Its policy is a file of its own.
            fleet: Fleet {
                etcd: Vec::new(),
                ..self.fleet
            },
            // Shims in the namespace know the usual name of the socket.
            shim: Shim {
                socket: places.run.join("shim.sock"),
                abstract_name: self.shim.socket,
            },
            metrics: Metrics {
                socket: places.run.join(METRICS_SOCKET),
                listen: None,
                tls: false,
            },
            data_plane: DataPlane {
                pin_dir: places.pins.clone(),
                ..self.data_plane
            },
            removal: Removal {
                state_dir: places.state(),
                // Without a channel to other hosts, `auto` could choose nothing else.
                mode: match self.removal.mode {
                    Mode::Auto => Mode::Local,
                    other => other,
                },
                ..self.removal
            },
            chain: Chain {
                policy: places.run.join("policy.toml"),
            },
            api: Api {
                socket: places.socket(),
                ..self.api
            },
            // There may be hundreds of instances, and few need the programs.
            services: Services {
                preload: false,
                ..self.services
            },
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespaces, check, schema, tests};

    fn config(more: &str, instance: Option<&Instance>) -> Config {
        let (path, text) = (Path::new("f"), tests::with(more));
        let file = schema::parse(path, &text).unwrap();
        check::check_for(path, &text, file, &tests::interfaces()[..4], instance).unwrap()
    }

    #[test]
    fn an_instance_shares_no_place_and_no_port_with_its_host() {
        let more = "peers = [\"10.0.0.9\"]\n[fleet]\netcd = [\"https://10.0.0.9\"]\n[removal]\nautomatic = true\n\
                    [metrics]\nlisten = \"127.0.0.1:9469\"\n[[listener]]\naddress = \":80\"\n\
                    transparent = true\n";
        let instance = Instance {
            inode: 4_026_532_000,
            name: "web".into(),
        };
        let (host, inner) = (config(more, None), config(more, Some(&instance)));
        assert_eq!(inner.host.name, format!("{}/web", host.host.name));
        assert_eq!(inner.host.namespaces, None::<Namespaces>);
        let run = Path::new("/run/dysco/ns/4026532000");
        assert_eq!(inner.api.socket, run.join("dyscod.sock"));
        assert_eq!(inner.metrics.socket, run.join("metrics.sock"));
        assert_eq!(inner.removal.state_dir, run.join("state"));
        assert_eq!(
            inner.data_plane.pin_dir,
            Path::new("/sys/fs/bpf/dysco/ns/4026532000")
        );
        assert!(inner.control.listen.is_empty() && inner.control.peers.is_empty());
        assert!(host.has_store() && !inner.has_store());
        assert_eq!(inner.metrics.listen, None);
        assert_eq!(inner.shim.abstract_name, host.shim.socket);
        assert_ne!(inner.shim.socket, host.shim.socket);
        assert_eq!(inner.removal.mode, Mode::Local);
        // The rest is as configured.
        assert!(inner.removal.automatic);
        assert_eq!(inner.listeners, host.listeners);
    }

    #[test]
    fn the_addresses_and_interfaces_are_those_of_the_namespace() {
        let instance = Instance {
            inode: 7,
            name: "web".into(),
        };
        let (path, text) = (Path::new("f"), tests::with(""));
        let of = |interfaces: &[crate::Interface]| {
            let file = schema::parse(path, &text).unwrap();
            check::check_for(path, &text, file, interfaces, Some(&instance))
        };
        let all = tests::interfaces();
        let inner = of(&all[..4]).unwrap();
        let names: Vec<_> = inner.host.interfaces.iter().map(|i| &i.name).collect();
        assert_eq!(names, ["eth0", "eth1"]);
        let addresses: Vec<_> = { inner.host.addresses.iter() }
            .map(|a| a.to_string())
            .collect();
        assert_eq!(addresses, ["10.0.0.1", "fd00::1", "10.9.0.1"]);
        let none = of(&all[..1]).unwrap_err();
        assert!(matches!(none, crate::ConfigError::NoAddress(_)), "{none}");
    }
}
