//! Flags of `serve` that mean nothing beside the others, or by themselves, and variables that mean nothing.

mod harness;

use std::fs;
use std::process::Command;

use harness::{Place, Ran};

#[track_caller]
fn refused_with(place: &Place, flags: &[&str]) -> Ran {
    match place.try_serve(flags) {
        Ok(_) => panic!("{flags:?} were taken"),
        Err(ran) => ran.expect(2),
    }
}

#[test]
fn flags_without_effect_are_refused() {
    let rados = ["--backend", "rados:pool"];
    let memory = ["--backend", "memory"];
    let off = ["--exec", "off"];
    let none: [&str; 0] = [];
    // Beside what, which, and what is said.
    let refused: [(&[&str], &str, &str); 19] = [
        (
            &none,
            "--cache=65MiB",
            "--cache 65MiB is part of the buffer memory, which has 64MiB",
        ),
        (
            &none,
            "--ceph-conf=x",
            "--ceph-conf is of --backend rados:POOL",
        ),
        (&none, "--ceph-id=x", "--ceph-id is of --backend rados:POOL"),
        (
            &memory,
            "--ceph-keyring=x",
            "--ceph-keyring is of --backend rados:POOL",
        ),
        (
            &none,
            "--ceph-patience=31",
            "--ceph-patience is of --backend rados:POOL",
        ),
        (
            &none,
            "--ceph-lease=61",
            "--ceph-lease is of --backend rados:POOL",
        ),
        (
            &none,
            "--ceph-grace=601",
            "--ceph-grace is of --backend rados:POOL",
        ),
        (
            &memory,
            "--device=nvme+tcp://[::1]:1/nqn.2026-01.com.example:a/1",
            "--backend engine",
        ),
        (
            &memory,
            "--cache=1MiB",
            "--cache is the memory of --backend engine",
        ),
        (
            &rados,
            "--lose-journal-from=1",
            "--lose-journal-from opens the journal of --backend engine",
        ),
        (
            &memory,
            "--accept-damaged-index",
            "--accept-damaged-index opens the index of --backend engine",
        ),
        (
            &rados,
            "--capacity=1GiB",
            "--capacity bounds --backend engine and memory",
        ),
        (
            &off,
            "--exec-deadline=1",
            "--exec-deadline bounds functions, and --exec off runs none",
        ),
        (&off, "--exec-memory=1MiB", "--exec-memory bounds functions"),
        (&off, "--exec-threads=1", "--exec-threads bounds functions"),
        (
            &none,
            "--device-host-nqn=nqn.2026-01.com.example:a",
            "--device <URL>",
        ),
        (&none, "--cache-ttl=1", "--cache-memory <SIZE>"),
        (&none, "--s3-tls-key=x", "--s3-tls-cert <FILE>"),
        (&none, "--rpc-client-ca=x", "--rpc-tls-cert <FILE>"),
    ];
    let place = Place::new();
    for (beside, flag, words) in refused {
        let ran = refused_with(&place, &[beside, &[flag]].concat());
        assert!(ran.err.contains(words), "{flag}: {ran:?}");
        // Of what the parser says this is the first.
        let lines = ran.err.lines().count();
        assert!(
            lines == 1 || words.starts_with("--") && words.ends_with('>'),
            "{ran:?}"
        );

        // The same from a file.
        let config = place.path("forebay.toml");
        let (key, value) = flag
            .trim_start_matches("--")
            .split_once('=')
            .unwrap_or((&flag[2..], ""));
        let line = match value {
            "" => format!("{key} = true\n"),
            value => format!("{key} = {value:?}\n"),
        };
        fs::write(&config, line).unwrap();
        let named = ["--config", config.to_str().unwrap()];
        let ran = refused_with(&place, &[beside, &named].concat());
        assert!(ran.err.contains(words), "{flag} in a file: {ran:?}");
    }
    assert!(!place.data().exists());
}

#[test]
fn what_says_no_more_than_the_default_is_in_nobodys_way() {
    let place = Place::new();
    let server = place.serve(&[
        "--cache=64MiB",
        "--ceph-id=admin",
        "--ceph-patience=30",
        "--ceph-lease=60",
        "--ceph-grace=600",
        "--exec=off",
        "--exec-deadline=10000",
        "--exec-memory=64MiB",
    ]);
    server.ok(&["ls"]);
}

/// A variable of the environment, if one is set.
type Variable<'a> = Option<(&'a str, &'a str)>;

/// What `serve` says with a configuration of this text.
fn configured(place: &Place, text: &str, flags: &[&str], variable: Variable<'_>) -> Ran {
    let config = place.path("forebay.toml");
    fs::write(&config, text).unwrap();
    let named = ["--config", config.to_str().unwrap()];
    let flags = [&named, flags].concat();
    match place.try_serve_with(&flags, |command| {
        command.envs(variable);
    }) {
        Ok(_) => panic!("{text} was taken"),
        Err(ran) => ran,
    }
}

#[test]
fn what_a_flag_or_a_variable_goes_with_may_stand_in_the_file() {
    let place = Place::new();
    // All are taken as usage: what does not start says why.
    let disk = format!("{}:1GiB", place.path("LOCK/cache").display());
    fs::write(place.path("LOCK"), "").unwrap();
    let device = "device = \"nvme+tcp://127.0.0.1:1/nqn.2026-01.com.example:a/1\"\n";
    let key = "NVMeTLSkey-1:00:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
    let mixed: [(&str, &[&str], Variable<'_>, &str); 4] = [
        (
            "s3-tls-cert = \"/none/cert.pem\"\n",
            &["--s3-tls-key", "/none/key.pem"],
            None,
            "/none/",
        ),
        (
            "cache-memory = \"16MiB\"\n",
            &["--cache-disk", &disk],
            None,
            "LOCK/cache",
        ),
        (
            device,
            &["--device-host-nqn", "nqn.2026-01.com.example:b"],
            None,
            "127.0.0.1:1",
        ),
        (
            device,
            &[],
            Some(("FOREBAY_DEVICE_TLS_KEY", key)),
            "127.0.0.1:1",
        ),
    ];
    for (text, flags, variable, words) in mixed {
        let ran = configured(&place, text, flags, variable);
        assert!(
            ran.err.contains(words) && !ran.err.contains("required"),
            "{text} {flags:?}: {ran:?}"
        );
    }
}

#[test]
fn a_flag_wins_over_a_key_that_cannot_stand_beside_it() {
    let place = Place::new();
    let config = place.path("forebay.toml");
    let named = ["--config", config.to_str().unwrap()];
    for (key, flag) in [
        ("cache-trust = 5", "--cache-strict"),
        ("cache-strict = true", "--cache-trust=5"),
    ] {
        fs::write(&config, format!("cache-memory = \"16MiB\"\n{key}\n")).unwrap();
        let server = place.serve(&[&named[..], &[flag]].concat());
        assert_eq!(server.terminate(), Some(0), "{flag} over {key}");
    }
    // Two keys of one file are a mistake, as two flags are.
    let both = "cache-memory = \"16MiB\"\ncache-trust = 5\ncache-strict = true\n";
    let ran = configured(&place, both, &[], None).expect(2);
    assert!(ran.err.contains("cannot be used with"), "{ran:?}");
}

#[test]
fn a_variable_that_is_set_to_nothing_is_not_set() {
    let place = Place::new();
    let none = |command: &mut Command| {
        for name in [
            "AWS_REGION",
            "FOREBAY_DEVICE_CHAP_SECRET",
            "FOREBAY_DEVICE_TLS_KEY",
            "FOREBAY_ENDPOINT",
            "FOREBAY_IMPORT_SECRET_KEY",
        ] {
            command.env(name, "");
        }
    };
    let server = place.serve_with(&[], none);
    for arguments in [
        &["ls"][..],
        &["admin", "key", "create", "root"],
        &[
            "cp",
            "--path",
            "http",
            "--make-namespace",
            "-",
            "fb://data/a",
        ],
    ] {
        server.run_with(arguments, none).expect(0);
    }
}

#[test]
fn a_variable_without_what_it_goes_with_is_in_nobodys_way() {
    let place = Place::new();
    let secrets = |command: &mut Command| {
        for name in [
            "FOREBAY_DEVICE_CHAP_SECRET",
            "FOREBAY_DEVICE_TLS_KEY",
            "FOREBAY_IMPORT_SECRET_KEY",
        ] {
            command.env(name, "of something else");
        }
    };
    let server = place.serve_with(&[], secrets);
    let create = ["admin", "key", "create", "root"];
    let made = server.run_with(&create, secrets).expect(0);
    assert!(!made.out.contains("of something else"), "{made:?}");
    // Who writes it there means something by it.
    let ran = refused_with(&place, &["--device-tls-key=x"]);
    assert!(ran.err.contains("--device <URL>"), "{ran:?}");
    for (half, words) in [
        (["--secret-key", "x"], "--access-key"),
        (["--access-key", "x"], "FOREBAY_IMPORT_SECRET_KEY"),
    ] {
        let ran = server.run(&[&create[..], &half].concat()).expect(2);
        assert!(ran.err.contains(words), "{ran:?}");
    }
}

#[test]
fn a_cluster_is_waited_for() {
    let place = Place::new();
    for flag in ["--ceph-patience", "--ceph-lease"] {
        let ran = refused_with(&place, &["--backend", "rados:pool", flag, "0"]);
        assert!(ran.err.contains(flag), "{ran:?}");
    }
}

#[test]
fn what_nobody_could_be_asked_at_makes_no_directory() {
    let place = Place::new();
    let device = "--device=nvme+tcp://[::1]:1/nqn.2026-01.com.example:a/1";
    let wrong: [(&[&str], &str); 6] = [
        (
            &["--device=kv://[::1]:1/nqn.2026-01.com.example:a/1"],
            "nvme+tcp://HOST[:PORT]/SUBNQN/NSID or nvme+vfio-user:///SOCKET/NSID",
        ),
        (&["--device=kv:///run/cntrl/1"], "nvme+vfio-user"),
        (&["--device=/dev/nvme0n1"], "nvme+tcp"),
        (
            &[device, "--device-host-nqn=x"],
            "NVMe Qualified Name: nqn.",
        ),
        (
            &["--otlp=https://localhost:4317"],
            "only http:// collectors",
        ),
        (&["--otlp=junk"], "only http:// collectors"),
    ];
    for (flags, words) in wrong {
        let ran = refused_with(&place, flags);
        assert!(ran.err.contains(words), "{flags:?}: {ran:?}");
    }
    let ran = refused_with(
        &place,
        &["--device=kv://[::1]:1/nqn.2026-01.com.example:a/1"],
    );
    assert!(!ran.err.contains(" or kv"), "{ran:?}");
    assert!(!place.data().exists());
}
