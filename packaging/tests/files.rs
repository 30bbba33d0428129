//! Tests of the package files: the samples as the programs read them, and the files that are
//! generated from the command lines.

#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dysco_config::Config;
use dysco_config::policy::Policy;
use dysco_pki::{self as pki, IssueRequest};
use tempfile::TempDir;

fn sample(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap()
}

/// Returns a sample with each setting that it shows: `#key = value` is a setting, `# text` is not.
fn in_full(text: &str) -> String {
    let shown = |line: &str| {
        let rest = line.strip_prefix('#').filter(|rest| !rest.is_empty())?;
        (!rest.starts_with(' ')).then(|| rest.to_owned())
    };
    let lines = text.lines().map(|line| shown(line).unwrap_or(line.into()));
    lines.map(|line| line + "\n").collect()
}

/// A host with keys for 127.0.0.1.
struct Host(TempDir);

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let authority = dir.path().join("authority");
        pki::init(&authority).unwrap();
        pki::issue(&IssueRequest {
            dir: authority,
            name: "host".into(),
            addresses: vec!["127.0.0.1".parse().unwrap()],
            out: dir.path().join("pki"),
            days: 1,
        })
        .unwrap();
        Host(dir)
    }

    fn file(&self, text: &str) -> PathBuf {
        let file = self.0.path().join("file.toml");
        fs::write(&file, text).unwrap();
        file
    }

    /// Reads a configuration, with this host's address, interface and keys.
    fn load(&self, text: &str) -> Config {
        let keys = format!("pki_dir = {:?}", self.0.path().join("pki"));
        let text = text
            .replace("addresses = []", "addresses = [\"127.0.0.1\"]")
            .replace("[\"eth0\", \"eth1\"]", "[\"lo\"]")
            .replace("#pki_dir = \"/etc/dysco/pki\"", &keys)
            .replace("pki_dir = \"/etc/dysco/pki\"", &keys);
        Config::load(&self.file(&text)).unwrap()
    }
}

#[test]
fn the_sample_asks_for_addresses() {
    let host = Host::new();
    let error = Config::load(&host.file(&sample("dyscod.toml"))).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("addresses is empty"), "{text}");
}

#[test]
fn the_sample_works_with_an_address() {
    let host = Host::new();
    let config = host.load(&sample("dyscod.toml"));
    assert!(config.listeners.is_empty());
    assert!(config.track.is_empty());
}

#[test]
fn each_setting_of_the_sample_is_understood() {
    let host = Host::new();
    let text = in_full(&sample("dyscod.toml"));
    let config = host.load(&text);
    assert_eq!(config.listeners.len(), 2);
    assert_eq!(config.track.len(), 1);
}

/// The test covers settings that are not called examples.
#[test]
fn settings_of_the_sample_show_the_defaults() {
    let host = Host::new();
    let plain = host.load(&sample("dyscod.toml")).to_toml().unwrap();
    let defaults: toml::Table = plain.parse().unwrap();
    let mut table = String::new();
    let (mut example, mut compared) = (false, 0);
    for line in sample("dyscod.toml").lines() {
        if line.starts_with("# ") {
            example |= line.ends_with("example:");
        } else if let Some(name) = line.strip_prefix('[') {
            table = name.trim_end_matches(']').into();
            example = false;
        } else if let Some((key, value)) = line.strip_prefix('#').and_then(|l| l.split_once(" = "))
        {
            // The keys of that host are elsewhere.
            if !example && key != "pki_dir" {
                let default = &defaults[&table][key];
                assert_eq!(default.to_string(), value, "{table}.{key}");
                compared += 1;
            }
        } else if line.is_empty() {
            example = false;
        }
    }
    assert!(compared > 10, "{compared}");
}

#[test]
fn the_policy_has_no_rule_until_one_is_written() {
    let host = Host::new();
    let load = |text: &str| {
        let own = ["127.0.0.1".parse().unwrap()];
        Policy::load(&host.file(text), &own).unwrap().unwrap()
    };
    let text = sample("policy.toml");
    assert_eq!(load(&text).rules.len(), 0);
    assert_eq!(load(&in_full(&text)).rules.len(), 2);
}

/// Returns the words after the first occurrence of `from`, up to the next `to`.
fn words_between(text: &str, from: &str, to: &str) -> Vec<String> {
    let (_, rest) = text.split_once(from).unwrap();
    let (list, _) = rest.split_once(to).unwrap();
    let words = list.split([',', ' ']).filter(|word| !word.is_empty());
    let mut words: Vec<_> = words.map(|w| w.trim_start_matches("CAP_").into()).collect();
    words.sort();
    words
}

#[test]
fn a_container_has_the_capabilities_of_the_unit() {
    let unit = sample("dyscod.service");
    let unit = words_between(&unit, "CapabilityBoundingSet=", "\n");
    assert!(unit.contains(&"BPF".into()), "{unit:?}");
    let image = sample("oci/Containerfile");
    assert_eq!(words_between(&image, "--cap-add ", " \\"), unit);
    let pod = sample("kubernetes/daemonset.yaml");
    assert_eq!(words_between(&pod, "add: [", "]"), unit);
}

/// The settings of a unit or drop-in with this key, in one.
fn setting(text: &str, key: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(key));
    let values = lines.filter_map(|line| line.strip_prefix('='));
    let words = values.flat_map(str::split_whitespace);
    words.map(str::to_owned).collect()
}

/// Handlers confine themselves under the filter of the unit. `@system-service` lacks these calls in
/// Debian 12.
#[test]
fn the_unit_lets_handlers_confine_themselves() {
    let allowed = setting(&sample("dyscod.service"), "SystemCallFilter");
    for call in [
        "seccomp",
        "landlock_create_ruleset",
        "landlock_add_rule",
        "landlock_restrict_self",
    ] {
        assert!(allowed.contains(&call.into()), "{call} in {allowed:?}");
    }
}

#[test]
fn the_unit_starts_wherever_the_keys_are_and_again_after_a_fault() {
    let unit = sample("dyscod.service");
    assert!(!unit.contains("\nCondition"), "{unit}");
    let pause: u32 = setting(&unit, "RestartSec").concat().parse().unwrap();
    // systemd gives up after five starts within ten seconds.
    assert!(5 * pause > 10, "{pause}");
}

#[test]
fn services_and_containers_have_drop_ins() {
    let services = sample("dyscod-services.conf");
    assert_eq!(setting(&services, "KillMode"), ["process"]);
    assert_eq!(setting(&services, "ProtectControlGroups"), ["no"]);
    for drop_in in [services, sample("dyscod-containers.conf")] {
        assert_eq!(setting(&drop_in, "RestrictNamespaces"), ["net"]);
        let capabilities = setting(&drop_in, "CapabilityBoundingSet");
        assert!(capabilities.contains(&"CAP_SYS_ADMIN".into()));
    }
}

/// Returns the files below a folder of the repository.
fn files_below(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut folders = vec![root.join(folder)];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files
}

/// Returns the files of the packages that a text names.
fn named(text: &str) -> impl Iterator<Item = &str> {
    let folder = "/usr/share/dysco/";
    let end = |c: char| !c.is_ascii_alphanumeric() && !"/._-".contains(c);
    let parts = text.split(folder).skip(1);
    let names = parts.map(move |rest| rest.split(end).next().unwrap_or_default());
    names.map(|name| name.trim_end_matches('.'))
}

#[test]
fn each_file_that_a_page_or_a_hint_names_is_packed() {
    let packed = sample("../xtask/src/dist/stage.rs");
    let mut seen = 0;
    for file in ["docs", "crates", "packaging"]
        .into_iter()
        .flat_map(files_below)
    {
        let text = fs::read_to_string(&file).unwrap_or_default();
        for name in named(&text).filter(|name| !name.is_empty()) {
            let place = format!("\"usr/share/dysco/{name}\"");
            assert!(packed.contains(&place), "{name} of {}", file.display());
            seen += 1;
        }
    }
    assert!(seen > 8, "{seen}");
}

/// After the removal, `dyscoctl` is gone.
#[test]
fn a_removal_names_the_command_for_the_data_plane_before_it_begins() {
    let spec = sample("rpm/dysco.spec");
    let (_, spec) = spec.split_once("\n%preun\n").unwrap();
    let (before, after) = spec.split_once("\n%postun\n").unwrap();
    let deb = [sample("debian/dysco.prerm"), sample("debian/dysco.postrm")];
    for text in [before, &deb[0]] {
        assert!(text.contains("stop now and run 'dyscoctl uninstall' first"));
    }
    for text in [after, &deb[1]] {
        assert!(text.contains("dysco again and run 'dyscoctl uninstall'"));
    }
}

/// An installed host has no source tree.
#[test]
fn no_message_names_a_file_of_the_source_tree() {
    let is_source = |file: &PathBuf| {
        let name = file.file_name().unwrap().to_string_lossy();
        let below_src = file.components().any(|part| part.as_os_str() == "src");
        below_src && name.ends_with(".rs") && name != "tests.rs" && name != "documented.rs"
    };
    for file in files_below("crates").iter().filter(|file| is_source(file)) {
        let text = fs::read_to_string(file).unwrap();
        for line in text.lines().filter(|line| !line.trim().starts_with("//")) {
            let names = line.contains("docs/") && line.contains(".md");
            assert!(
                !names && !line.contains("packaging/"),
                "{}: {line}",
                file.display()
            );
        }
    }
}

#[test]
fn each_command_has_a_page_and_completions() {
    let dir = tempfile::tempdir().unwrap();
    let mut generated = Command::new(env!("CARGO_BIN_EXE_dysco-generated"));
    assert!(generated.arg(dir.path()).status().unwrap().success());
    let read = |path: &str| fs::read_to_string(dir.path().join(path)).unwrap();
    assert!(read("man/dyscod.8").contains("check"));
    assert!(!read("man/dyscod.8").contains(" docs/"));
    assert!(read("man/dyscoctl.8").contains("Exit codes"));
    let command = dysco_ctl::command();
    for subcommand in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = subcommand.get_name();
        let page = read(&format!("man/dyscoctl-{name}.8"));
        assert!(page.contains(".SH NAME"), "{name}");
        for script in ["bash/dyscoctl", "zsh/_dyscoctl", "fish/dyscoctl.fish"] {
            let script = read(&format!("completions/{script}"));
            assert!(script.contains(name), "{name}");
        }
    }
}
