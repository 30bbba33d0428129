//! Tests of authorities and certificates, good and bad.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};
use tempfile::TempDir;

use super::{
    CA_CERT, CA_KEY, Credentials, HOST_CERT, HOST_KEY, IssueRequest, Outdated, PkiError, PkiPaths,
    Revocations, addresses_of, init, issue, load, revoke,
};

struct Lab {
    dir: TempDir,
}

impl Lab {
    fn new() -> Lab {
        let dir = tempfile::tempdir().unwrap();
        init(&dir.path().join("authority")).unwrap();
        Lab { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn request(&self, addresses: &[&str], out: &str) -> IssueRequest {
        IssueRequest {
            dir: self.path("authority"),
            name: "proxy1".into(),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            out: self.path(out),
            days: 30,
        }
    }

    fn issue(&self, addresses: &[&str], out: &str) -> PkiPaths {
        issue(&self.request(addresses, out)).unwrap();
        PkiPaths::in_dir(&self.path(out))
    }

    /// Makes a certificate of the authority that `issue` would refuse.
    fn forge(&self, out: &str, change: impl FnOnce(&mut CertificateParams)) -> PkiPaths {
        let paths = self.issue(&["10.0.0.1"], out);
        let ca_key = KeyPair::from_pem(&read(&self.path("authority"), CA_KEY)).unwrap();
        let ca_cert = read(&self.path("authority"), CA_CERT);
        let issuer = rcgen::Issuer::from_ca_cert_pem(&ca_cert, ca_key).unwrap();
        let key = KeyPair::from_pem(&fs::read_to_string(&paths.key).unwrap()).unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::IpAddress(ip("10.0.0.1"))];
        change(&mut params);
        let forged = params.signed_by(&key, &issuer).unwrap();
        fs::write(&paths.cert, forged.pem()).unwrap();
        paths
    }
}

fn ip(s: &str) -> IpAddr {
    s.parse().unwrap()
}

fn read(dir: &Path, name: &str) -> String {
    fs::read_to_string(dir.join(name)).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn refused(paths: &PkiPaths) -> PkiError {
    load(paths, &[ip("10.0.0.1")]).map(drop).unwrap_err()
}

#[test]
fn an_issued_certificate_loads_and_names_its_addresses() {
    let lab = Lab::new();
    let paths = lab.issue(
        &["10.0.0.1", "fd00::1", "::ffff:10.0.0.2", "10.0.0.1"],
        "host",
    );

    let credentials = load(&paths, &[ip("10.0.0.1"), ip("::ffff:10.0.0.2")]).unwrap();

    let mut addresses = addresses_of(&credentials.cert);
    addresses.sort();
    assert_eq!(addresses, ["10.0.0.1", "10.0.0.2", "fd00::1"].map(ip));
    assert_eq!(credentials.addresses.len(), 3);
}

#[test]
fn keys_are_for_their_owner_and_are_never_shown() {
    let lab = Lab::new();
    let paths = lab.issue(&["10.0.0.1"], "host");
    assert_eq!(mode(&lab.path("authority").join(CA_KEY)), 0o600);
    assert_eq!(mode(&paths.key), 0o600);
    assert_eq!(mode(&lab.path("host")), 0o700);

    let credentials = load(&paths, &[]).unwrap();
    let shown = format!("{credentials:?}");
    assert_eq!(shown, "Credentials { addresses: [10.0.0.1], .. }");

    fs::set_permissions(&paths.key, fs::Permissions::from_mode(0o640)).unwrap();
    let error = refused(&paths);
    assert!(matches!(error, PkiError::Exposed { mode: 0o640, .. }));
    assert!(error.to_string().contains("chmod 0600"), "{error}");
}

#[test]
fn nothing_is_overwritten() {
    let lab = Lab::new();
    let authority = lab.path("authority");
    let before = (read(&authority, CA_KEY), read(&authority, CA_CERT));
    let exists = |done| matches!(done, Err(PkiError::Exists { .. }));
    assert!(exists(init(&authority)));
    // A part is not overwritten either: the key could have been written.
    fs::rename(authority.join(CA_KEY), lab.path("kept")).unwrap();
    assert!(exists(init(&authority)));
    assert!(!authority.join(CA_KEY).exists());
    fs::rename(lab.path("kept"), authority.join(CA_KEY)).unwrap();
    assert_eq!(
        before,
        (read(&authority, CA_KEY), read(&authority, CA_CERT))
    );

    lab.issue(&["10.0.0.1"], "host");
    let host = lab.path("host");
    let before = (read(&host, HOST_KEY), read(&host, HOST_CERT));
    assert!(exists(issue(&lab.request(&["10.0.0.2"], "host"))));
    assert_eq!(before, (read(&host, HOST_KEY), read(&host, HOST_CERT)));
}

#[test]
fn certificates_that_name_nobody_are_not_issued() {
    let lab = Lab::new();
    let bad = |change: &dyn Fn(&mut IssueRequest)| {
        let mut request = lab.request(&["10.0.0.1"], "host");
        change(&mut request);
        let done = issue(&request);
        assert!(matches!(done, Err(PkiError::BadRequest(_))), "{request:?}");
        assert!(!lab.path("host").exists());
    };
    bad(&|r| r.addresses.clear());
    bad(&|r| r.addresses = vec![ip("0.0.0.0")]);
    bad(&|r| r.addresses = vec![ip("ff02::1")]);
    bad(&|r| r.name = String::new());
    bad(&|r| r.name = "a b".into());
    bad(&|r| r.name = "x".repeat(65));
    bad(&|r| r.days = 0);
    bad(&|r| r.days = 4000);
}

#[test]
fn an_authority_that_is_none_issues_nothing() {
    let lab = Lab::new();
    let mut request = lab.request(&["10.0.0.1"], "host");
    request.dir = lab.path("nowhere");
    let error = issue(&request).unwrap_err();
    assert!(matches!(error, PkiError::Read { .. }));
    assert!(error.to_string().contains("dyscoctl pki init"), "{error}");

    let other = Lab::new();
    let foreign = other.path("authority").join(CA_KEY);
    fs::copy(foreign, lab.path("authority").join(CA_KEY)).unwrap();
    let error = issue(&lab.request(&["10.0.0.1"], "host")).unwrap_err();
    assert!(matches!(error, PkiError::Mismatch { .. }), "{error}");
}

#[test]
fn a_certificate_for_another_host_is_refused() {
    let lab = Lab::new();
    let error = refused(&lab.issue(&["10.0.0.2"], "host"));
    assert!(matches!(error, PkiError::WrongHost { .. }));
    assert!(error.to_string().contains("it names 10.0.0.2"), "{error}");
}

#[test]
fn a_certificate_of_another_fleet_is_refused() {
    let lab = Lab::new();
    let paths = lab.issue(&["10.0.0.1"], "host");
    let other = Lab::new().issue_ca();
    fs::write(&paths.ca, other).unwrap();
    let error = refused(&paths);
    assert!(matches!(error, PkiError::Untrusted { .. }), "{error}");
}

impl Lab {
    fn issue_ca(&self) -> String {
        read(&self.path("authority"), CA_CERT)
    }
}

#[test]
fn a_certificate_out_of_its_time_is_refused() {
    let lab = Lab::new();
    let expired = lab.forge("expired", |params| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    });
    let error = refused(&expired);
    assert!(matches!(error, PkiError::OutOfTime { .. }), "{error}");
    assert!(error.to_string().contains("expired on"), "{error}");

    let early = lab.forge("early", |params| {
        params.not_before = date_time_ymd(3000, 1, 1);
        params.not_after = date_time_ymd(3001, 1, 1);
    });
    let error = refused(&early);
    assert!(error.to_string().contains("valid only from"), "{error}");
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let lab = Lab::new();
    let paths = lab.issue(&["10.0.0.1"], "host");
    let other = lab.issue(&["10.0.0.1"], "other");
    let mixed = PkiPaths {
        key: other.key,
        ..paths
    };
    assert!(matches!(refused(&mixed), PkiError::Mismatch { .. }));
}

#[test]
fn files_that_hold_something_else_are_refused() {
    let lab = Lab::new();
    let good = lab.issue(&["10.0.0.1"], "host");
    for field in [&good.ca, &good.cert, &good.key] {
        let before = fs::read(field).unwrap();
        for text in [
            "",
            "nonsense",
            "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
        ] {
            fs::write(field, text).unwrap();
            assert!(
                matches!(refused(&good), PkiError::Malformed { .. }),
                "{field:?} {text}"
            );
        }
        fs::remove_file(field).unwrap();
        let error = refused(&good);
        assert!(matches!(error, PkiError::Read { .. }));
        assert!(
            error.to_string().contains(field.to_str().unwrap()),
            "{error}"
        );
        fs::write(field, before).unwrap();
        fs::set_permissions(field, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let _: Credentials = load(&good, &[ip("10.0.0.1")]).unwrap();
}

#[test]
fn a_revoked_certificate_is_refused_and_the_others_are_not() {
    let lab = Lab::new();
    let names = ["one", "two", "three"];
    let [one, two, three] = names.map(|name| PkiPaths {
        revoked: lab.path("authority/revoked.crl"),
        ..lab.issue(&["10.0.0.1"], name)
    });
    let authority = lab.path("authority");
    // A repeated revocation adds nothing, and the list keeps earlier ones.
    for (certificate, count) in [(&one, 1), (&one, 1), (&two, 2)] {
        let list = revoke(&authority, std::slice::from_ref(&certificate.cert)).unwrap();
        assert_eq!(list.revoked, count);
    }
    for revoked in [&one, &two] {
        let error = refused(revoked);
        assert!(matches!(error, PkiError::Revoked { .. }), "{error}");
    }
    let good = load(&three, &[ip("10.0.0.1")]).unwrap();
    assert!(good.revoked.is_some());
    // A list of another authority is refused.
    let other = Lab::new();
    let theirs = other.issue(&["10.0.0.1"], "host").cert;
    revoke(&other.path("authority"), std::slice::from_ref(&theirs)).unwrap();
    let foreign = PkiPaths {
        revoked: other.path("authority/revoked.crl"),
        ..three.clone()
    };
    let error = refused(&foreign);
    assert!(matches!(error, PkiError::List { .. }), "{error}");
    let error = revoke(&authority, &[authority.join(CA_CERT)]).unwrap_err();
    assert!(
        error.to_string().contains("not a host's certificate"),
        "{error}"
    );
}

#[test]
fn a_list_is_followed_by_later_ones_that_revoke_as_much() {
    let lab = Lab::new();
    let authority = lab.path("authority");
    let [own, one, two] = ["own", "one", "two"].map(|name| PkiPaths {
        revoked: lab.path("authority/revoked.crl"),
        ..lab.issue(&["10.0.0.1"], name)
    });
    let now = || load(&own, &[ip("10.0.0.1")]).unwrap();
    let revoke = |paths: &PkiPaths| {
        revoke(&authority, std::slice::from_ref(&paths.cert)).unwrap();
        now()
    };
    let none = now();
    let first = revoke(&one);
    let second = revoke(&two);
    let follows = |used, next| Revocations::of(used).check_next(next);
    assert_eq!(follows(&none, &first), Ok(()));
    assert_eq!(follows(&first, &first), Ok(()));
    assert_eq!(follows(&first, &second), Ok(()));
    assert_eq!(follows(&first, &none), Err(Outdated::Gone));
    let older = Outdated::Older {
        number: "1".into(),
        used: "2".into(),
    };
    assert_eq!(follows(&second, &first), Err(older));
    // The authority has lost its list, and began another.
    fs::remove_file(&own.revoked).unwrap();
    let began = revoke(&two);
    assert_eq!(follows(&first, &began), Err(Outdated::Lacks(1)));
    // Another authority may have any list.
    let other = Lab::new();
    let other = load(&other.issue(&["10.0.0.1"], "host"), &[ip("10.0.0.1")]).unwrap();
    assert_eq!(follows(&second, &other), Ok(()));
}
