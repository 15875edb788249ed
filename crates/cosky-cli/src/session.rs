//! The login that `cosky login` leaves for later calls, and how it is kept alive.
//!
//! `credentials.json` holds the pair of tokens for each server address. It is renewed when the server refuses the access
//! token, and never by a clock: a machine that was suspended, or whose clock was set, has no other way to know. A refresh
//! token buys one pair, so whoever refreshes holds a lock: of two cosky processes the second one finds what the first
//! one bought.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use anyhow::Context as _;
use async_trait::async_trait;
use cosky::{Access, TokenSource};
use cosky_core::{Error, UserName, wire::TokenPair};
use serde::{Deserialize, Serialize};

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
}

/// The login for one server, for as long as a process needs it.
pub(crate) struct StoredLogin {
    keyring: Keyring,
    addr: String,
    access: Access,
    learnt: Mutex<Learnt>,
}

/// What a process knows of a login that the file does not tell. Both parts speak of the pair with this access token.
#[derive(Default)]
struct Learnt {
    /// It buys nothing any more, and what the server said of it.
    ended: Option<(String, Error)>,
    /// It was spent for this login, which could not be written.
    unwritten: Option<(String, Login)>,
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
        self.put(addr, Login { user, pair })?;
        Ok(self.file())
    }

    /// Whose login there is for `addr`. Warns when others can read it as well.
    ///
    /// # Errors
    /// When the file is there and cannot be read.
    pub(crate) fn user_at(&self, addr: &str) -> anyhow::Result<Option<UserName>> {
        let user = self.read()?.servers.remove(addr).map(|login| login.user);
        let file = self.file();
        if user.is_some() && fs::metadata(&file).is_ok_and(|about| about.mode() & 0o077 != 0) {
            let file = file.display();
            tracing::warn!(
                "others can read or change the credentials in {file}: chmod 600 it, and log in again"
            );
        }
        Ok(user)
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
        let mut all = self.read()?;
        all.servers.insert(addr.to_owned(), login);
        write_secret(&self.file(), &serde_json::to_vec_pretty(&all)?)
    }

    /// Held until it is dropped.
    fn lock(&self) -> anyhow::Result<File> {
        let path = self.dir.join("lock");
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .and_then(|()| {
                OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path)
            })
            .and_then(|file| file.lock().map(|()| file))
            .with_context(|| format!("cannot lock {}", path.display()))
    }
}

impl StoredLogin {
    /// The login for `addr` in `keyring`. `access` reaches the server there.
    pub(crate) fn new(keyring: Keyring, addr: String, access: Access) -> Self {
        Self { keyring, addr, access, learnt: Mutex::default() }
    }

    /// A pair whose access token is not `refused`: one that another process bought meanwhile, or one bought now.
    async fn other_than(&self, refused: &str) -> anyhow::Result<String> {
        let (keyring, addr) = (self.keyring.clone(), self.addr.clone());
        let read = move || keyring.lock().and_then(|lock| Ok((lock, keyring.login(&addr)?)));
        let (_lock, stored) = tokio::task::spawn_blocking(read).await??;
        let stored_token = stored.pair.access_token.clone();
        let login = self.newest(stored);
        if login.pair.access_token != refused {
            return Ok(login.pair.access_token);
        }
        if let Some(error) = self.has_ended(refused) {
            return Err(error.into());
        }
        let pair = match self.access.refresh(&login.user, &login.pair).await {
            Ok(pair) => pair,
            Err(cosky::Error::Registry(Error::Unauthorized { reason })) => {
                let user = &login.user;
                let reason = format!("the login as {user} at {} has ended ({reason})", self.addr);
                let error = Error::Unauthorized { reason };
                self.learnt().ended = Some((refused.to_owned(), error.clone()));
                return Err(error.into());
            }
            Err(error) => return Err(error.into()),
        };
        let access_token = pair.access_token.clone();
        let login = Login { user: login.user, pair };
        let (keyring, addr, new) = (self.keyring.clone(), self.addr.clone(), login.clone());
        let written = tokio::task::spawn_blocking(move || keyring.put(&addr, new)).await?;
        self.learnt().unwritten = match written {
            Ok(()) => None,
            Err(error) => {
                tracing::warn!("this process goes on, others will need a new cosky login: {error:#}");
                Some((stored_token, login))
            }
        };
        Ok(access_token)
    }

    /// The stored login, or what it was spent for.
    fn newest(&self, stored: Login) -> Login {
        match &self.learnt().unwritten {
            Some((spent, login)) if *spent == stored.pair.access_token => login.clone(),
            _ => stored,
        }
    }

    fn has_ended(&self, access_token: &str) -> Option<Error> {
        let learnt = self.learnt();
        learnt.ended.as_ref().filter(|(ended, _)| ended == access_token).map(|(_, error)| error.clone())
    }

    fn learnt(&self) -> MutexGuard<'_, Learnt> {
        self.learnt.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl TokenSource for StoredLogin {
    async fn token(&self, refused: Option<&str>) -> Result<String, Error> {
        let token = match refused {
            Some(refused) => self.other_than(refused).await,
            None => self.keyring.login(&self.addr).map(|login| login.pair.access_token),
        };
        token.map_err(|error| match error.downcast::<cosky::Error>() {
            Ok(cosky::Error::Registry(error)) => error,
            Ok(cosky::Error::NotCosky(stranger)) => stranger.into(),
            Ok(cosky::Error::TooOld(old)) => old.into(),
            Ok(other) => Error::Unauthorized { reason: other.to_string() },
            Err(error) => match error.downcast::<Error>() {
                Ok(error) => error,
                Err(error) => Error::Unauthorized { reason: format!("{error:#}") },
            },
        })
    }
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

    use cosky::Cosky;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    fn pair(number: u32) -> TokenPair {
        TokenPair { access_token: format!("a{number}"), refresh_token: format!("r{number}") }
    }

    fn user() -> UserName {
        UserName::new("cosky").unwrap()
    }

    fn keyring(dir: &tempfile::TempDir) -> Keyring {
        Keyring { dir: dir.path().join("cosky") }
    }

    async fn stored(keyring: &Keyring, addr: &str) -> StoredLogin {
        let access = Cosky::connect(addr).lazy().await.unwrap().access();
        StoredLogin::new(keyring.clone(), addr.to_owned(), access)
    }

    /// A server that answers refreshes with these, one a connection, and gives what arrived.
    async fn server(
        answers: &'static [(u16, &'static str)],
    ) -> (String, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = format!("http://{}", listener.local_addr().unwrap());
        let serve = async move {
            let mut arrived = Vec::new();
            for (status, body) in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"}") {
                    request.push(stream.read_u8().await.unwrap());
                }
                arrived.push(String::from_utf8(request).unwrap());
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} x\r\nx-cosky-version: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            arrived
        };
        (addr, tokio::spawn(serve))
    }

    #[test]
    fn logins_are_kept_apart_and_for_their_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = keyring(&dir);
        assert_eq!(keyring.user_at("http://a").unwrap(), None);
        keyring.store("http://a", user(), pair(1)).unwrap();
        let file = keyring.store("http://b", user(), pair(2)).unwrap();
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&keyring.dir).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(keyring.user_at("http://a").unwrap(), Some(user()));
        let token = |addr| keyring.login(addr).unwrap().pair.access_token;
        assert_eq!((token("http://a"), token("http://b")), ("a1".to_owned(), "a2".to_owned()));
    }

    #[test]
    fn a_damaged_file_is_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = Keyring { dir: dir.path().to_owned() };
        fs::write(keyring.file(), "{\"servers\":{\"x\":\"hunter2\"}}").unwrap();
        let error = format!("{:#}", keyring.user_at("x").unwrap_err());
        assert!(error.contains("cosky login") && !error.contains("hunter2"), "{error}");
    }

    /// What a suspended machine or a clock that was set leaves behind: a token that looks good and is refused.
    #[tokio::test]
    async fn a_refused_token_is_renewed_and_kept_whatever_the_clocks_say() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = keyring(&dir);
        let (addr, served) = server(&[(200, r#"{"accessToken":"a2","refreshToken":"r2"}"#)]).await;
        keyring.store(&addr, user(), pair(1)).unwrap();
        let login = stored(&keyring, &addr).await;
        assert_eq!(login.token(None).await.unwrap(), "a1", "what is not refused is used as it is");
        assert_eq!(login.token(Some("a1")).await.unwrap(), "a2");
        assert_eq!(keyring.login(&addr).unwrap().pair.refresh_token, "r2");
        let other = stored(&keyring, &addr).await;
        assert_eq!(other.token(Some("a1")).await.unwrap(), "a2", "what another one bought is taken");
        assert!(served.await.unwrap()[0].contains("\"r1\""), "and bought once");
    }

    #[tokio::test]
    async fn a_login_that_has_ended_is_not_sent_again_and_a_new_one_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = keyring(&dir);
        let (addr, served) =
            server(&[(400, r#"{"code":"refresh_failed","msg":"the session has ended"}"#)]).await;
        keyring.store(&addr, user(), pair(1)).unwrap();
        let login = stored(&keyring, &addr).await;
        for _ in 0..2 {
            let error = login.token(Some("a1")).await.unwrap_err();
            assert!(matches!(error, Error::Unauthorized { .. }), "{error:?}");
            assert!(
                error.to_string().contains("as cosky") && error.to_string().contains("session has ended"),
                "{error}"
            );
        }
        assert_eq!(served.await.unwrap().len(), 1);
        keyring.store(&addr, user(), pair(2)).unwrap();
        assert_eq!(login.token(Some("a1")).await.unwrap(), "a2");
    }

    #[tokio::test]
    async fn a_server_that_is_away_does_not_end_a_login() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = keyring(&dir);
        let (addr, served) = server(&[
            (503, r#"{"code":"shutting_down","msg":"later"}"#),
            (200, r#"{"accessToken":"a2","refreshToken":"r2"}"#),
        ])
        .await;
        keyring.store(&addr, user(), pair(1)).unwrap();
        let login = stored(&keyring, &addr).await;
        let error = login.token(Some("a1")).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable { maybe_applied: false, .. }), "{error:?}");
        assert_eq!(login.token(Some("a1")).await.unwrap(), "a2");
        assert_eq!(served.await.unwrap().len(), 2);
    }

    /// A disk that is full, say.
    #[tokio::test]
    async fn a_pair_that_cannot_be_written_is_used_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let keyring = keyring(&dir);
        let (addr, served) = server(&[
            (200, r#"{"accessToken":"a2","refreshToken":"r2"}"#),
            (200, r#"{"accessToken":"a3","refreshToken":"r3"}"#),
        ])
        .await;
        keyring.store(&addr, user(), pair(1)).unwrap();
        let login = stored(&keyring, &addr).await;
        // A directory in the way of the new file, which no right overrules.
        let obstacle = keyring.dir.join("credentials.json.new");
        fs::create_dir(&obstacle).unwrap();
        assert_eq!(login.token(Some("a1")).await.unwrap(), "a2");
        assert_eq!(keyring.login(&addr).unwrap().pair.access_token, "a1");
        fs::remove_dir(&obstacle).unwrap();
        assert_eq!(login.token(Some("a2")).await.unwrap(), "a3");
        assert_eq!(keyring.login(&addr).unwrap().pair.access_token, "a3");
        assert!(served.await.unwrap()[1].contains("\"r2\""));
    }
}
