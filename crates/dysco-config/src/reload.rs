//! Division of a configuration into the part that can change while `dyscod` runs, and the rest.

use dysco_api::ValueChange;
use toml::{Table, Value};

use super::{Api, Chain, Config, Control, Fleet, Host, Log, Removal};

impl Config {
    /// Returns this configuration with all values of `new` that a running `dyscod` can take over.
    /// The remaining differences need a restart.
    pub fn taking(&self, new: &Config) -> Config {
        let old = self.clone();
        let new = new.clone();
        // etcd has this host's entry under its name.
        let has_store = old.has_store();
        let name = match has_store {
            true => old.host.name,
            false => new.host.name,
        };
        let fleet = match has_store {
            true => old.fleet,
            // Without etcd, its keys are those of the channel, which may change.
            false => Fleet {
                etcd: Vec::new(),
                ..new.fleet
            },
        };
        Config {
            fleet,
            host: Host {
                name,
                addresses: old.host.addresses,
                namespaces: old.host.namespaces,
                ..new.host
            },
            control: Control {
                listen: old.control.listen,
                port: old.control.port,
                ..new.control
            },
            api: Api {
                socket: old.api.socket,
                ..new.api
            },
            track: new.track,
            removal: Removal {
                ports: old.removal.ports,
                reserve_ports: old.removal.reserve_ports,
                state_dir: old.removal.state_dir,
                ..new.removal
            },
            chain: Chain { ..new.chain },
            listeners: new.listeners,
            watch: new.watch,
            services: new.services,
            log: Log {
                format: old.log.format,
                ..new.log
            },
            ..old
        }
    }

    /// Returns the keys whose values differ in another configuration, with both values.
    ///
    /// # Errors
    /// If a value cannot be written as TOML.
    pub fn changes_to(&self, new: &Config) -> Result<Vec<ValueChange>, toml::ser::Error> {
        let [old, new] = [flat(self)?, flat(new)?];
        let keys = old
            .keys()
            .chain(new.keys().filter(|key| !old.contains_key(*key)));
        let changes = keys.filter(|key| old.get(*key) != new.get(*key));
        Ok(changes
            .map(|key| ValueChange {
                key: key.clone(),
                before: old.get(key).map(Value::to_string),
                after: new.get(key).map(Value::to_string),
            })
            .collect())
    }
}

/// Returns the values by `table.key`. Tables that may occur several times are values under the
/// name of the table.
fn flat(config: &Config) -> Result<Table, toml::ser::Error> {
    let mut all = Table::new();
    for (table, value) in Table::try_from(config)? {
        match value {
            Value::Table(keys) => {
                let named = keys
                    .into_iter()
                    .map(|(key, value)| (format!("{table}.{key}"), value));
                all.extend(named);
            }
            value => {
                all.insert(table, value);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{check, schema, tests};

    fn config(more: &str) -> Config {
        let (path, text) = (Path::new("f"), tests::with(more));
        let file = schema::parse(path, &text).unwrap();
        check::check(path, &text, file, &tests::interfaces()).unwrap()
    }

    fn keys(changes: &[ValueChange]) -> Vec<&str> {
        changes.iter().map(|change| change.key.as_str()).collect()
    }

    #[test]
    fn what_can_change_is_distinguished_from_what_cannot() {
        let old = config("[removal]\nports = \"61000-61999\"\n");
        let new = config(
            "[removal]\nports = \"62000-62999\"\nautomatic = true\n\
             [data_plane]\nmax_sessions = 32\n[log]\nformat = \"json\"\nfilter = \"warn\"\n\
             [[track]]\nports = 80\n",
        );
        let taken = old.taking(&new);
        let changed = old.changes_to(&taken).unwrap();
        assert_eq!(keys(&changed), ["log.filter", "removal.automatic", "track"]);
        let left = taken.changes_to(&new).unwrap();
        assert_eq!(
            keys(&left),
            ["data_plane.max_sessions", "log.format", "removal.ports"]
        );
        assert_eq!(left[2].before.as_deref(), Some("\"61000-61999\""));
        assert_eq!(left[2].after.as_deref(), Some("\"62000-62999\""));
        // The result is the same each time.
        assert_eq!(keys(&taken.changes_to(&new).unwrap()), keys(&left));
        assert!(old.changes_to(&old).unwrap().is_empty());
    }

    #[test]
    fn a_store_needs_a_restart_and_keys_need_none() {
        let old = config("");
        let mut new = config("[fleet]\netcd = [\"https://10.0.0.5\"]\n");
        new.fleet.ca = "/other/ca.crt".into();
        let taken = old.taking(&new);
        assert_eq!(keys(&taken.changes_to(&new).unwrap()), ["fleet.etcd"]);
        let mut old = new.clone();
        new.fleet.ca = "/third/ca.crt".into();
        new.host.name = "other".into();
        let left = old.taking(&new).changes_to(&new).unwrap();
        assert_eq!(keys(&left), ["fleet.ca", "host.name"]);
        old.fleet.etcd.clear();
        new.fleet.etcd.clear();
        assert_eq!(old.taking(&new).host.name, "other");
    }
}
