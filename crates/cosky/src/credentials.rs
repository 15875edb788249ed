//! What proves to the server who asks, and how it is renewed when the server does not take it any more.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use cosky_core::{
    Error, Result, UserName,
    wire::{self, LoginBody, TokenPair},
};
use reqwest::{Method, header::HeaderValue};
use tokio::sync::OwnedMutexGuard;

use crate::{
    decode,
    transport::{Call, Repeat, Transport},
};

/// The most bytes of a token or password file.
const SECRET_BYTES: u64 = 64 * 1024;
/// How often a token file is looked at for a change.
const LOOK: Duration = Duration::from_secs(1);
/// How long one renewal of a credential may take. Hashing a password takes a server most of a second.
const RENEWAL: Duration = Duration::from_secs(10);
/// The least time between two renewals that failed because no server could be asked.
const PAUSE: Duration = Duration::from_millis(250);
/// Waits after the first, second and every further refusal of one password. Servers freeze an account for 15 minutes
/// after 10 tries, so a wrong password must not go on trying.
const REFUSED: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(60), Duration::from_secs(16 * 60)];

/// Where the credential comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// Requests carry none.
    None,
    /// A token that stays as it is.
    Token(String),
    /// A token that somebody else renews in a file.
    TokenFile(PathBuf),
    /// A user whose tokens this client renews.
    Login { user: UserName, password: Password },
}

/// A password, or the file that holds it.
#[derive(Clone)]
pub(crate) enum Password {
    Text(String),
    File(PathBuf),
}

/// The credential of one client.
pub(crate) struct Credentials {
    source: Source,
    current: Mutex<Current>,
    /// Held while the credential is renewed, so that only one caller does.
    renewal: Arc<tokio::sync::Mutex<Renewal>>,
}

/// What goes into the `Authorization` header, and how often it was renewed before.
#[derive(Clone)]
pub(crate) struct Bearer {
    pub(crate) value: HeaderValue,
    generation: u64,
}

#[derive(Default)]
struct Current {
    bearer: Option<Bearer>,
    /// When a token file was looked at last.
    looked: Option<Instant>,
}

#[derive(Default)]
struct Renewal {
    pair: Option<TokenPair>,
    /// The token file as it was read last.
    file: Option<Mark>,
    /// No renewal before this moment; until then callers get the error of the last one.
    blocked: Option<(Instant, Error)>,
    /// The password that was refused, and how often in a row.
    refused: Option<(String, usize)>,
}

/// Tells whether a file changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark {
    modified: Option<SystemTime>,
    bytes: u64,
}

impl Credentials {
    /// Takes a fixed token at once; everything else is read when it is first needed.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `token` when it cannot stand in a header.
    pub(crate) fn new(source: Source) -> Result<Self> {
        let bearer = match &source {
            Source::Token(token) => Some(Bearer { value: header(token)?, generation: 0 }),
            _ => None,
        };
        Ok(Self { source, current: Mutex::new(Current { bearer, looked: None }), renewal: Arc::default() })
    }

    /// What to send now; `None` when nothing proves who asks.
    pub(crate) async fn bearer(&self, transport: &Transport) -> Result<Option<Bearer>> {
        let (bearer, look) = self.at_hand();
        match (&self.source, bearer) {
            (Source::None, _) => Ok(None),
            (Source::TokenFile(_), Some(bearer)) if look => {
                // A file that cannot be read now does not take away the token that still works.
                Ok(Some(self.renewed(transport, Some(bearer.generation), true).await.unwrap_or(bearer)))
            }
            (_, Some(bearer)) => Ok(Some(bearer)),
            (_, None) => self.renewed(transport, None, false).await.map(Some),
        }
    }

    /// What to send after `refused` met 401. One renewal serves everybody who waits for it, and it runs on when its
    /// callers give up: what it learns is for the next one.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] when there is nothing better to send, [`Error::Unavailable`] when no server can renew.
    pub(crate) async fn after_refusal(&self, transport: &Transport, refused: &Bearer) -> Result<Bearer> {
        self.renewed(transport, Some(refused.generation), false).await
    }

    /// The bearer, and whether it is time to look at the token file; true for one caller at a time.
    fn at_hand(&self) -> (Option<Bearer>, bool) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let look = current.looked.is_none_or(|at| at.elapsed() >= LOOK);
        if look {
            current.looked = Some(Instant::now());
        }
        (current.bearer.clone(), look)
    }

    async fn renewed(
        &self,
        transport: &Transport,
        old: Option<u64>,
        only_if_changed: bool,
    ) -> Result<Bearer> {
        let renewal = self.renewal.clone().lock_owned().await;
        if let (Some(bearer), _) = self.at_hand()
            && old != Some(bearer.generation)
        {
            return Ok(bearer);
        }
        let transport = transport.clone();
        let task = async move { transport.credentials().renew(&transport, renewal, only_if_changed).await };
        tokio::spawn(task).await.unwrap_or_else(|_| Err(Error::unavailable("the runtime is shutting down")))
    }

    async fn renew(
        &self,
        transport: &Transport,
        mut renewal: OwnedMutexGuard<Renewal>,
        only_if_changed: bool,
    ) -> Result<Bearer> {
        if let Some((until, error)) = &renewal.blocked
            && Instant::now() < *until
            && !matches!(self.source, Source::TokenFile(_))
        {
            return Err(error.clone());
        }
        let token = match &self.source {
            Source::None | Source::Token(_) => Err(refusal(
                "the server does not take the token (any more), and a fixed token cannot be renewed: give another \
                 one, a token file, or user and password",
            )),
            Source::TokenFile(path) => self.read_token(path, &mut renewal, only_if_changed).await,
            Source::Login { user, password } => log_in(transport, user, password, &mut renewal).await,
        };
        let value = token.and_then(|token| header(&token));
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let value = match value {
            Ok(value) => value,
            Err(error) => {
                if renewal.blocked.as_ref().is_none_or(|(until, _)| *until <= Instant::now()) {
                    renewal.blocked = Some((Instant::now() + PAUSE, error.clone()));
                }
                return Err(error);
            }
        };
        renewal.blocked = None;
        let generation = match &current.bearer {
            Some(bearer) if bearer.value == value => bearer.generation,
            Some(bearer) => bearer.generation + 1,
            None => 0,
        };
        let bearer = Bearer { value, generation };
        current.bearer = Some(bearer.clone());
        Ok(bearer)
    }

    /// The token in the file. After a refusal it must be another one than before.
    async fn read_token(&self, path: &Path, renewal: &mut Renewal, only_if_changed: bool) -> Result<String> {
        let known = renewal.file.filter(|_| only_if_changed);
        let Some((mark, token)) = read_secret(path, known).await? else {
            return Err(refusal("the token file did not change"));
        };
        renewal.file = Some(mark);
        let sent = self.current.lock().unwrap_or_else(PoisonError::into_inner).bearer.clone();
        if !only_if_changed && sent.is_some_and(|sent| header(&token).is_ok_and(|value| value == sent.value))
        {
            return Err(refusal(format!(
                "the server does not take the token in {}: put a new one into the file, it is read again by itself",
                path.display()
            )));
        }
        Ok(token)
    }
}

/// A new access token: bought with the refresh token, else with the password.
async fn log_in(
    transport: &Transport,
    user: &UserName,
    password: &Password,
    renewal: &mut Renewal,
) -> Result<String> {
    // A refresh token buys one pair, so it is never sent twice, whatever becomes of the answer.
    if let Some(pair) = renewal.pair.take()
        && let Ok(pair) = ask(transport, user, "refresh", &pair).await
    {
        return Ok(renewal.pair.insert(pair).access_token.clone());
    }
    let text = match password {
        Password::Text(text) => text.clone(),
        Password::File(path) => read_secret(path, None).await?.map(|(_, text)| text).unwrap_or_default(),
    };
    let body = LoginBody { password: text };
    match ask(transport, user, "login", &body).await {
        Ok(pair) => {
            renewal.refused = None;
            Ok(renewal.pair.insert(pair).access_token.clone())
        }
        Err(Error::InvalidArgument { reason, .. }) => {
            let times = match &renewal.refused {
                Some((refused, times)) if *refused == body.password => *times,
                _ => 0,
            };
            let error = refusal(format!("the login of {user} was refused: {reason}"));
            let wait = REFUSED[times.min(REFUSED.len() - 1)];
            renewal.blocked = Some((Instant::now() + wait, error.clone()));
            renewal.refused = Some((body.password, times + 1));
            Err(error)
        }
        Err(error) => Err(error),
    }
}

async fn ask<T: serde::Serialize>(
    transport: &Transport,
    user: &UserName,
    action: &str,
    body: &T,
) -> Result<TokenPair> {
    let mut path = String::from("/v1/authenticate/");
    wire::encode_segment(&mut path, user.as_str());
    path.push('/');
    path.push_str(action);
    let call = Call::new(Method::POST, path).body(body).repeat(Repeat::OnlyUnsent).within(RENEWAL);
    let answer = transport.exchange(&call, None).await?;
    decode::json(&answer)
}

/// Reads a small file off the runtime's threads; `None` when it looks as `known` did.
async fn read_secret(path: &Path, known: Option<Mark>) -> Result<Option<(Mark, String)>> {
    use std::io::Read as _;

    let path = path.to_owned();
    let shown = path.display().to_string();
    let read = move || -> std::io::Result<Option<(Mark, String)>> {
        let file = std::fs::File::open(&path)?;
        let about = file.metadata()?;
        let mark = Mark { modified: about.modified().ok(), bytes: about.len() };
        if known == Some(mark) {
            return Ok(None);
        }
        let mut text = String::new();
        file.take(SECRET_BYTES).read_to_string(&mut text)?;
        Ok(Some((mark, text.trim().to_owned())))
    };
    let read = tokio::task::spawn_blocking(read).await;
    let read = read.map_err(|_| Error::unavailable("the runtime is shutting down"))?;
    match read {
        Ok(Some((_, text))) if text.is_empty() => Err(refusal(format!("{shown} is empty"))),
        Ok(read) => Ok(read),
        Err(error) => Err(refusal(format!("{shown} cannot be read: {error}"))),
    }
}

fn refusal(reason: impl Into<String>) -> Error {
    Error::Unauthorized { reason: reason.into() }
}

fn header(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))
        .ok()
        .filter(|_| !token.is_empty() && !token.contains(char::is_whitespace))
        .ok_or_else(|| Error::invalid("token", "must be one word of visible ASCII characters"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// Secrets are not printed.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Token(_) => f.write_str("Token(…)"),
            Self::TokenFile(path) => f.debug_tuple("TokenFile").field(path).finish(),
            Self::Login { user, .. } => f.debug_struct("Login").field("user", user).finish_non_exhaustive(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.source).finish()
    }
}
