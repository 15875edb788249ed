//! The command line: what it takes, what it prints, and how it ends.

use std::process::Stdio;

use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use crate::user::{COSKY, PATIENCE, Said, User, finish, server};

/// An address that refuses connections: port 1 of the loopback interface belongs to nobody here.
const NOBODY: &str = "http://127.0.0.1:1";

#[tokio::test(flavor = "multi_thread")]
async fn help_is_as_recorded() {
    let user = User::of(NOBODY);
    for verb in [
        "",
        "serve",
        "reset-root",
        "agent",
        "login",
        "token",
        "ns",
        "service",
        "instance",
        "instance set",
        "instance metadata",
        "watch",
        "completions",
    ] {
        let args: Vec<&str> = verb.split_whitespace().chain(["--help"]).collect();
        let name = format!("help {verb}").trim_end().replace(' ', "-");
        insta::assert_snapshot!(name, user.ok(args).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_usage_ends_with_2_and_says_why() {
    let user = User::of(NOBODY);
    let bad: &[(&[&str], &str)] = &[
        (&[], "Usage"),
        (&["nonsense"], "nonsense"),
        (&["config", "list"], "config"),
        (&["serve", "--store", "redis://:hunter2@127.0.0.1"], "no store redis"),
        (&["serve", "--no-auth", "--listen", "0.0.0.0:0"], "--no-auth"),
        (&["serve", "--listen", "127.0.0.1"], "--listen"),
        (&["serve", "--instance-ttl", "2s"], "from 3s to 24h"),
        (&["serve", "--config", "/nonexistent.toml"], "/nonexistent.toml"),
        (&["serve", "--log", "a=b=c"], "--log"),
        (&["service", "rm", "-rf"], "-r"),
        (&["service", "get", "a*"], "must not contain"),
        (&["service", "list", "-n", "a:b"], "namespace"),
        (&["instance", "get", "app"], "service@schema#host#port"),
        (&["instance", "set", "app", "--host", "a b", "--port", "80"], "host"),
        (&["instance", "set", "app", "--host", "h", "--port", "0"], "1..=65535"),
        (&["instance", "set", "app", "--host", "h", "--port", "80", "--weight", "-1"], "weight"),
        (&["ns", "list", "--addr", "http://me:hunter2@h"], "password"),
        (&["ns", "list", "--addr", "127.0.0.1:8080"], "http://127.0.0.1:8080"),
        (&["ns", "list", "--addr", "http://h,http://h/prefix/"], "without the path \"/prefix\""),
        (&["ns", "list", "--token-file", "/nonexistent"], "--token-file: /nonexistent cannot be read"),
        (&["login", "--password-file", "/"], "directory"),
        (&["ns", "list", "-o", "yaml"], "yaml"),
        (&["agent", "--service", "a", "--port", "0"], "COMMAND"),
        (&["agent", "--service", "a", "--port", "0", "--host", "a b", "--", "true"], "host"),
        (&["reset-root", "--data-dir", "/nonexistent"], "/nonexistent"),
        (&["reset-root", "--data-dir", user.home().to_str().unwrap()], "no store"),
    ];
    for (args, word) in bad {
        let said = user.run(*args).await;
        assert_eq!(said.code, Some(2), "{args:?}: {said:?}");
        assert!(said.err.contains(word), "{args:?}: {said:?}");
        assert!(!said.err.contains("hunter2") && said.out.is_empty(), "{args:?}: {said:?}");
    }
}

/// A pipe without a writer would hold a call up for ever, and a device would never end.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_without_a_secret_ends_with_2_and_is_named() {
    let user = User::of(NOBODY);
    let at = |name: &str| user.home().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("empty"), " \n").unwrap();
    std::fs::write(at("binary"), b"\xff\xfe").unwrap();
    let made = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
    assert!(made.success());
    let files = [at("missing"), at("empty"), at("binary"), at("pipe"), at(""), "/dev/zero".to_owned()];
    for file in &files {
        for setting in ["--token-file", "COSKY_TOKEN_FILE", "COSKY_PASSWORD_FILE"] {
            for verb in [&["ns", "list"][..], &["agent", "--service", "a", "--port", "0", "--", "true"]] {
                let mut command = user.command(&verb[..1]);
                if setting == "--token-file" {
                    command.args(["--token-file", file]);
                } else {
                    command.env(setting, file);
                }
                if setting == "COSKY_PASSWORD_FILE" {
                    command.env("COSKY_USER", "cosky");
                }
                let said = finish(command.args(&verb[1..]), "").await;
                assert_eq!(said.code, Some(2), "{setting} {file}: {said:?}");
                assert!(said.err.contains(&format!("{setting}: {file} ")), "{said:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn half_a_credential_or_two_end_with_2() {
    let user = User::of(NOBODY);
    let file = user.home().join("secret");
    std::fs::write(&file, "hunter2").unwrap();
    let file = file.to_str().unwrap();
    for (variables, word) in [
        (&[("COSKY_USER", "cosky")][..], "COSKY_USER needs COSKY_PASSWORD_FILE"),
        (&[("COSKY_PASSWORD_FILE", file)], "COSKY_PASSWORD_FILE needs COSKY_USER"),
        (&[("COSKY_TOKEN", "hunter2"), ("COSKY_TOKEN_FILE", file)], "one credential only"),
        (&[("COSKY_TOKEN", "hunter2"), ("COSKY_USER", "cosky")], "one credential only"),
        (
            &[("COSKY_TOKEN_FILE", file), ("COSKY_USER", "cosky"), ("COSKY_PASSWORD_FILE", file)],
            "one credential only",
        ),
    ] {
        let mut command = user.command(["ns", "list"]);
        let said = finish(command.envs(variables.iter().copied()), "").await;
        assert_eq!(said.code, Some(2), "{variables:?}: {said:?}");
        assert!(said.err.contains(word) && !said.err.contains("hunter2"), "{variables:?}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cause_is_told_once_and_a_limit_is_a_round_number() {
    let refused = User::of(NOBODY).run(["ns", "list"]).await;
    assert_eq!(refused.code, Some(5), "{refused:?}");
    for part in ["refused", "tcp connect error"] {
        assert_eq!(refused.err.matches(part).count(), 1, "{part}: {refused:?}");
    }
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = format!("http://{}", silent.local_addr().unwrap());
    let late = User::of(&addr).run(["ns", "list"]).await;
    assert_eq!(late.code, Some(5), "{late:?}");
    assert!(late.err.contains(&format!("{addr} did not answer within 5 s\n")), "{late:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_show_what_would_hide_or_turn_text() {
    let server = server().start().await;
    let root = User::root(&server).await;
    let odd = "a\u{202e}b\u{2028}c\u{200b}";
    root.ok(["token", "create", odd]).await;
    let metadata = format!("k={odd}");
    root.ok(["instance", "set", "order", "--host", "h", "--port", "1", "--metadata", &metadata]).await;
    for verb in [&["token", "list"][..], &["instance", "list", "order"]] {
        let table = root.ok(verb).await;
        assert!(table.contains("a\\u{202e}b\\u{2028}c\\u{200b}"), "{table}");
        assert!(!table.contains(['\u{202e}', '\u{2028}', '\u{200b}']), "{table}");
    }
    assert_eq!(root.json("token", &["list"]).await[0]["name"], odd, "programs get it as it is");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_config_goes_flag_environment_file_default() {
    let user = User::of(NOBODY);
    let file = user.home().join("cosky.toml");
    std::fs::write(&file, "listen = '127.0.0.1:1'\ndata-dir = 'from-file'\ninstance-ttl = '50s'\nroot-password = 'hunter2-hunter2'\n")
        .unwrap();
    let file = file.to_str().unwrap();
    let mut command = user.command(["serve", "--print-config", "--config", file, "--listen", "127.0.0.1:3"]);
    command.env("COSKY_LISTEN", "127.0.0.1:2").env("COSKY_DATA_DIR", "from-environment");
    let said = finish(&mut command, "").await;
    assert_eq!(said.code, Some(0), "{said:?}");
    for line in [
        "listen = \"127.0.0.1:3\"",
        "data-dir = \"from-environment\"",
        "instance-ttl = \"50s\"",
        "access-token-ttl = \"15m\"",
        "# root-password = (set, not shown)",
    ] {
        assert!(said.out.lines().any(|said| said == line), "{line} in {}", said.out);
    }
    assert!(!said.out.contains("hunter2"), "{}", said.out);
    assert!(!user.home().join("from-environment").exists(), "printing must not make anything");

    let mut short = user.command(["serve", "--print-config"]);
    let said = finish(short.env("COSKY_ROOT_PASSWORD", "hunter2"), "").await;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("at least 8 characters") && !said.err.contains("hunter2"), "{said:?}");

    std::fs::write(file, "root-password = 'hunter2-hunter2\nlisten = 3").unwrap();
    let said = user.run(["serve", "--print-config", "--config", file]).await;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("line 1") && !said.err.contains("hunter2"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_and_version_need_no_server() {
    let user = User::of(NOBODY);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(user.ok(["completions", shell]).await.contains("reset-root"), "{shell}");
    }
    let version = concat!("cosky ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(user.ok(["version"]).await, version);
    assert_eq!(user.ok(["--version"]).await, version);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_does_what_it_says() {
    let server = server().start().await;
    let user = User::root(&server).await;

    assert_eq!(user.json("service", &["list"]).await, json!([]));
    assert_eq!(user.json("instance", &["list", "nobody"]).await, json!([]));
    assert_eq!(user.ok(["instance", "list", "nobody"]).await.lines().count(), 1, "headings alone");

    assert_eq!(user.json("ns", &["set", "shop-{eu}"]).await, json!(true));
    assert_eq!(user.json("ns", &["set", "shop-{eu}"]).await, json!(false));
    assert!(user.json("ns", &["list"]).await.as_array().unwrap().contains(&json!("shop-{eu}")));
    assert_eq!(user.json("ns", &["get", "shop-{eu}"]).await["instances"], 0);

    user.ok(["service", "set", "order", "-n", "shop-{eu}"]).await;
    assert_eq!(user.json("service", &["list", "-n", "shop-{eu}"]).await, json!(["order"]));
    let id = "order@http#10.0.0.5#8080";
    let set = ["set", "order", "-n", "shop-{eu}", "--host", "10.0.0.5", "--port", "8080", "--weight", "3"];
    let more = ["--metadata", "zone=eu=1", "--ttl", "60s"];
    let registered = user.json("instance", &[&set[..], &more].concat()).await;
    assert_eq!(registered["instanceId"], id);
    assert!((55_000..=60_000).contains(&registered["remainingMs"].as_u64().unwrap()), "{registered}");
    let got = user.json("instance", &["get", id, "-n", "shop-{eu}"]).await;
    assert_eq!((&got["weight"], &got["metadata"]["zone"]), (&json!(3), &json!("eu=1")));
    assert_eq!(
        user.json("instance", &["list", "order", "-n", "shop-{eu}"]).await.as_array().unwrap().len(),
        1
    );
    let table = user.ok(["instance", "list", "order", "-n", "shop-{eu}"]).await;
    assert!(table.contains(id) && table.contains("10.0.0.5:8080") && table.contains("zone=eu=1"), "{table}");
    assert_eq!(
        user.json("service", &["stats", "-n", "shop-{eu}"]).await,
        json!([{"serviceId": "order", "instanceCount": 1}])
    );
    assert_eq!(user.json("service", &["get", "order", "-n", "shop-{eu}"]).await["instanceCount"], 1);
    assert_eq!(user.json("instance", &["beat", id, "-n", "shop-{eu}"]).await["renewed"], true);
    assert_eq!(
        user.json("instance", &["metadata", id, "a=1", "b=2", "--unset", "zone", "-n", "shop-{eu}"]).await,
        json!({"a": "1", "b": "2"})
    );
    assert_eq!(
        user.json("instance", &["metadata", id, "c=3", "--replace", "-n", "shop-{eu}"]).await,
        json!({"c": "3"})
    );
    assert_eq!(user.json("instance", &["metadata", id, "-n", "shop-{eu}"]).await, json!({"c": "3"}));

    for refused in [&["service", "rm", "order", "-n", "shop-{eu}"][..], &["ns", "rm", "shop-{eu}", "--purge"]]
    {
        let said = user.run(refused).await;
        assert_eq!(said.code, Some(4), "a live instance stands against it: {said:?}");
    }
    user.ok(["instance", "rm", id, "-n", "shop-{eu}"]).await;
    assert_eq!(
        user.run(["instance", "beat", id, "-n", "shop-{eu}"]).await.code,
        Some(4),
        "it was deregistered"
    );
    user.ok(["service", "rm", "order", "-n", "shop-{eu}"]).await;
    user.ok(["ns", "rm", "shop-{eu}", "--purge"]).await;
    for missing in [
        &["ns", "rm", "shop-{eu}"][..],
        &["ns", "get", "shop-{eu}"],
        &["service", "rm", "order"],
        &["service", "get", "order"],
        &["instance", "get", id],
        &["instance", "rm", id],
        &["instance", "beat", id],
        &["instance", "metadata", id],
        &["instance", "metadata", id, "a=b"],
        &["token", "rm", "no-such-token"],
    ] {
        let said = user.run(missing).await;
        assert_eq!(said.code, Some(3), "{missing:?}: {said:?}");
        assert!(said.out.is_empty() && said.err.contains("does not exist"), "{missing:?}: {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_works_until_it_is_revoked() {
    let server = server().start().await;
    let root = User::root(&server).await;
    let made = root.json("token", &["create", "ci", "--expires", "1d"]).await;
    let (id, secret) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let plain = root.run(["token", "create", "plain"]).await;
    assert_eq!(plain.out.lines().count(), 1, "the secret alone, for a script: {plain:?}");
    let list = root.json("token", &["list"]).await;
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert!(!list.to_string().contains(secret) && !list.to_string().contains(plain.out.trim()));

    let machine = User::of(server.url());
    let ask = || async {
        let mut command = machine.command(["ns", "list"]);
        finish(command.env("COSKY_TOKEN", secret), "").await
    };
    assert_eq!(ask().await.code, Some(0));
    root.ok(["token", "rm", id]).await;
    let said = ask().await;
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("cosky login") && !said.err.contains(secret), "{said:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_is_kept_for_later_calls_and_refreshed() {
    use std::os::unix::fs::PermissionsExt as _;

    let server = server().args(["--access-token-ttl", "2s"]).start().await;
    let user = User::of(server.url());
    assert_eq!(user.run(["ns", "list"]).await.code, Some(1), "nobody is logged in");

    let wrong = finish(&mut user.command(["login"]), "not the password\n").await;
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    let said = finish(&mut user.command(["login"]), &format!("{}\n", server.password())).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("logged in as cosky"), "{said:?}");
    let file = user.home().join(".config/cosky/credentials.json");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(!std::fs::read_to_string(&file).unwrap().contains(server.password()));

    let as_user = async |name: &str| {
        let mut command = user.command(["ns", "list"]);
        finish(command.env("COSKY_USER", name), "").await
    };
    let (own, other) = (as_user("cosky").await, as_user("somebody").await);
    assert_eq!((own.code, own.err.as_str()), (Some(0), ""));
    assert_eq!(other.code, Some(2), "nobody acts as somebody else unawares: {other:?}");
    for mode in [0o640, 0o604, 0o620] {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        let said = user.run(["ns", "list"]).await;
        assert_eq!((said.code, said.err.lines().count()), (Some(0), 1), "{said:?}");
        assert!(said.err.contains("chmod 600") && said.err.contains(file.to_str().unwrap()), "{said:?}");
    }
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();

    let before = std::fs::read_to_string(&file).unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    // Two calls at once whose login is refused: one buys, the other one finds what was bought.
    while std::fs::read_to_string(&file).unwrap() == before {
        assert!(tokio::time::Instant::now() < deadline, "the login was never refreshed");
        let (one, two) = tokio::join!(user.run(["ns", "list"]), user.run(["ns", "list"]));
        assert_eq!((one.code, two.code), (Some(0), Some(0)), "{one:?} {two:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c111_awkward_ids_stay_as_they_are() {
    let server = server().start().await;
    let user = User::root(&server).await;
    let ids = [
        "-rf",
        "--help",
        "app a",
        "team/app-a",
        "$(id)",
        "é",
        "http://x/y?z=1#f".split('?').next().unwrap(),
        "%2F",
    ];
    for id in ids {
        assert_eq!(user.json("service", &["set", "--", id]).await, json!(true), "{id}");
        assert_eq!(user.json("service", &["get", "--", id]).await["serviceId"], id);
        let set = ["set", "--host", "10.0.0.5", "--port", "80", "--", id];
        let instance = format!("{id}@http#10.0.0.5#80");
        assert_eq!(user.json("instance", &set).await["instanceId"], json!(instance), "{id}");
        assert_eq!(user.json("instance", &["list", "--", id]).await[0]["serviceId"], id);
        assert_eq!(user.json("instance", &["get", "--", &instance]).await["instanceId"], json!(instance));
        assert_eq!(user.json("instance", &["metadata", "--", &instance, "k=é $(id)"]).await["k"], "é $(id)");
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    assert_eq!(user.json("service", &["list"]).await, json!(sorted));
    for id in ids {
        let instance = format!("{id}@http#10.0.0.5#80");
        assert_eq!(user.json("instance", &["rm", "--", &instance]).await, json!(true));
        assert_eq!(user.run(["instance", "rm", "--", &instance]).await.code, Some(3));
        assert_eq!(user.json("service", &["rm", "--", id]).await, json!(true), "{id}");
        assert_eq!(user.run(["service", "get", "--", id]).await.code, Some(3));
    }
    for namespace in ["-rf", "--help", "ns a", "team/ns-a", "$(id)", "é"] {
        assert_eq!(user.json("ns", &["set", "--", namespace]).await, json!(true));
        assert_eq!(user.json("ns", &["rm", "--", namespace]).await, json!(true));
        assert_eq!(user.run(["ns", "rm", "--", namespace]).await.code, Some(3));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c111_each_failure_has_its_code_and_none_shows_the_token() {
    let server = server().start().await;
    let secret = "s3cr3t-t0k3n";
    let ask = |addr: &str, args: &[&str]| {
        let user = User::of(addr);
        let mut command = user.command(args);
        command.env("COSKY_TOKEN", secret).env("COSKY_LOG", "trace");
        async move {
            let said = finish(&mut command, "").await;
            drop(user);
            assert!(!said.err.contains(secret) && !said.out.contains(secret), "{said:?}");
            said
        }
    };
    let wrong = ask(server.url(), &["service", "list"]).await;
    assert_eq!(wrong.code, Some(1), "{wrong:?}");
    let down = ask(NOBODY, &["service", "list"]).await;
    assert_eq!(down.code, Some(5), "{down:?}");
    let down = ask(NOBODY, &["token", "list"]).await;
    assert_eq!(down.code, Some(5), "{down:?}");
    let down = ask(NOBODY, &["watch"]).await;
    assert_eq!(down.code, Some(5), "{down:?}");
    let root = User::root(&server).await;
    assert_eq!(root.run(["service", "get", "nobody"]).await.code, Some(3));
    assert_eq!(root.run(["service", "list"]).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn c111_no_secret_is_in_the_arguments_or_shown_in_the_log() {
    let server = server().start().await;
    let root = User::root(&server).await;
    let token = server.token().await;
    let mut watch = root
        .command(["watch"])
        .env_remove("COSKY_TOKEN_FILE")
        .env("COSKY_TOKEN", &token)
        .env("COSKY_LOG", "trace")
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let snapshot = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
    assert!(snapshot.starts_with("{\"event\":\"snapshot\""), "{snapshot}");
    for pid in [watch.id().unwrap(), server.pid()] {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap();
        let arguments = String::from_utf8(arguments).unwrap();
        assert!(arguments.contains("cosky"), "{arguments}");
        assert!(!arguments.contains(&token) && !arguments.contains(server.password()), "{arguments}");
    }
    watch.kill().await.unwrap();
    let mut log = String::new();
    watch.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
    assert!(!log.is_empty(), "with this filter something is logged");
    for log in [log, server.log()] {
        assert!(!log.contains(&token) && !log.contains(server.password()), "{log}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c111_a_closed_pipe_ends_the_program_without_a_word() {
    let server = server().start().await;
    let root = User::root(&server).await;
    for verb in [&["completions", "bash"][..], &["ns", "list"], &["ns", "list", "-o", "json"], &["--help"]] {
        let said = unread(&root, verb).await;
        assert_eq!(said.code, Some(141), "{verb:?}: {said:?}");
        assert_eq!(said.err, "", "{verb:?}");
    }

    // A full disk is another matter: that is said.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let child = root.command(["ns", "list"]).stdout(full).spawn().unwrap();
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("standard output"));

    // A watch has nothing to print for hours, and ends all the same when its reader goes.
    let mut watch = root.command(["watch"]).spawn().unwrap();
    let mut reader = BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    tokio::time::timeout(PATIENCE, reader.read_line(&mut line)).await.unwrap().unwrap();
    drop(reader);
    let status = tokio::time::timeout(PATIENCE, watch.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(141));
}

/// Runs a call whose output has no reader from the start.
async fn unread(user: &User, args: &[&str]) -> Said {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = user.command(args);
    command.stdout(Stdio::from(writer));
    let child = command.spawn().unwrap();
    drop(command);
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
    Said { code: output.status.code(), out: String::new(), err: String::from_utf8(output.stderr).unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_prints_a_line_for_each_change() {
    let server = server().start().await;
    let root = User::root(&server).await;
    let mut watch = root.command(["watch", "--service", "order"]).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str::<serde_json::Value>(&line).unwrap()
    };
    assert_eq!(next().await["data"]["services"], json!({"order": []}));
    root.ok(["instance", "set", "stock", "--host", "h", "--port", "1"]).await;
    root.ok(["instance", "set", "order", "--host", "h", "--port", "1"]).await;
    root.ok(["instance", "rm", "order@http#h#1"]).await;
    assert_eq!(next().await["data"], json!({"op": "set", "serviceId": "order"}));
    let registered = next().await;
    assert_eq!((&registered["event"], &registered["data"]["op"]), (&json!("instance"), &json!("register")));
    let gone = next().await;
    assert_eq!((&gone["data"]["op"], &gone["data"]["instance"]), (&json!("deregister"), &json!(null)));
    watch.kill().await.unwrap();
}

/// Runs `cosky login` at a terminal of its own and types `keys` at the prompt. Prints what the terminal showed, the exit
/// code, and whether the terminal echoes afterwards.
const AT_A_TERMINAL: &str = r#"
import fcntl, json, os, pty, subprocess, sys, termios
terminal, inner = pty.openpty()
def own_terminal():
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
login = subprocess.Popen([sys.argv[1], "login"], stdin=inner, stdout=inner, stderr=inner, preexec_fn=own_terminal)
shown = b""
while not shown.endswith(b"Password of cosky: "):
    shown += os.read(terminal, 1024)
os.write(terminal, sys.argv[2].encode())
code = login.wait()
echo = bool(termios.tcgetattr(inner)[3] & termios.ECHO)
os.set_blocking(terminal, False)
try:
    while more := os.read(terminal, 1024):
        shown += more
except BlockingIOError:
    pass
print(json.dumps({"shown": shown.decode(), "code": code, "echo": echo}))
"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_password_that_is_typed_is_not_shown() {
    let server = server().start().await;
    let user = User::of(server.url());
    let typed = async |keys: &str| {
        let mut command = user.program("python3", ["-c", AT_A_TERMINAL, COSKY, keys]);
        let said = finish(&mut command, "").await;
        serde_json::from_str::<serde_json::Value>(&said.out)
            .unwrap_or_else(|error| panic!("{error}: {said:?}"))
    };
    let said = typed(&format!("{}\n", server.password())).await;
    assert_eq!((&said["code"], &said["echo"]), (&json!(0), &json!(true)), "{said}");
    assert!(said["shown"].as_str().unwrap().contains("logged in as cosky"), "{said}");
    assert!(!said["shown"].as_str().unwrap().contains(server.password()), "{said}");

    let interrupted = typed("half a pass\u{3}").await;
    assert_eq!((&interrupted["code"], &interrupted["echo"]), (&json!(1), &json!(true)), "{interrupted}");
}
