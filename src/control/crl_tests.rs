//! A file of revocation lists as it comes, changes, breaks and goes. Time is given: each look is one period later.

use std::path::Path;

use super::*;
use crate::control::recorder::Registry;
use crate::mesh::identity::Identity;
use crate::tls::cert::Authority;
use crate::tls::config::Profile;

struct Scene {
    directory: tempfile::TempDir,
    file: RevocationFile,
    revocations: Arc<Revocations>,
    readiness: Readiness,
    registry: Registry,
    now: Instant,
}

impl Scene {
    fn new(content: Option<&str>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("crl.pem");
        if let Some(content) = content {
            std::fs::write(&path, content).unwrap();
        }
        let revocations = Arc::<Revocations>::default();
        let file = RevocationFile::new(path, revocations.clone());
        let (readiness, registry) = (Readiness::default(), Registry::default());
        Self { directory, file, revocations, readiness, registry, now: Instant::now() }
    }

    /// The next look that the file's own pace allows.
    fn look(&mut self) -> bool {
        self.now += Duration::from_millis(SOURCE_POLL_MS);
        let (file, now, readiness) = (&mut self.file, self.now, &self.readiness);
        metrics::with_local_recorder(&self.registry, || file.look(now, readiness))
    }

    fn survey(&mut self, identities: &Identities) -> Vec<String> {
        let (file, now) = (&mut self.file, self.now);
        metrics::with_local_recorder(&self.registry, || file.survey(now, SystemTime::now(), identities));
        self.file.told.iter().map(ToString::to_string).collect()
    }

    fn write(&self, content: &str) {
        std::fs::write(self.path(), content).unwrap();
    }

    fn path(&self) -> &Path {
        &self.file.path
    }

    fn count(&self) -> usize {
        self.revocations.current().iter().count()
    }

    fn value(&self, name: &str) -> f64 {
        self.registry.samples().iter().find(|sample| sample.name == name).map_or(0.0, |sample| sample.value)
    }

    fn unready(&self) -> Option<String> {
        let pending = self.readiness.pending();
        pending.first().map(|(_, reason)| reason.as_deref().unwrap_or_default().to_owned())
    }
}

fn authority() -> Authority {
    Authority::new("cluster.local").unwrap()
}

#[test]
fn what_is_there_at_start_is_in_force_after_the_first_look() {
    let mut scene = Scene::new(Some(&authority().revoke(&[])));
    assert!(scene.look());
    assert_eq!((scene.count(), scene.revocations.generation(), scene.unready()), (1, 1, None));
    assert!(!scene.look() && !scene.look(), "nothing new");
    // Between two looks of its own pace nothing is read.
    scene.write("");
    assert!(!scene.file.look(scene.now, &scene.readiness));
}

#[test]
fn a_change_is_in_force_within_two_seconds_but_never_half_written() {
    let list = authority().revoke(&[]);
    let mut scene = Scene::new(Some(&list));
    scene.look();
    scene.write(&list.repeat(2));
    assert!(!scene.look(), "it may still be written");
    assert!(scene.look());
    assert_eq!(scene.count(), 2);
    // One that never rests is read all the same.
    let mut looks = 1;
    scene.write(&list.repeat(3));
    while !scene.look() {
        looks += 1;
        scene.write(&format!("{}{}", list.repeat(3), "\n".repeat(looks)));
    }
    assert!(scene.count() == 3 && (looks as u64) * SOURCE_POLL_MS <= 2_000, "{looks} looks");
    // The same bytes under another stamp are no news.
    scene.look();
    scene.look();
    let generation = scene.revocations.generation();
    std::fs::remove_file(scene.path()).unwrap();
    scene.write(&format!("{}{}", list.repeat(3), "\n".repeat(looks)));
    (0..4).for_each(|_| _ = scene.look());
    assert!(scene.revocations.generation() <= generation + 1 && scene.count() == 3);
    // Taken back in order.
    scene.write("");
    assert!(!scene.look() && scene.look());
    assert_eq!(scene.count(), 0);
}

#[test]
fn a_swapped_symbolic_link_further_up_is_followed() {
    let directory = tempfile::tempdir().unwrap();
    let authority = authority();
    for (version, lists) in [("one", 1), ("two", 2)] {
        std::fs::create_dir(directory.path().join(version)).unwrap();
        let text = authority.revoke(&[]).repeat(lists);
        std::fs::write(directory.path().join(version).join("crl.pem"), text).unwrap();
    }
    let data = directory.path().join("..data");
    std::os::unix::fs::symlink("one", &data).unwrap();
    let path = directory.path().join("crl.pem");
    std::os::unix::fs::symlink("..data/crl.pem", &path).unwrap();
    let mut scene = Scene::new(None);
    scene.file = RevocationFile::new(path, scene.revocations.clone());
    assert!(scene.look());
    let fresh = directory.path().join("..data_tmp");
    std::os::unix::fs::symlink("two", &fresh).unwrap();
    std::fs::rename(&fresh, &data).unwrap();
    assert!(!scene.look() && scene.look());
    assert_eq!(scene.count(), 2);
}

#[test]
fn a_missing_file_is_waited_for_without_holding_anything_up() {
    let mut scene = Scene::new(None);
    assert!(!scene.look());
    assert_eq!((scene.unready(), scene.revocations.generation()), (None, 1), "counted, and empty");
    (0..5).for_each(|_| _ = scene.look());
    assert_eq!(scene.value("ringway_crl_load_errors"), 1.0, "told once");
    scene.write(&authority().revoke(&[]));
    assert!(scene.look() || scene.look() || scene.look());
    assert_eq!(scene.count(), 1);
}

#[test]
fn a_malformed_file_at_start_keeps_the_process_unready_until_it_is_put_right() {
    let list = authority().revoke(&[]);
    let mut scene =
        Scene::new(Some(&format!("{list}-----BEGIN X509 CRL-----\nMAA=\n-----END X509 CRL-----\n")));
    assert!(!scene.look());
    let reason = scene.unready().unwrap();
    assert!(
        reason.contains("crl.pem: list 2: ") && reason.starts_with("no certificate is revoked"),
        "{reason}"
    );
    assert_eq!((scene.count(), scene.value("ringway_crl_load_errors")), (0, 1.0));
    (0..5).for_each(|_| _ = scene.look());
    assert_eq!(scene.value("ringway_crl_load_errors"), 1.0, "the same fault is told once");
    scene.write(&list);
    assert!(!scene.look() && scene.look());
    assert_eq!((scene.unready(), scene.count()), (None, 1));
}

#[test]
fn what_was_read_stays_in_force_while_the_file_is_broken_or_gone() {
    let list = authority().revoke(&[]);
    let mut scene = Scene::new(Some(&list));
    scene.look();
    scene.write("nonsense");
    assert!(!scene.look() && !scene.look());
    assert_eq!((scene.count(), scene.unready(), scene.value("ringway_crl_load_errors")), (1, None, 1.0));
    std::fs::remove_file(scene.path()).unwrap();
    assert!(!scene.look() && !scene.look());
    assert_eq!((scene.count(), scene.value("ringway_crl_load_errors")), (1, 2.0));
    std::fs::create_dir(scene.path()).unwrap();
    assert!(!scene.look() && !scene.look());
    assert_eq!((scene.count(), scene.unready()), (1, None));
    assert!(scene.directory.path().join("crl.pem").is_dir());
}

#[test]
fn expired_lists_unknown_signers_and_our_own_revoked_certificate_are_told() {
    let (ours, stranger) = (authority(), Authority::new("elsewhere").unwrap());
    let identity: Identity = "spiffe://cluster.local/ns/default/sa/web".parse().unwrap();
    let mut scene = Scene::new(None);
    let profile = Profile { revocations: scene.revocations.clone(), ..Profile::default() };
    let credential = Arc::new(ours.credential(&identity, Duration::from_secs(3_600), profile).unwrap());
    let past = time::OffsetDateTime::now_utc() - time::Duration::DAY;
    scene.write(&[ours.revocation_list(&[&credential.chain()[0].pem], past), stranger.revoke(&[])].concat());
    assert!(scene.look());
    let identities = Identities::default();
    let alone = scene.survey(&identities);
    assert!(
        alone.len() == 1 && alone[0].contains("\"O=cluster.local\" should have been replaced"),
        "{alone:?}"
    );
    identities.set(identity, Standing::Available(credential));
    assert_eq!(scene.survey(&identities).len(), 1, "not before its time");
    scene.file.signers_changed();
    let told = scene.survey(&identities);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told.iter().any(|text| text.contains("\"O=elsewhere\" is signed by none of the roots")));
    assert!(told.iter().any(|text| text.contains("ns/default/sa/web is revoked: its peers will refuse it")));
    let gauges = ["", "_expired", "_unsigned"].map(|of| scene.value(&format!("ringway_crl_lists{of}")));
    assert_eq!(gauges, [2.0, 1.0, 1.0]);
}
