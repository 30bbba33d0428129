//! Configurations of the engine's parts, each from its sections of the file.

use std::net::SocketAddr;

use dysco_agent::AgentConfig;
use dysco_config::{self as config, Config};
use dysco_control::ControlConfig;
use dysco_pki::Credentials;
use dysco_proxy::ProxyConfig;

use crate::{api, metrics};

pub(super) fn agent_config(config: &Config) -> AgentConfig {
    let attach = match config.data_plane.attach {
        config::Attach::Auto => dysco_agent::Attach::Auto,
        config::Attach::Tcx => dysco_agent::Attach::Tcx,
        config::Attach::Clsact => dysco_agent::Attach::Clsact,
    };
    AgentConfig {
        pin_dir: config.data_plane.pin_dir.clone(),
        max_sessions: config.data_plane.max_sessions,
        interfaces: config
            .host
            .interfaces
            .iter()
            .map(|i| i.name.clone())
            .collect(),
        attach,
        xdp: config.data_plane.xdp.into(),
        rules: config.rules(),
        ports: {
            let ports = config.removal.ports;
            (ports.first, ports.count().min(usize::from(u16::MAX)) as u16)
        },
        addresses: config.host.addresses.clone(),
    }
}

pub(super) fn proxy_config(config: &Config) -> ProxyConfig {
    let declared = config
        .listeners
        .iter()
        .filter(|l| l.transparent == Some(true));
    let haproxy = config
        .listeners
        .iter()
        .filter_map(|l| l.haproxy_socket.clone());
    ProxyConfig {
        shim_socket: config.shim.socket.clone(),
        shim_name: Some(config.shim.abstract_name.clone())
            .filter(|name| *name != config.shim.socket),
        transparent_listeners: declared
            .flat_map(|l| l.address.socket_addresses())
            .collect(),
        // Each pair has two entries of the data plane.
        max_pairs: config.data_plane.max_sessions as usize,
        haproxy: haproxy
            .map(|path| dysco_proxy::HaproxySocket {
                path,
                frontends: Vec::new(),
            })
            .collect(),
        watch: dysco_proxy::WatchRules {
            proof: dysco_proxy::outside::pairing::Rules {
                moments: config.watch.moments,
                bytes: config.watch.bytes,
                window: config.watch.window,
            },
            limit: config.watch.limit,
        },
        ..ProxyConfig::default()
    }
}

pub(super) fn control_config(config: &Config, credentials: Credentials) -> ControlConfig {
    let port = config.control.port;
    let listen = config.control.listen.iter();
    ControlConfig {
        listen: listen.map(|ip| SocketAddr::new(*ip, port)).collect(),
        peer_port: port,
        credentials,
    }
}

pub(super) fn metrics_config(config: &Config, credentials: Credentials) -> metrics::ServerConfig {
    metrics::ServerConfig {
        socket: config.metrics.socket.clone(),
        gid: config.api.gid,
        listen: config.metrics.listen,
        tls: config.metrics.tls.then_some(credentials),
    }
}

pub(super) fn api_config(config: &Config) -> api::ServerConfig {
    api::ServerConfig {
        socket: config.api.socket.clone(),
        policy: api::Policy {
            read_gid: config.api.gid,
        },
    }
}
