//! Processors: how many there are, how much of them the container may use, and which core a shard is pinned
//! to. Not the number of shards: that is configuration (reference section 2.2).

use std::fs;
use std::path::{Path, PathBuf};

pub use core_affinity::CoreId;

/// Processors that are online, whatever this process may use of them. At least 1.
pub fn online() -> usize {
    fs::read_to_string("/sys/devices/system/cpu/online")
        .ok()
        .and_then(|text| list(&text))
        .map(|ids| ids.len())
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from))
        .unwrap_or(1)
        .max(1)
}

/// Processors in the affinity mask (cpuset, taskset); `None` where it can't be read.
pub fn allowed() -> Option<Vec<CoreId>> {
    core_affinity::get_core_ids().filter(|cores| !cores.is_empty())
}

/// The CPU quota of the cgroup, in processors (`0.5` is half of one): the tightest on the way to the root, v2
/// or v1; `None` where there is none.
pub fn quota() -> Option<f64> {
    let mine = fs::read_to_string("/proc/self/cgroup").ok()?;
    quota_under(Path::new("/sys/fs/cgroup"), &mine)
}

/// Pins the calling thread. False where the kernel refuses.
pub fn pin(core: CoreId) -> bool {
    core_affinity::set_for_current(core)
}

/// A core for each shard, spread over the allowed ones and over whole cores before their second threads;
/// `None` for all where there are more shards than processors or the mask can't be read: two shards on one
/// core while another is idle would be worse than no pinning.
pub fn cores_for(shards: usize) -> Vec<Option<CoreId>> {
    let siblings = |core: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
        fs::read_to_string(path).ok().and_then(|text| list(&text)?.first().copied())
    };
    let allowed: Vec<usize> = allowed().unwrap_or_default().iter().map(|core| core.id).collect();
    match spread(&allowed, siblings, shards) {
        Some(ids) => ids.into_iter().map(|id| Some(CoreId { id })).collect(),
        None => vec![None; shards],
    }
}

/// Chooses `shards` of the allowed processors. `leader_of` names the first hardware thread of a processor's
/// core.
fn spread(
    allowed: &[usize],
    leader_of: impl Fn(usize) -> Option<usize>,
    shards: usize,
) -> Option<Vec<usize>> {
    if shards == 0 || shards > allowed.len() {
        return None;
    }
    let mut seen = Vec::new();
    let (first, second): (Vec<usize>, Vec<usize>) = allowed.iter().partition(|id| {
        let leader = leader_of(**id).unwrap_or(**id);
        let new = !seen.contains(&leader);
        seen.push(leader);
        new
    });
    if shards >= first.len() {
        return Some(first.into_iter().chain(second).take(shards).collect());
    }
    // Fewer shards than cores: at even steps, so that caches and memory channels are shared by as few as can
    // be.
    (0..shards).map(|shard| first.get(shard * first.len() / shards).copied()).collect()
}

/// The kernel's list format: `0-3,8,10-11`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut ids = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let (from, to) = (from.parse::<usize>().ok()?, to.parse::<usize>().ok()?);
        if to.checked_sub(from)? > 1 << 16 {
            return None;
        }
        ids.extend(from..=to);
    }
    Some(ids)
}

/// The tightest quota for a process whose /proc/self/cgroup says `mine`, below a mount of the hierarchies.
fn quota_under(mount: &Path, mine: &str) -> Option<f64> {
    let mut tightest: Option<f64> = None;
    for line in mine.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let second = controllers.is_empty();
        let roots: Vec<PathBuf> = match (second, controllers.split(',').any(|name| name == "cpu")) {
            (true, _) => vec![mount.to_owned(), mount.join("unified")],
            (false, true) => vec![mount.join(controllers), mount.join("cpu")],
            (false, false) => continue,
        };
        for directory in roots.iter().flat_map(|root| way_up(root, path)) {
            let quota = if second { quota_v2(&directory) } else { quota_v1(&directory) };
            if let Some(quota) = quota {
                tightest = Some(tightest.map_or(quota, |known| known.min(quota)));
            }
        }
    }
    tightest
}

/// The cgroup's directory and its parents down to the mount. In a cgroup namespace the path is `/`, or leads
/// outside (`/../..`), where only the mount itself can be read.
fn way_up(root: &Path, path: &str) -> Vec<PathBuf> {
    let inside = Path::new(path.trim_start_matches('/'));
    if inside.components().any(|part| !matches!(part, std::path::Component::Normal(_))) {
        return vec![root.to_owned()];
    }
    inside.ancestors().map(|part| root.join(part)).collect()
}

fn quota_v2(directory: &Path) -> Option<f64> {
    let text = fs::read_to_string(directory.join("cpu.max")).ok()?;
    let mut words = text.split_whitespace();
    processors(words.next()?, words.next().unwrap_or("100000"))
}

fn quota_v1(directory: &Path) -> Option<f64> {
    let quota = fs::read_to_string(directory.join("cpu.cfs_quota_us")).ok()?;
    let period = fs::read_to_string(directory.join("cpu.cfs_period_us")).ok()?;
    processors(quota.trim(), period.trim())
}

/// Microseconds of processor time a period; `max` and `-1` are no limit.
fn processors(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota.is_finite() && quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_both_versions_and_the_tightest_parent_wins() {
        let mount = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = mount.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let quota = |mine: &str| quota_under(mount.path(), mine);
        assert_eq!(quota("0::/kubepods/pod1/c\n"), None);
        put("kubepods/pod1/c/cpu.max", "max 100000\n");
        assert_eq!(quota("0::/kubepods/pod1/c\n"), None);
        put("kubepods/pod1/cpu.max", "150000 100000\n");
        assert_eq!(quota("0::/kubepods/pod1/c\n"), Some(1.5));
        put("kubepods/cpu.max", "50000 100000\n");
        assert_eq!(quota("0::/kubepods/pod1/c\n"), Some(0.5));
        put("cpu.max", "400000");
        assert_eq!(quota("0::/\n"), Some(4.0));
        assert_eq!(quota("0::/../../elsewhere\n"), Some(4.0));
        put("cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
        put("cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota("4:cpu,cpuacct:/a\n3:memory:/m\n"), None);
        put("cpu,cpuacct/a/cpu.cfs_quota_us", "250000\n");
        assert_eq!(quota("4:cpu,cpuacct:/a\n3:memory:/m\n"), Some(2.5));
        for broken in ["", "0::", "::::", "4:cpu", "\0"] {
            let _ = quota(broken);
        }
        put("odd/cpu.max", "-5 0");
        assert_eq!(processors("-5", "0"), None);
        assert_eq!(processors("nan", "1"), None);
    }

    #[test]
    fn lists_are_read_as_the_kernel_writes_them() {
        assert_eq!(list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(list("\n"), Some(vec![]));
        assert_eq!((list("3-1"), list("a"), list("0-99999999999")), (None, None, None));
    }

    #[test]
    fn shards_spread_over_whole_cores_first() {
        // Four cores of two threads: 0 and 4 share one, and so on.
        let leader = |id: usize| Some(id % 4);
        let eight: Vec<usize> = (0..8).collect();
        assert_eq!(spread(&eight, leader, 2), Some(vec![0, 2]));
        assert_eq!(spread(&eight, leader, 4), Some(vec![0, 1, 2, 3]));
        assert_eq!(spread(&eight, leader, 6), Some(vec![0, 1, 2, 3, 4, 5]));
        assert_eq!(spread(&eight, leader, 9), None);
        assert_eq!(spread(&[3, 7, 5], leader, 2), Some(vec![3, 5]));
        assert_eq!(spread(&[], leader, 1), None);
        assert_eq!(spread(&eight, |_| None, 3), Some(vec![0, 2, 5]));
    }

    #[test]
    fn every_choice_is_of_distinct_allowed_processors() {
        for allowed in 1..20_usize {
            let ids: Vec<usize> = (0..allowed).map(|id| id * 3).collect();
            for shards in 1..=allowed {
                let mut chosen = spread(&ids, |id| Some(id / 6), shards).unwrap();
                assert!(chosen.iter().all(|id| ids.contains(id)));
                chosen.sort_unstable();
                chosen.dedup();
                assert_eq!(chosen.len(), shards);
            }
        }
    }

    #[test]
    fn this_machine_has_processors_and_pinning_shows_in_the_mask() {
        assert!(online() >= 1);
        assert_eq!(cores_for(100_000), vec![None; 100_000]);
        std::thread::spawn(|| {
            let core = cores_for(1).first().copied().flatten().expect("the affinity mask can be read");
            assert!(pin(core));
            let mask: Vec<usize> = allowed().unwrap().iter().map(|core| core.id).collect();
            assert_eq!(mask, vec![core.id]);
        })
        .join()
        .unwrap();
    }
}
