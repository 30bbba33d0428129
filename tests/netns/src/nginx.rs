//! A real nginx on the server's host, with files to fetch and room for uploads.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::{Host, Process, Program};
use dysco_pattern::Pattern;

/// Answer to `GET /ping`.
pub const PONG: &str = "pong, and enough bytes to look like an answer of some service";
/// Number of bytes of `/block`. `/endless` repeats this block.
pub const BLOCK: u64 = 256 << 20;
/// Seed of the [`Pattern`] of `/block`.
pub const BLOCK_SEED: u64 = 0xb10c;

/// Number of bytes of `/page`.
pub const PAGE: usize = 16 << 10;

/// Folder in memory, visible only to this host. It vanishes with the host.
const ROOT: &str = "/run/www";
const REPEATS: usize = 1000;

/// A running nginx. `/endless` is one response of a quarter of a terabyte, `/ping` is a short
/// answer, `/page` is an answer of [`PAGE`] bytes, and `PUT /up/NAME` stores a body.
pub struct Nginx {
    /// The program: one process with one thread.
    pub process: Process,
}

impl Nginx {
    /// Starts nginx on a port for IPv4 and IPv6, and waits until it listens.
    pub fn start(host: &Host, port: u16) -> Result<Nginx> {
        host.run(make_files)
            .context("failed to make the files of nginx")?;
        let file = host.dir().join("nginx.conf");
        fs::write(&file, configuration(port))
            .with_context(|| format!("failed to write {}", file.display()))?;
        let program = Program::new("nginx")
            .arg("-c")
            .arg(&file)
            .args(["-e", "stderr"]);
        let mut process = host.spawn(program)?;
        process.wait_ready("nginx to listen", || host.listens(port))?;
        Ok(Nginx { process })
    }

    /// Checks that `PUT /up/NAME` stored exactly the first `bytes` of a pattern. Returns the
    /// SHA-256 of the stored file.
    pub fn verify(host: &Host, name: &str, pattern: Pattern, bytes: u64) -> Result<String> {
        let path = PathBuf::from(ROOT).join("up").join(name);
        host.run(move || verify(&path, pattern, bytes))
            .with_context(|| format!("the upload {name} is not what was sent"))
    }
}

fn make_files() -> Result<()> {
    fs::create_dir_all(format!("{ROOT}/up"))?;
    fs::create_dir_all(format!("{ROOT}/temporary"))?;
    let mut page = vec![0; PAGE];
    Pattern::new(BLOCK_SEED).fill(0, &mut page);
    fs::write(format!("{ROOT}/page"), page)?;
    let mut block = File::create(format!("{ROOT}/block"))?;
    let mut buffer = vec![0; 1 << 20];
    for offset in (0..BLOCK).step_by(buffer.len()) {
        Pattern::new(BLOCK_SEED).fill(offset, &mut buffer);
        block.write_all(&buffer)?;
    }
    // This page includes the block many times: a response of a quarter of a terabyte from a quarter
    // of a gigabyte. nginx searches the whole page at each step, so that a longer page would be
    // slow.
    let include = r#"<!--#include virtual="/block" wait="yes" -->"#;
    Ok(fs::write(
        format!("{ROOT}/endless"),
        include.repeat(REPEATS),
    )?)
}

fn configuration(port: u16) -> String {
    format!(
        "daemon off; master_process off; user root; pid /run/nginx.pid; error_log stderr notice;
events {{ worker_connections 16384; }}
http {{
  access_log off; sendfile on; tcp_nodelay on; default_type application/octet-stream;
  keepalive_timeout 1h; keepalive_requests 1000000000; send_timeout 10m;
  client_body_timeout 10m; client_max_body_size 0;
  client_body_temp_path {ROOT}/temporary;
  proxy_temp_path /run; fastcgi_temp_path /run; uwsgi_temp_path /run; scgi_temp_path /run;
  open_file_cache max=16;
  server {{
    listen {port} backlog=4096; listen [::]:{port} backlog=4096;
    root {ROOT};
    location = /endless {{ ssi on; default_type text/html; }}
    location = /ping {{ return 200 \"{PONG}\"; }}
    location /up/ {{ dav_methods PUT DELETE; }}
  }}
}}
"
    )
}

fn verify(path: &std::path::Path, pattern: Pattern, bytes: u64) -> Result<String> {
    use std::io::Read;
    let mut file =
        File::open(path).with_context(|| format!("failed to open {}", path.display()))?;
    let stored = file.metadata()?.len();
    ensure!(
        stored == bytes,
        "{stored} bytes are stored, {bytes} were sent"
    );
    let (mut offset, mut buffer, mut hash) = (0, vec![0; 1 << 20], Sha256::new());
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok(hex::encode(hash.finalize()));
        }
        let wrong = pattern.first_wrong(offset, &buffer[..n]);
        ensure!(
            wrong.is_none(),
            "byte {} is wrong",
            wrong.unwrap_or_default()
        );
        hash.update(&buffer[..n]);
        offset += n as u64;
    }
}
