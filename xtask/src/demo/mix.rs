//! The traffic of a phase: downloads, uploads and requests, all checked.

use std::net::SocketAddr;

use anyhow::Result;
use dysco_netns::Host;
use dysco_netns::http::{Traffic, download, requests, upload};
use dysco_netns::nginx::Nginx;
use dysco_pattern::Pattern;

/// Bytes per second of all uploads together. Stored uploads occupy memory.
const UPLOADS: u64 = 24 << 20;

/// Sessions of three kinds of traffic.
pub(super) struct Mix {
    downloads: Vec<Traffic>,
    uploads: Vec<(u64, Traffic)>,
    requests: Vec<Traffic>,
}

/// An upload that has ended.
pub(super) struct Stored {
    pub name: String,
    pub seed: u64,
    pub bytes: u64,
}

impl Stored {
    /// Checks that nginx has stored the complete upload. Returns its SHA-256.
    pub(super) fn verify(&self, server: &Host) -> Result<String> {
        Nginx::verify(server, &self.name, Pattern::new(self.seed), self.bytes)
    }
}

/// Result of a mix.
pub(super) struct Ended<T> {
    /// Number of bytes that arrived and were checked.
    pub bytes: u64,
    /// Uploads that nginx should have stored.
    pub uploads: Vec<Stored>,
    /// Descriptions of the errors.
    pub troubles: Vec<String>,
    /// Result of the last request, made while the downloads still ran.
    pub last_word: Option<T>,
}

impl Mix {
    /// Opens this number of sessions: an eighth for requests, a quarter for uploads, and the rest
    /// for downloads.
    pub(super) fn start(client: &Host, to: SocketAddr, sessions: usize, name: &str) -> Result<Mix> {
        let (asking, storing) = ((sessions / 8).max(1), (sessions / 4).max(1));
        let requests = (0..asking).map(|i| requests(client, to, &format!("{name}-requests-{i}")));
        let rate = UPLOADS / storing as u64;
        let uploads = (0..storing as u64).map(|seed| {
            let upload = upload(client, to, &format!("{name}-upload-{seed}"), seed, rate)?;
            Ok((seed, upload))
        });
        let rest = 0..sessions - asking - storing;
        let downloads = rest.map(|i| download(client, to, &format!("{name}-download-{i}")));
        Ok(Mix {
            requests: requests.collect::<Result<_>>()?,
            uploads: uploads.collect::<Result<_>>()?,
            downloads: downloads.collect::<Result<_>>()?,
        })
    }

    fn bulk(&self) -> impl Iterator<Item = &Traffic> {
        self.downloads
            .iter()
            .chain(self.uploads.iter().map(|(_, traffic)| traffic))
    }

    /// Pauses the downloads and uploads, or continues them.
    pub(super) fn hold_bulk(&self, on: bool) {
        self.bulk().for_each(|traffic| traffic.gauge.pause(on));
    }

    /// Number of bytes of all bodies so far.
    pub(super) fn bytes(&self) -> u64 {
        self.bulk()
            .chain(&self.requests)
            .map(|traffic| traffic.gauge.bytes())
            .sum()
    }

    /// Returns the nanoseconds of each request since the previous call.
    pub(super) fn take_latencies(&self) -> Vec<u32> {
        self.requests
            .iter()
            .flat_map(|traffic| traffic.gauge.take_latencies())
            .collect()
    }

    /// Ends everything except the downloads successfully, calls `last_word`, and cuts off the
    /// downloads, as a response without an end requires.
    pub(super) fn finish<T>(self, last_word: impl FnOnce() -> Result<T>) -> Ended<T> {
        let mut ended = Ended {
            bytes: 0,
            uploads: vec![],
            troubles: vec![],
            last_word: None,
        };
        for traffic in self.requests {
            ended.take(traffic);
        }
        self.uploads.iter().for_each(|(_, traffic)| traffic.stop());
        for (seed, traffic) in self.uploads {
            let name = traffic.name().to_owned();
            if let Some(bytes) = ended.take(traffic) {
                ended.uploads.push(Stored { name, seed, bytes });
            }
        }
        match last_word() {
            Ok(word) => ended.last_word = Some(word),
            Err(error) => ended.troubles.push(format!("{error:#}")),
        }
        self.downloads.iter().for_each(Traffic::stop);
        for traffic in self.downloads {
            ended.take(traffic);
        }
        ended
    }
}

impl<T> Ended<T> {
    fn take(&mut self, traffic: Traffic) -> Option<u64> {
        let bytes = traffic.gauge.bytes();
        self.bytes += bytes;
        match traffic.finish() {
            Ok(all) => {
                self.bytes += all - bytes;
                Some(all)
            }
            Err(error) => {
                self.troubles.push(format!("{error:#}"));
                None
            }
        }
    }
}
