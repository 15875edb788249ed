//! Who may call: API tokens, the door, and what does not open it, over real sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod support;

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use cosky_core::{Accounts, Store, UserName, account::ROOT};
use cosky_embedded::{Embedded, Options};
use cosky_server::Config;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use support::{
    Server, Setup,
    session::{PUBLISHED_KEY, claims, login, pair, refresh, sign},
};

/// Passwords that the servers of `c92_…` printed.
static ANNOUNCED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn base64(bytes: impl AsRef<[u8]>) -> String {
    use base64::Engine as _;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// The server's own key.
async fn key(server: &Server) -> Vec<u8> {
    server.engine.signing_key(&[0; 32]).await.unwrap()
}

#[tokio::test]
async fn without_authentication_every_request_acts_as_root() {
    let server = Server::start().await;
    let mut client = server.client().await;
    client.get("/v1/namespaces").await.expect(200);
    // Root's token would outlive the time without authentication.
    let new = json!({"name": "ci"});
    client.json("POST", "/v1/tokens", &new).await.refused(403, "forbidden", "with authentication");
    assert_eq!(server.engine.api_tokens().await.unwrap(), []);
    assert_eq!(client.get("/v1/tokens").await.expect(200).value(), json!([]));
    let accounts = server.engine.account(&UserName::new(ROOT).unwrap()).await.unwrap();
    assert!(accounts.is_none(), "a password that nobody was shown helps nobody");
}

#[tokio::test]
async fn api_tokens_are_made_listed_used_and_revoked() {
    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    assert_eq!(root.get("/v1/tokens").await.expect(200).value(), json!([]));
    let made = root.json("POST", "/v1/tokens", &json!({"name": "ci"})).await.expect(200).value();
    let (id, secret) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    assert!(secret.starts_with("cosky_") && secret.len() == 6 + 43, "256 bits: {secret}");
    let listed = root.get("/v1/tokens").await.expect(200);
    assert!(!listed.text().contains(secret), "the secret is shown once");
    let listed = listed.value();
    assert_eq!(listed[0]["id"], id);
    assert_eq!((&listed[0]["name"], &listed[0]["user"]), (&json!("ci"), &json!(ROOT)));
    assert_eq!(listed[0].get("expiresAt"), None);
    let stored = server.engine.api_tokens().await.unwrap();
    assert!(!format!("{stored:?}").contains(secret));

    let mut machine = server.client().await;
    machine.token = Some(secret.to_owned());
    machine.get("/v1/namespaces").await.expect(200);
    machine.token = Some(secret.to_uppercase());
    machine.get("/v1/namespaces").await.expect(401);
    machine.token = Some(secret.to_owned());
    assert_eq!(root.delete("/v1/tokens/unknown").await.expect(200).value(), false);
    assert_eq!(root.delete(&format!("/v1/tokens/{id}")).await.expect(200).value(), true);
    machine.get("/v1/namespaces").await.refused(401, "unauthorized", "Token Invalid");
    assert_eq!(root.delete(&format!("/v1/tokens/{id}")).await.expect(200).value(), false);
    assert_eq!(root.get("/v1/tokens").await.expect(200).value(), json!([]));
}

#[tokio::test]
async fn a_token_that_another_server_revoked_is_refused_within_five_seconds() {
    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    let made = root.json("POST", "/v1/tokens", &json!({"name": "ci"})).await.expect(200).value();
    let mut machine = server.client().await;
    machine.token = Some(made["token"].as_str().unwrap().to_owned());
    machine.get("/v1/namespaces").await.expect(200);
    assert!(server.engine.remove_api_token(made["id"].as_str().unwrap()).await.unwrap());
    let revoked = Instant::now();
    while machine.get("/v1/namespaces").await.status == 200 {
        assert!(revoked.elapsed() < Duration::from_secs(5));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn an_api_token_ends_when_it_says() {
    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    let new = json!({"name": "short", "expiresInSeconds": 1});
    let made = root.json("POST", "/v1/tokens", &new).await.expect(200).value();
    assert_eq!(made["expiresAt"].as_u64().unwrap() - made["createdAt"].as_u64().unwrap(), 1);
    let mut machine = server.client().await;
    machine.token = Some(made["token"].as_str().unwrap().to_owned());
    while machine.get("/v1/namespaces").await.status == 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(machine.get("/v1/namespaces").await.expect(401).value()["reason"], "Token Expired");
}

#[tokio::test]
async fn bad_api_tokens_are_refused_by_field_and_none_is_made() {
    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    for (body, code, field) in [
        (json!({}), "invalid_body", "name"),
        (json!({"name": 1}), "invalid_body", "name"),
        (json!({"name": "a", "user": "x"}), "invalid_body", "user"),
        (json!({"name": ""}), "invalid_argument", "name"),
        (json!({"name": " "}), "invalid_argument", "name"),
        (json!({"name": "a\nb"}), "invalid_argument", "name"),
        (json!({"name": "é".repeat(129)}), "invalid_argument", "name"),
        (json!({"name": "a", "expiresInSeconds": 0}), "invalid_argument", "expiresInSeconds"),
        (json!({"name": "a", "expiresInSeconds": -1}), "invalid_body", "expiresInSeconds"),
        (json!({"name": "a", "expiresInSeconds": u64::MAX}), "invalid_argument", "expiresInSeconds"),
    ] {
        root.json("POST", "/v1/tokens", &body).await.refused(400, code, field);
    }
    assert_eq!(root.get("/v1/tokens").await.expect(200).value(), json!([]));
    root.json("POST", "/v1/tokens", &json!({"name": "é".repeat(128)})).await.expect(200);
}

/// Nacos #10060, #2093, #5246: tokens that were not issued here.
#[tokio::test]
async fn c86_forged_tokens_are_refused() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    let good = pair(&mut client).await;
    let (token, good) = (good["accessToken"].as_str().unwrap(), claims(&good["accessToken"]));
    let key = key(&server).await;
    assert!(key.len() >= 32, "a random key is made when none is configured");
    assert_ne!(key, PUBLISHED_KEY);
    let now = good["iat"].as_u64().unwrap();
    let with = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        claims
    };
    let without_exp = {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove("exp");
        claims
    };
    let unsigned = |algorithm: &str| {
        format!("{}.{}.", base64(format!("{{\"alg\":\"{algorithm}\"}}")), base64(good.to_string()))
    };
    // HMAC of an empty key, made with the primitives: the library refuses to.
    let empty_key = {
        let text = format!("{}.{}", base64("{\"alg\":\"HS256\"}"), base64(good.to_string()));
        format!("{text}.{}", base64(hmac_sha256_of_empty_key(text.as_bytes())))
    };
    let path_in_kid = {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("../../../dev/null".into());
        jsonwebtoken::encode(&header, &good, &EncodingKey::from_secret(&[0]).unwrap()).unwrap()
    };
    let forged = [
        ("alg none", unsigned("none")),
        ("alg None", unsigned("None")),
        ("an empty key", empty_key),
        ("the published key", sign(Algorithm::HS256, &good, PUBLISHED_KEY)),
        ("HS512 by the same key", sign(Algorithm::HS512, &good, &key)),
        ("expired 1 s ago", sign(Algorithm::HS256, &with("exp", json!(now - 1)), &key)),
        ("without exp", sign(Algorithm::HS256, &without_exp, &key)),
        ("nbf in the future", sign(Algorithm::HS256, &with("nbf", json!(now + 600)), &key)),
        ("kid with a path", path_in_kid),
        ("a cut signature", token[..token.len() - 4].to_owned()),
        ("subject root by a key of one's own", sign(Algorithm::HS256, &with("sub", json!(ROOT)), &[7; 32])),
    ];
    for (what, token) in forged {
        client.token = Some(token);
        for path in ["/v1/users", "/v1/namespaces", "/v1/tokens"] {
            let answer = client.get(path).await;
            assert_eq!(answer.status, 401, "{what}: {path}: {}", answer.text());
        }
    }
    // The forgeries above differ from a good token in one thing only.
    client.token = Some(sign(Algorithm::HS256, &good, &key));
    client.get("/v1/namespaces").await.expect(200);
}

fn hmac_sha256_of_empty_key(text: &[u8]) -> [u8; 32] {
    use sha2::{Digest, Sha256};
    let inner = Sha256::new().chain_update([0x36; 64]).chain_update(text).finalize();
    Sha256::new().chain_update([0x5c; 64]).chain_update(inner).finalize().into()
}

/// Nacos #11957, #11039: the first start, and passwords that everybody knows.
#[tokio::test]
async fn c92_the_first_start_makes_one_random_root_password() {
    let config = || Config {
        announce: |password| ANNOUNCED.lock().unwrap().push(password.to_owned()),
        ..Config::default()
    };
    let dir = tempfile::tempdir().unwrap();
    let engine = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
    let store: Arc<dyn Store> = engine.clone();

    // Two servers start at once on one store.
    let (one, other) = tokio::join!(Setup::on(engine.clone(), config()), Setup::on(engine.clone(), config()));
    let announced = ANNOUNCED.lock().unwrap().clone();
    let [password] = announced.as_slice() else { panic!("printed once: {announced:?}") };
    assert!(password.len() >= 16, "{password}");
    let mut sessions = Vec::new();
    for server in [&one, &other] {
        let mut client = server.client().await;
        let pair = login(&mut client, ROOT, password).await.expect(200).value();
        client.token = Some(pair["accessToken"].as_str().unwrap().to_owned());
        sessions.push((client, pair));
        let mut client = server.client().await;
        for name in [ROOT, "nacos", "admin"] {
            login(&mut client, name, name).await.refused(400, "login_failed", "wrong user or password");
        }
        login(&mut client, ROOT, password).await.expect(200);
    }
    // A session of one server counts on the other.
    let (first, second) = (sessions[0].0.token.clone(), sessions[1].0.token.clone());
    (sessions[0].0.token, sessions[1].0.token) = (second, first);
    for (client, _) in &mut sessions {
        client.get("/v1/namespaces").await.expect(200);
    }

    // A restart prints nothing and changes nothing.
    let again = Setup::on(engine.clone(), config()).await;
    assert_eq!(ANNOUNCED.lock().unwrap().len(), 1);
    login(&mut again.client().await, ROOT, password).await.expect(200);

    // Nothing stored is the password.
    let account = engine.account(&UserName::new(ROOT).unwrap()).await.unwrap().unwrap();
    assert!(account.password_hash.starts_with("$argon2id$"), "{}", account.password_hash);
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let bytes = std::fs::read(file.unwrap().path()).unwrap();
        let found = bytes.windows(password.len()).any(|window| window == password.as_bytes());
        assert!(!found, "the store holds the password in plain text");
    }

    // A reset replaces it and ends the sessions.
    let new = cosky_server::reset_root(&store).await.unwrap();
    assert!(new.len() >= 16 && new != *password);
    login(&mut one.client().await, ROOT, password).await.expect(400);
    login(&mut one.client().await, ROOT, &new).await.expect(200);
    for (mut client, pair) in sessions {
        refresh(&mut client, ROOT, &pair).await.refused(400, "refresh_failed", "log in again");
        let reset = Instant::now();
        while client.get("/v1/namespaces").await.status == 200 {
            assert!(reset.elapsed() < Duration::from_secs(5));
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn a_root_password_that_is_too_short_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
    let error = cosky_server::ensure_root(&store, Some("seven77")).await.unwrap_err();
    assert!(error.to_string().contains("at least 8 characters"), "{error}");
    assert!(store.account(&UserName::new(ROOT).unwrap()).await.unwrap().is_none());
    assert_eq!(cosky_server::ensure_root(&store, Some("eight888")).await.unwrap(), None);
    assert_eq!(cosky_server::ensure_root(&store, None).await.unwrap(), None, "there is one");
}

#[tokio::test]
async fn tokens_that_are_over_before_they_are_used_are_refused_at_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn Store> = Arc::new(Embedded::open(Options::new(dir.path())).await.unwrap());
    let short = Duration::from_millis(999);
    let access = Config { access_token_ttl: short, ..Config::default() };
    let refresh = Config { refresh_token_ttl: short, ..Config::default() };
    for config in [access, refresh] {
        let error = cosky_server::app(config, Arc::clone(&store)).await.err().unwrap();
        assert!(error.to_string().contains("at least one second"), "{error}");
    }
    assert!(store.account(&UserName::new(ROOT).unwrap()).await.unwrap().is_none(), "nothing was made");
}

/// Nacos #3237, CVE-2021-29441: headers that promise that a request comes from inside.
#[tokio::test]
async fn c93_internal_looking_headers_open_nothing() {
    let server = Setup::new().auth().start().await;
    let mut root = server.root().await;
    let token = root.token.clone().unwrap();
    let cookie = format!("authorization={token}");
    let mut client = server.client().await;
    let headers = [
        ("User-Agent", "Nacos-Server"),
        ("serverIdentity", "security"),
        ("X-Forwarded-For", "127.0.0.1"),
        ("X-Original-URL", "/v1/authenticate/cosky/login"),
        ("X-HTTP-Method-Override", "GET"),
        ("Authorization", "Basic Y29za3k6Y29za3k="),
        ("Cookie", &cookie),
    ];
    for header in headers {
        for (method, path) in [("GET", "/v1/users/x"), ("POST", "/v1/users/x"), ("POST", "/v1/tokens")] {
            let all = [header, ("Content-Type", "application/json")];
            let answer = client.send(method, path, &all, b"{\"name\":\"x\"}").await;
            assert_eq!(answer.status, 401, "{header:?} {method} {path}: {}", answer.text());
        }
    }
    for name in ["authorization", "access_token", "accessToken", "token"] {
        for (method, path) in [("GET", "/v1/namespaces"), ("POST", "/v1/users/x"), ("GET", "/v1/users/x")] {
            let answer = client.send(method, &format!("{path}?{name}={token}"), &[], b"").await;
            assert_eq!(answer.status, 401, "{name} in the query: {}", answer.text());
        }
    }
    assert_eq!(root.get("/v1/tokens").await.expect(200).value(), json!([]), "nothing was made");
    assert!(server.engine.account(&UserName::new("x").unwrap()).await.unwrap().is_none());
}

/// Nacos #4701: router and door must see one and the same path.
#[tokio::test]
async fn c94_path_spellings_open_nothing() {
    let server = Setup::new().auth().start().await;
    server.root().await.json("POST", "/v1/tokens", &json!({"name": "secret-name"})).await.expect(200);
    let mut paths = Vec::new();
    for end in ["users", "tokens", "namespaces"] {
        let spellings = [
            "/v1/X/",
            "//v1/X",
            "/v1//X",
            "/v1/X;x=1",
            "/v1/./X",
            "/V1/X",
            "/dashboard/../v1/X",
            "/assets/..%2fv1/X",
            "/actuator/health/../../v1/X",
            "/actuator/health/..%2f..%2fv1/X",
            "/v1/authenticate/x/login/../../../X",
            "/swagger-ui/../v1/X",
            "/swagger-ui/..%2fv1%2fX",
            "/v3/api-docs/../../v1/X",
            "/livez/../v1/X",
            "/v1/X%00",
            "/v1/X%20",
            "/v1/X#fragment",
            "/v1/X?a=/livez",
            "http://127.0.0.1/v1/X",
            "http://cosky@127.0.0.1//v1/X",
            "*",
        ];
        paths.extend(spellings.map(|path| path.replace('X', end)));
        let escaped = format!("%{:02x}{}", end.as_bytes()[0], &end[1..]);
        paths.push(format!("/v1/{escaped}"));
    }
    for path in paths {
        for method in ["GET", "HEAD", "POST"] {
            let mut client = server.client().await;
            let answer = client.send(method, &path, &[], b"").await;
            assert!([400, 401, 404, 405].contains(&answer.status), "{method} {path}: {}", answer.status);
            let text = answer.text();
            assert!(!text.contains(ROOT) && !text.contains("secret-name"), "{method} {path}: {text}");
        }
    }
}

/// Whatever is not open is closed: asked of the server's own list of routes, and of what is not in it.
#[tokio::test]
async fn every_route_but_health_login_and_docs_is_closed() {
    let server = Setup::new().auth().start().await;
    let mut client = server.client().await;
    let document = client.get("/v3/api-docs").await.expect(200).value();
    let mut closed = 0;
    let mut open = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        let concrete = path.replace(['{', '}'], "");
        for (method, operation) in item.as_object().unwrap() {
            let answer = client.send(&method.to_uppercase(), &concrete, &[], b"").await;
            if operation.get("security").is_some() {
                open.insert(path.as_str());
                assert_ne!(answer.status, 401, "{method} {path}");
            } else {
                assert_eq!(answer.status, 401, "{method} {path}");
                closed += 1;
            }
        }
    }
    let expected = [
        "/actuator/health",
        "/actuator/health/liveness",
        "/actuator/health/readiness",
        "/health",
        "/livez",
        "/readyz",
        "/v1/authenticate/{username}/login",
        "/v1/authenticate/{username}/refresh",
        "/v1/health",
        "/v4/default/registry/health/readiness",
    ];
    assert_eq!(open, BTreeSet::from(expected));
    assert!(closed > 20, "{document}");

    // What does not exist, and methods that a closed route does not take.
    let mut root = server.root().await;
    for (method, path, status) in [
        ("GET", "/nothing", 404),
        ("GET", "/v1/nothing", 404),
        ("POST", "/v1/namespaces", 405),
        ("BREW", "/v1/namespaces", 405),
        ("PUT", "/metrics", 405),
    ] {
        client.send(method, path, &[], b"").await.refused(401, "unauthorized", "credential");
        let answer = root.send(method, path, &[], b"").await.expect(status);
        let code = if status == 404 { "not_found" } else { "method_not_allowed" };
        assert_eq!(answer.value()["code"], code);
        assert_eq!(answer.header("allow").is_some(), status == 405, "{method} {path}");
    }
    client.send("DELETE", "/livez", &[], b"").await.refused(405, "method_not_allowed", "Allow");
}
