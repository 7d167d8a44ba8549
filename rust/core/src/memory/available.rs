//! Memory that this process may still take, by every limit that can be seen: free memory of the machine, the cgroup
//! (version 1 or 2) of the process and all its ancestors, and `RLIMIT_AS`.
//!
//! `rlz.system.memory` asks here too, so that what is refused before a run and what is refused by the transport agree.
//! Allocating more than there is does not fail: the kernel kills processes until it succeeds, inside a container those
//! of the container. Page cache that the kernel can drop does not count as used. What cannot be read is no limit.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};

/// Version 1 writes "no limit" as a number near 2^63.
const UNLIMITED: u64 = 1 << 60;

/// Bytes that are left, and under which limit.
pub type Left = (u64, String);

/// Every limit, the tightest first; `root` is where `/proc` and the cgroup mounts are looked for.
#[must_use]
pub fn limits(root: &Path) -> Vec<Left> {
    let mut found: Vec<_> = machine(root).into_iter().chain(cgroups(root)).chain(address_space(root)).collect();
    found.sort_by_key(|(left, _)| *left);
    found
}

fn text(path: impl AsRef<Path>) -> String {
    read_to_string(path).unwrap_or_default()
}

fn machine(root: &Path) -> Option<Left> {
    let meminfo = text(root.join("proc/meminfo"));
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"))?;
    Some((kib.trim().parse::<u64>().ok()? * 1024, "free memory of this machine (MemAvailable)".to_owned()))
}

fn address_space(root: &Path) -> Option<Left> {
    let limit = getrlimit(Resource::As).current?;
    let pages: u64 = text(root.join("proc/self/statm")).split(' ').next()?.parse().ok()?;
    let left = limit.saturating_sub(pages * rustix::param::page_size() as u64);
    Some((left, "limit of the address space (ulimit -v)".to_owned()))
}

fn cgroups(root: &Path) -> Vec<Left> {
    folders(root).into_iter().filter_map(|folder| of_cgroup(root, &folder)).collect()
}

fn of_cgroup(root: &Path, folder: &Path) -> Option<Left> {
    let first = |names: [&str; 2]| names.iter().find_map(|name| text(folder.join(name)).trim().parse::<u64>().ok());
    let limit = first(["memory.max", "memory.limit_in_bytes"]).filter(|limit| *limit < UNLIMITED)?;
    let used = first(["memory.current", "memory.usage_in_bytes"])?;
    let stat = text(folder.join("memory.stat"));
    let of = |name: &str| stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<u64>().ok());
    // Version 1 counts cgroups below this one in "total_" only.
    let cache = of("total_inactive_file").or_else(|| of("inactive_file")).unwrap_or(0);
    let left = limit.saturating_sub(used.saturating_sub(cache));
    let shown = folder.strip_prefix(root).unwrap_or(folder).display();
    Some((left, format!("memory limit of the container or cgroup (/{shown}: {} MiB)", limit >> 20)))
}

/// Folders of this process's cgroup for memory and all its ancestors.
fn folders(root: &Path) -> Vec<PathBuf> {
    let mounts = text(root.join("proc/self/mountinfo"));
    let mut found = Vec::new();
    for line in text(root.join("proc/self/cgroup")).lines() {
        let [number, controllers, path] = line.splitn(3, ':').collect::<Vec<_>>()[..] else { continue };
        let second = number == "0" && controllers.is_empty();
        if !second && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let mut places: Vec<_> = mounts.lines().filter_map(|line| mount(line, second)).collect();
        if places.is_empty() {
            places.push((if second { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" }, ""));
        }
        for (place, shown) in places {
            // A container often sees its own cgroup as the root of the mount.
            let below =
                path.strip_prefix(shown).filter(|rest| rest.is_empty() || rest.starts_with('/')).unwrap_or(path);
            let mount = root.join(place.trim_start_matches('/'));
            let own = mount.join(below.trim_start_matches('/'));
            found.extend(own.ancestors().take_while(|folder| folder.starts_with(&mount)).map(Path::to_owned));
        }
    }
    found
}

/// Mount point, and the cgroup that it shows as its root ("" for the uppermost), of a line of `mountinfo`.
fn mount(line: &str, second: bool) -> Option<(&str, &str)> {
    let (left, right) = line.split_once(" - ")?;
    let [_, _, _, shown, place, ..] = left.split(' ').collect::<Vec<_>>()[..] else { return None };
    let [kind, _, options, ..] = right.split(' ').collect::<Vec<_>>()[..] else { return None };
    let fits =
        if second { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|name| name == "memory") };
    fits.then_some((place, if shown == "/" { "" } else { shown }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with 8 GiB free and these files.
    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = ("proc/meminfo", "MemTotal:       16000000 kB\nMemAvailable:    8388608 kB\nBuffers: 1 kB\n");
        for (path, content) in [meminfo].iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        root
    }

    fn left(files: &[(&str, &str)]) -> (u64, String) {
        let (left, name) = limits(machine(files).path()).swap_remove(0);
        (left >> 20, name)
    }

    const SECOND: (&str, &str) =
        ("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n");

    #[test]
    fn a_limit_of_any_ancestor_counts() {
        let files = [
            SECOND,
            ("proc/self/cgroup", "0::/pod/app\n"),
            ("sys/fs/cgroup/pod/app/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/app/memory.current", "1000000\n"),
            ("sys/fs/cgroup/pod/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/pod/memory.current", "1073741824\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 5\ninactive_file 536870912\nactive_file 7\n"),
        ];
        let (mib, name) = left(&files);
        assert_eq!(mib, 1536);
        assert!(name.contains("(/sys/fs/cgroup/pod: 2048 MiB)"), "{name}");
    }

    #[test]
    fn the_first_version_and_a_cgroup_seen_as_the_root() {
        let mounts = "40 30 0:35 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let files = [
            ("proc/self/mountinfo", mounts),
            ("proc/self/cgroup", "9:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 0\ntotal_inactive_file 134217728\n"),
        ];
        assert_eq!(left(&files).0, 384);
    }

    #[test]
    fn where_no_mount_is_told_the_usual_places_are_looked_at() {
        let files = [
            ("proc/self/cgroup", "5:memory:/x\n0::/\n"),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.current", "536870912\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "314572800\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "104857600\n"),
        ];
        let found: Vec<_> = limits(machine(&files).path()).iter().map(|(left, _)| left >> 20).collect();
        assert_eq!(found[..2], [200, 512]);
    }

    #[test]
    fn without_a_limit_the_machine_counts() {
        let unlimited = ("sys/fs/cgroup/memory.max", "9223372036854771712\n");
        for files in
            [&[][..], &[SECOND, ("proc/self/cgroup", "0::/\n"), unlimited, ("sys/fs/cgroup/memory.current", "5")]]
        {
            let (mib, name) = left(files);
            assert_eq!(mib, 8192);
            assert!(name.contains("MemAvailable"), "{name}");
        }
        assert!(limits(Path::new("/proc/self/fdinfo")).iter().all(|(_, name)| name.contains("ulimit")));
    }
}
