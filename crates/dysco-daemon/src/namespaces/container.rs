//! The container and pod of a process, by its control group.

/// Number of hexadecimal digits of a container's id.
const ID: usize = 64;
/// Number of digits that people use of it.
const SHORT: usize = 12;

/// Runtimes by the words that they put before an id.
const RUNTIMES: [(&str, &str); 6] = [
    ("docker-", "docker"),
    ("libpod-", "podman"),
    ("cri-containerd-", "containerd"),
    ("nerdctl-", "containerd"),
    ("crio-", "cri-o"),
    ("", "container"),
];

/// A container, and the pod that it belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Container {
    /// Runtime: `docker`, `podman` …
    pub runtime: &'static str,
    /// Id of the container.
    pub id: String,
    /// Uid of the pod.
    pub pod: Option<String>,
}

impl Container {
    /// Returns the short name: that of the pod, or else of the container.
    pub(super) fn name(&self) -> String {
        match &self.pod {
            Some(pod) => format!("pod:{pod}"),
            None => format!("{}:{}", self.runtime, &self.id[..SHORT]),
        }
    }
}

/// Returns the container of a process, given its `/proc/PID/cgroup`; `None` if it is in none.
pub(super) fn container(cgroups: &str) -> Option<Container> {
    let paths = cgroups
        .lines()
        .filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(of_path).next()
}

fn of_path(path: &str) -> Option<Container> {
    let mut pod = None;
    let mut found = None;
    let mut above = "";
    for part in path.split('/') {
        pod = pod_of(part).or(pod);
        // A container may contain others: the last one is the process's own.
        if let Some((runtime, id)) = id_of(part, above) {
            found = Some((runtime, id.to_owned()));
        }
        above = part;
    }
    let (runtime, id) = found?;
    Some(Container { runtime, id, pod })
}

/// Returns the runtime and the id in a part of a path: `docker-ID.scope`, or `ID` below `docker`.
fn id_of<'a>(part: &'a str, above: &str) -> Option<(&'static str, &'a str)> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let is_id = |id: &str| id.len() == ID && id.bytes().all(|b| b.is_ascii_hexdigit());
    RUNTIMES.iter().find_map(|(prefix, runtime)| {
        let id = part.strip_prefix(prefix).filter(|id| is_id(id))?;
        let runtime = match above {
            "docker" if prefix.is_empty() => "docker",
            _ => runtime,
        };
        Some((runtime, id))
    })
}

/// Returns the uid in a part of a path: `pod1-2`, or `kubepods-burstable-pod1_2.slice`.
fn pod_of(part: &str) -> Option<String> {
    let name = part.strip_suffix(".slice").unwrap_or(part);
    let uid = match name.strip_prefix("kubepods") {
        Some(rest) => rest.rsplit_once("-pod")?.1,
        None => name.strip_prefix("pod")?,
    };
    let is_uid = uid.len() >= 32
        && uid
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b"-_".contains(&b));
    // A dash separates slices, so that systemd's names have underscores.
    is_uid.then(|| uid.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "3f2a9c4be01d3f2a9c4be01d3f2a9c4be01d3f2a9c4be01d3f2a9c4be01dabcd";
    const UID: &str = "0b5cf6f2-1c1c-4f4e-8b5e-6f7a8b9c0d1e";

    fn name(cgroups: &str) -> Option<String> {
        container(cgroups).map(|c| c.name())
    }

    #[test]
    fn each_runtime_is_reported() {
        let uid = UID.replace('-', "_");
        for (path, reported) in [
            (
                format!("/system.slice/docker-{HEX}.scope"),
                "docker:3f2a9c4be01d",
            ),
            (format!("/docker/{HEX}"), "docker:3f2a9c4be01d"),
            (
                format!("/machine.slice/libpod-{HEX}.scope/container"),
                "podman:3f2a9c4be01d",
            ),
            (
                format!(
                    "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{HEX}.scope"
                ),
                "podman:3f2a9c4be01d",
            ),
            (
                format!("/system.slice/nerdctl-{HEX}.scope"),
                "containerd:3f2a9c4be01d",
            ),
        ] {
            assert_eq!(
                name(&format!("0::{path}\n")).as_deref(),
                Some(reported),
                "{path}"
            );
        }
        let pods = [
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-{HEX}.scope"
            ),
            format!("/kubepods.slice/kubepods-pod{uid}.slice/crio-{HEX}.scope"),
            format!("/kubepods/besteffort/pod{UID}/{HEX}"),
        ];
        let runtimes = ["containerd", "cri-o", "container"];
        for (path, runtime) in pods.iter().zip(runtimes) {
            let found = container(&format!("0::{path}\n")).unwrap();
            assert_eq!(found.name(), format!("pod:{UID}"), "{path}");
            assert_eq!((found.runtime, found.id.as_str()), (runtime, HEX));
        }
    }

    #[test]
    fn the_hierarchies_of_version_1_and_nested_containers() {
        let inner = HEX.replace("3f2a9c4be01d", "00000000000a");
        let text = format!("12:cpuset:/\n11:memory:/docker/{HEX}\n0::/system.slice/x.service\n");
        assert_eq!(name(&text).as_deref(), Some("docker:3f2a9c4be01d"));
        let text = format!("0::/system.slice/docker-{HEX}.scope/docker/{inner}\n");
        assert_eq!(name(&text).as_deref(), Some("docker:00000000000a"));
    }

    #[test]
    fn what_only_looks_like_a_container_is_none() {
        for path in [
            String::new(),
            "/".into(),
            "/system.slice/haproxy.service".into(),
            "/system.slice/docker.service".into(),
            format!("/machine.slice/libpod-conmon-{HEX}.scope"),
            format!("/system.slice/docker-{}.scope", &HEX[1..]),
            format!("/system.slice/docker-{}x.scope", &HEX[1..]),
            "/kubepods/besteffort/pod12".into(),
            "/podman.slice".into(),
            "/system.slice/docker-äöü.scope".into(),
        ] {
            assert_eq!(name(&format!("0::{path}\n")), None, "{path}");
        }
        assert_eq!(name("nonsense\n:\n"), None);
    }
}
