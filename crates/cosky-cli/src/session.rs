//! The login that `cosky login` leaves for later calls, and how it is kept alive.
//!
//! `credentials.json` holds the pair of tokens for each server address. Beside it the access token alone stands in a
//! file, where the SDK looks again when it changes. A refresh token buys one pair, so whoever refreshes holds a lock:
//! of two cosky processes the second one finds what the first one bought.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use cosky_core::{
    Error, UserName,
    wire::{self, TokenPair},
};
use serde::{Deserialize, Serialize};

use crate::http::Http;

/// A login is refreshed this long before its end, or after two thirds of its life when that is short.
const MARGIN: u64 = 60;
/// The pause after a refresh that failed.
const RETRY: Duration = Duration::from_secs(5);

/// Where logins are kept.
#[derive(Debug, Clone)]
pub(crate) struct Keyring {
    dir: PathBuf,
}

/// All logins, by server address as it was given.
#[derive(Default, Serialize, Deserialize)]
struct Credentials {
    servers: BTreeMap<String, Login>,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Login {
    user: UserName,
    #[serde(flatten)]
    pair: TokenPair,
    /// When to refresh, in seconds since 1970 by this machine's clock, which need not agree with the server's.
    refresh_at: u64,
}

impl Keyring {
    /// In `$XDG_CONFIG_HOME/cosky`, or `~/.config/cosky`.
    ///
    /// # Errors
    /// When there is neither variable.
    pub(crate) fn find() -> anyhow::Result<Self> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let config = absolute("XDG_CONFIG_HOME").or_else(|| Some(absolute("HOME")?.join(".config")));
        let dir = config
            .context("neither XDG_CONFIG_HOME nor HOME is set, so there is no place for credentials")?;
        Ok(Self { dir: dir.join("cosky") })
    }

    /// Keeps a new login. Gives the file that holds it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn store(&self, addr: &str, user: UserName, pair: TokenPair) -> anyhow::Result<PathBuf> {
        let _lock = self.lock()?;
        self.put(addr, Login::new(user, pair))?;
        Ok(self.file())
    }

    /// Whether there is a login for `addr`.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub(crate) fn knows(&self, addr: &str) -> anyhow::Result<bool> {
        Ok(self.read()?.servers.contains_key(addr))
    }

    /// Refreshes the login for `addr` when it is due. Gives the file that holds its access token.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] when the server does not take the login any more, [`Error::Unavailable`] when no server
    /// answers.
    pub(crate) async fn fresh(&self, addr: &str, http: &Http) -> anyhow::Result<PathBuf> {
        let dir = self.clone();
        let lock = tokio::task::spawn_blocking(move || dir.lock()).await??;
        let login = self.login(addr)?;
        if now() >= login.refresh_at {
            let pair = http.refresh(&login.user, &login.pair).await.map_err(|error| match error {
                Error::Unauthorized { reason } => {
                    let reason = format!("the login as {} at {addr} has ended ({reason})", login.user);
                    Error::Unauthorized { reason }
                }
                other => other,
            })?;
            self.put(addr, Login::new(login.user, pair))?;
        }
        drop(lock);
        Ok(self.token_file(addr))
    }

    /// Refreshes the login for `addr` whenever it is due. Ends with the future.
    pub(crate) async fn keep(&self, addr: &str, http: &Http) {
        loop {
            let pause = match self.fresh(addr, http).await.and_then(|_| self.login(addr)) {
                Ok(login) => Duration::from_secs(login.refresh_at.saturating_sub(now()).max(1)),
                Err(error) => {
                    tracing::warn!("cannot refresh the login: {error:#}");
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// The file that holds the access token for `addr` alone.
    pub(crate) fn token_file(&self, addr: &str) -> PathBuf {
        let mut name = String::new();
        wire::encode_segment(&mut name, addr);
        self.dir.join("tokens").join(name)
    }

    fn file(&self) -> PathBuf {
        self.dir.join("credentials.json")
    }

    fn login(&self, addr: &str) -> anyhow::Result<Login> {
        let login = self.read()?.servers.remove(addr);
        login.with_context(|| format!("there is no login for {addr} any more; run cosky login"))
    }

    fn read(&self) -> anyhow::Result<Credentials> {
        let file = self.file();
        match fs::read(&file) {
            // The parser's words may repeat what is in the file.
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|_| anyhow::anyhow!("{} is damaged; remove it and run cosky login", file.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Credentials::default()),
            Err(error) => Err(anyhow::Error::new(error).context(file.display().to_string())),
        }
    }

    fn put(&self, addr: &str, login: Login) -> anyhow::Result<()> {
        let token = self.token_file(addr);
        write_secret(&token, login.pair.access_token.as_bytes())?;
        let mut all = self.read()?;
        all.servers.insert(addr.to_owned(), login);
        write_secret(&self.file(), &serde_json::to_vec_pretty(&all)?)
    }

    /// Held until it is dropped.
    fn lock(&self) -> anyhow::Result<File> {
        let tokens = self.dir.join("tokens");
        let path = self.dir.join("lock");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(tokens)
            .and_then(|()| {
                OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)
            })
            .and_then(|file| file.lock().map(|()| file))
            .with_context(|| format!("cannot lock {}", path.display()))
    }
}

impl Login {
    fn new(user: UserName, pair: TokenPair) -> Self {
        let life = life(&pair.access_token).unwrap_or(15 * MARGIN);
        let refresh_at = now() + life.saturating_sub(MARGIN.min(life / 3));
        Self { user, pair, refresh_at }
    }
}

/// How many seconds a token is good, by its own claims.
fn life(token: &str) -> Option<u64> {
    #[derive(Deserialize)]
    struct Claims {
        iat: u64,
        exp: u64,
    }
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    let claims: Claims = serde_json::from_slice(&payload).ok()?;
    claims.exp.checked_sub(claims.iat)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs())
}

/// Replaces a file that its owner alone can read, whole or not at all.
fn write_secret(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let new = PathBuf::from(name);
    let write = || -> io::Result<()> {
        // One that a crash left behind may have other rights.
        if let Err(error) = fs::remove_file(&new)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn pair(life: u64) -> TokenPair {
        let claims = URL_SAFE_NO_PAD.encode(format!("{{\"iat\":1000,\"exp\":{}}}", 1000 + life));
        TokenPair { access_token: format!("h.{claims}.s"), refresh_token: "r".into() }
    }

    #[test]
    fn logins_are_kept_apart_and_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = Keyring { dir: dir.path().join("cosky") };
        let user = UserName::new("cosky").unwrap();
        assert!(!keyring.knows("http://a").unwrap());
        keyring.store("http://a", user.clone(), pair(900)).unwrap();
        let file = keyring.store("http://b", user, pair(2)).unwrap();
        for path in [file, keyring.token_file("http://a"), keyring.token_file("http://b")] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
        }
        let due = |addr| keyring.login(addr).unwrap().refresh_at.saturating_sub(now());
        assert!((838..=840).contains(&due("http://a")), "a minute before the end");
        assert!(due("http://b") <= 2, "a short life is not refreshed without a pause");
        assert_eq!(fs::read_to_string(keyring.token_file("http://b")).unwrap(), pair(2).access_token);
    }

    #[test]
    fn a_damaged_file_is_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = Keyring { dir: dir.path().to_owned() };
        fs::write(keyring.file(), "{\"servers\":{\"x\":\"hunter2\"}}").unwrap();
        let error = format!("{:#}", keyring.knows("x").unwrap_err());
        assert!(error.contains("cosky login") && !error.contains("hunter2"), "{error}");
    }
}
