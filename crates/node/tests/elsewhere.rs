//! The command line as others use it: by what a bucket policy grants, into names that are taken, as a profile says.

mod harness;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use forebay_client::Credentials;
use harness::skipping::skip;
use harness::{Place, Ran, Server, bytes, s3, tree};
use serde_json::Value;

/// A key of the tenant `red`, which is made.
fn red(server: &Server) -> Credentials {
    server.ok(&["admin", "tenant", "create", "red"]);
    let key = &server.json(&["admin", "key", "create", "red"])[0];
    Credentials {
        access_key: key["access_key"].as_str().unwrap().to_owned(),
        secret_key: key["secret_key"].as_str().unwrap().to_owned(),
    }
}

/// Runs a command with a tenant's key.
fn run(who: &Credentials, endpoint: &str, arguments: &[&str]) -> Ran {
    let output = harness::forebay()
        .args(arguments)
        .args(["--endpoint", endpoint])
        .env("FOREBAY_ACCESS_KEY", &who.access_key)
        .env("FOREBAY_SECRET_KEY", &who.secret_key)
        .stdin(std::process::Stdio::null())
        .output();
    Ran::new(output.unwrap())
}

#[test]
fn what_a_policy_grants_is_reached_where_links_do_not() {
    let place = Place::new();
    let server = place.serve(&[]);
    let red = red(&server);
    server.ok(&["admin", "namespace", "create", "shared"]);
    let source = place.path("source");
    // One part, and several.
    for (name, len) in [("small", 100_000), ("large", 20_000_000)] {
        fs::create_dir_all(&source).unwrap();
        fs::write(source.join(name), bytes(len as u64, len)).unwrap();
    }
    let all = tree(&source);
    let [from, back, one] = ["source", "back", "one"].map(|name| place.path(name));
    let [from, back, one] = [&from, &back, &one].map(|path| path.to_str().unwrap());
    server.ok(&["cp", from, "fb://shared/roots"]);
    let run = |arguments: &[&str]| run(&red, &server.rpc(), arguments);
    run(&["cat", "fb://shared/roots/small"]).expect(3);

    let policy = br#"{"Statement":{"Effect":"Allow","Principal":{"AWS":"red"},"Action":"s3:*",
        "Resource":["arn:aws:s3:::shared","arn:aws:s3:::shared/*"]}}"#;
    let root = server.credentials();
    let put = s3::ask(&server, &root, "PUT", "/shared?policy", policy);
    assert_eq!(put.status, 204, "{}", put.text());
    let seen = run(&["cat", "fb://shared/roots/small", "--json"]).expect(0);
    assert_eq!(seen.bytes, bytes(100_000, 100_000));
    let told: Value = serde_json::from_str(&seen.err).unwrap();
    assert_eq!(told["path"], "http");
    let why = told["why"].as_str().unwrap();
    assert!(why.contains("links reach"), "{why}");
    for name in ["small", "large"] {
        run(&["cp", &format!("fb://shared/roots/{name}"), one]).expect(0);
        assert!(fs::read(one).unwrap() == fs::read(source.join(name)).unwrap());
    }
    let told = run(&["cp", "fb://shared/roots/", back]).expect(0).out;
    assert!(told.contains(", path http (links reach"), "{told}");
    assert!(tree(back.as_ref()) == all);
    run(&["cp", from, "fb://shared/reds"]).expect(0);
    server.ok(&["cp", "fb://shared/reds/", &format!("{back}-again")]);
    assert!(tree(format!("{back}-again").as_ref()) == all);
    // Forced, there is no other way.
    run(&["cp", "--path", "shm", "fb://shared/roots/small", one]).expect(3);
}

#[test]
fn who_may_only_store_sends_what_goes_in_parts() {
    let place = Place::new();
    let server = place.serve(&[]);
    let red = red(&server);
    server.ok(&["admin", "namespace", "create", "shared"]);
    let policy =
        br#"{"Statement":{"Effect":"Allow","Principal":{"AWS":"red"},"Action":"s3:PutObject",
        "Resource":"arn:aws:s3:::shared/*"}}"#;
    let root = server.credentials();
    let put = s3::ask(&server, &root, "PUT", "/shared?policy", policy);
    assert_eq!(put.status, 204, "{}", put.text());
    let (file, body) = (place.path("file"), bytes(20, 20_000_000));
    fs::write(&file, &body).unwrap();
    for endpoint in [server.rpc(), server.s3()] {
        let sent = ["cp", file.to_str().unwrap(), "fb://shared/reds"];
        run(&red, &endpoint, &sent).expect(0);
        let stored = server.run(&["cat", "fb://shared/reds"]).expect(0);
        assert!(stored.bytes == body);
        server.ok(&["rm", "fb://shared/reds"]);
    }
}

#[test]
fn who_asked_for_a_namespace_is_not_told_to_ask() {
    let place = Place::new();
    let server = place.serve(&[]);
    let red = red(&server);
    server.ok(&["admin", "namespace", "create", "taken"]);
    let file = place.path("file");
    fs::write(&file, b"value").unwrap();
    let file = file.to_str().unwrap();
    for (endpoint, path) in [
        (server.rpc(), "auto"),
        (server.rpc(), "shm"),
        (server.s3(), "auto"),
    ] {
        let copy = |more: &[&str]| {
            let copy = ["cp", "--path", path, file, "fb://taken/key"];
            run(&red, &endpoint, &[&copy[..], more].concat())
        };
        let unasked = copy(&[]).expect(3).err;
        assert!(unasked.contains("--make-namespace"), "{unasked}");
        let asked = copy(&["--make-namespace"]).expect(3).err;
        assert!(!asked.contains("--make-namespace"), "{asked}");
        assert!(asked.contains("perhaps by somebody else"), "{asked}");
    }
}

#[test]
fn a_copy_says_what_makes_the_namespace_that_it_lacks() {
    let place = Place::new();
    let server = place.serve(&[]);
    server.ok(&["admin", "namespace", "create", "data"]);
    server
        .run_on(&["cp", "-", "fb://data/a/k"], b"value")
        .expect(0);
    for (source, is_target) in [
        ("fb://data/a/k", true),
        ("fb://data/a/", true),
        ("fb://none/a/k", false),
        ("fb://none/a/", false),
    ] {
        let copy = ["cp", source, "fb://missing/k"];
        let ran = server.run(&copy).expect(3);
        let (name, hint) = match is_target {
            true => ("\"missing\"", true),
            false => ("\"none\"", false),
        };
        assert!(ran.err.contains(name), "{ran:?}");
        assert_eq!(ran.err.contains("--make-namespace"), hint, "{ran:?}");
    }
    server.ok(&["cp", "--make-namespace", "fb://data/a/", "fb://missing/k"]);
}

/// What may not be looked at is there: it is somebody else's.
#[test]
fn a_directory_of_somebody_else_is_not_taken_for_none() {
    const STRANGER: u32 = 65534;
    if !rustix::process::getuid().is_root() {
        return skip("only root can become somebody else");
    }
    let place = Place::new();
    let server = place.serve(&[]);
    symlink(place.data(), place.path("forebay-data")).unwrap();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let key = server.credentials();
    let stranger = |folder: &Path, arguments: &[&str], has_key: bool| {
        let mut command = harness::forebay();
        command.args(arguments).current_dir(folder);
        if has_key {
            command.env("FOREBAY_ACCESS_KEY", &key.access_key);
            command.env("FOREBAY_SECRET_KEY", &key.secret_key);
        }
        Ran::of_user(command, STRANGER)
    };
    for (arguments, has_key) in [
        (&["ls"][..], false),
        (&["admin", "tenant", "list"], false),
        (&["admin", "tenant", "list"], true),
    ] {
        let Some(ran) = stranger(&place.path(""), arguments, has_key) else {
            return;
        };
        let ran = ran.expect(4);
        let told = ran.err.contains("forebay-data/") && ran.err.contains("Permission denied");
        assert!(told && ran.err.lines().count() == 1, "{ran:?}");
    }
    // Whose server is elsewhere needs no directory here.
    let endpoint = server.rpc();
    let doctor = ["doctor", "--json", "--endpoint", &endpoint];
    if let Some(ran) = stranger(Path::new("/"), &doctor, true) {
        let ran = ran.expect(0);
        assert!(!ran.out.contains("data directory"), "{ran:?}");
    }
}

#[test]
fn the_server_of_a_profile_is_not_mistaken_for_the_one_here() {
    let (here, there) = (Place::new(), Place::new());
    let (server, prod) = (here.serve(&[]), there.serve(&[]));
    server.ok(&["admin", "namespace", "create", "data"]);
    prod.ok(&["admin", "namespace", "create", "data"]);
    // Where a server runs over the default directory.
    symlink(here.data(), here.path("forebay-data")).unwrap();
    let Credentials {
        access_key,
        secret_key,
    } = prod.credentials();
    let profile = format!(
        "[prod]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret_key}\nendpoint_url = {}\n",
        prod.s3()
    );
    fs::create_dir(here.path(".aws")).unwrap();
    fs::write(here.path(".aws/credentials"), profile).unwrap();
    let run = |arguments: &[&str]| {
        let output = harness::forebay()
            .args(arguments)
            .current_dir(here.path(""))
            .env("HOME", here.path(""))
            .output();
        Ran::new(output.unwrap())
    };
    let by_profile = |arguments: &[&str]| run(&[arguments, &["--profile", "prod"]].concat());
    let durability = |ran: Ran| -> Value {
        let row: Value = serde_json::from_str(&ran.expect(0).out).unwrap();
        assert_eq!(row["namespace"], "data");
        row["durability"].clone()
    };
    assert_eq!(durability(by_profile(&["ls", "--json"])), Value::Null);
    for command in [
        &["stat", "fb://data"][..],
        &["admin", "namespace", "rm", "data"],
    ] {
        let refused = by_profile(command).expect(1).err;
        assert!(refused.contains(&prod.s3()), "{refused}");
    }
    // By the directory's own credentials, and where the directory is named.
    assert_eq!(durability(run(&["ls", "--json"])), "sync");
    run(&["stat", "fb://data"]).expect(0);
    by_profile(&["stat", "fb://data", "--dir", "forebay-data"]).expect(0);
}

#[test]
fn the_token_of_a_session_goes_along() {
    let place = Place::new();
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", far.local_addr().unwrap());
    let file = place.path("credentials");
    let keys = "aws_access_key_id = A\naws_secret_access_key = B\naws_session_token = of-a-day";
    fs::write(
        &file,
        format!("[other]\n{keys}\nendpoint_url = {endpoint}\n"),
    )
    .unwrap();
    let by_profile = [("AWS_SHARED_CREDENTIALS_FILE", file.to_str().unwrap())];
    let by_variables = [
        ("AWS_ACCESS_KEY_ID", "A"),
        ("AWS_SECRET_ACCESS_KEY", "B"),
        ("AWS_SESSION_TOKEN", "of-a-day"),
        ("AWS_ENDPOINT_URL_S3", &endpoint),
    ];
    for (variables, flags) in [
        (&by_profile[..], &["--profile", "other"][..]),
        (&by_variables, &[]),
    ] {
        let mut command = harness::forebay();
        command.args(["ls", "fb://data"]).args(flags);
        let mut asking = command.envs(variables.iter().copied()).spawn().unwrap();
        let mut head = BufReader::new(far.accept().unwrap().0).lines();
        let token = "x-amz-security-token: of-a-day";
        assert!(head.any(|line| line.unwrap() == token), "{flags:?}");
        asking.kill().unwrap();
        asking.wait().unwrap();
    }
}
