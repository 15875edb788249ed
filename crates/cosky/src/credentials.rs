//! What proves to the server who asks, and how it is renewed when the server does not take it any more.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use cosky_cache::Backoff;
use cosky_core::{Error, Result};
use reqwest::header::HeaderValue;
use tokio::sync::OwnedMutexGuard;

use crate::{
    secret::{self, Mark},
    session::{Failed, Login, Session},
    transport::{Transport, settled},
};

/// What stands before the token in the header.
const SCHEME: &str = "Bearer ";
/// How often a token file is looked at for a change.
const LOOK: Duration = Duration::from_secs(1);
/// The pause after a renewal that failed for a reason that may be over at any moment, and the longest after several.
/// Together with a beat's own retries it is short against the shortest life of an instance, 3 s.
const PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// Gives tokens that somebody else renews and keeps: [`crate::Connect::token_source`].
///
/// A client asks one question at a time. Each runs to its end in a task of its own, also when the calls that wait for
/// it are cancelled, and after an error it is put again within about a second as long as somebody needs a token.
#[async_trait]
pub trait TokenSource: Send + Sync + 'static {
    /// A token for the `Authorization` header. `refused` is the one that the server does not take (any more); then the
    /// answer is another one. Without, it is whatever is at hand.
    ///
    /// # Errors
    /// What the calls that need the token shall end with: [`Error::Unauthorized`] when there is none.
    async fn token(&self, refused: Option<&str>) -> Result<String>;
}

/// Where the credential comes from.
#[derive(Clone)]
pub(crate) enum Source {
    /// Requests carry none.
    None,
    /// A token that stays as it is.
    Token(String),
    /// A token that somebody else renews in a file.
    TokenFile(PathBuf),
    /// A token that somebody else renews and gives.
    Given(Arc<dyn TokenSource>),
    /// A user whose tokens this client renews.
    Login(Login),
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

struct Renewal {
    session: Session,
    /// The token file as it was read last.
    file: Option<Mark>,
    /// No renewal before this moment; until then callers get the error of the last one.
    blocked: Option<(Instant, Error)>,
    backoff: Backoff,
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
        let [pause, longest] = PAUSES;
        let renewal = Renewal {
            session: Session::default(),
            file: None,
            blocked: None,
            backoff: Backoff::new(pause, longest),
        };
        Ok(Self {
            source,
            current: Mutex::new(Current { bearer, looked: None }),
            renewal: Arc::new(tokio::sync::Mutex::new(renewal)),
        })
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
        let refused = old.is_some();
        let task = async move {
            let credentials = transport.credentials();
            credentials.renew(&transport, renewal, refused, only_if_changed).await
        };
        tokio::spawn(task).await.unwrap_or_else(|_| Err(Error::unavailable("the runtime is shutting down")))
    }

    async fn renew(
        &self,
        transport: &Transport,
        mut renewal: OwnedMutexGuard<Renewal>,
        refused: bool,
        only_if_changed: bool,
    ) -> Result<Bearer> {
        if let Some(error) = self.blocked(&mut renewal).await {
            return Err(error);
        }
        let token: Result<String, Failed> = match &self.source {
            Source::None | Source::Token(_) => Err(refusal(
                "the server does not take the token (any more), and a fixed token cannot be renewed: give another \
                 one, a token file, or user and password",
            )
            .into()),
            Source::TokenFile(path) => {
                self.read_token(path, &mut renewal, only_if_changed).await.map_err(Failed::from)
            }
            Source::Given(source) => self.given(source.as_ref(), refused).await.map_err(Failed::from),
            Source::Login(login) => renewal.session.renew(transport, login).await,
        };
        match token.and_then(|token| Ok(header(&token)?)) {
            Ok(value) => {
                renewal.blocked = None;
                renewal.backoff.reset();
                Ok(self.replace(value))
            }
            Err(Failed { error, wait }) => {
                // Whatever became of a login, the call that waits for it was not carried out.
                let error = settled(error);
                let pause = renewal.backoff.delay();
                let wait = wait.map_or(pause, |wait| wait.max(pause));
                renewal.blocked = Some((Instant::now() + wait, error.clone()));
                Err(error)
            }
        }
    }

    /// What the last renewal met, as long as it is too early for another one. A file that has changed is worth one at
    /// any time.
    async fn blocked(&self, renewal: &mut Renewal) -> Option<Error> {
        let (until, error) = renewal.blocked.clone()?;
        let changed = match &self.source {
            Source::TokenFile(_) => true,
            Source::Login(login) => renewal.session.has_other_password(login).await,
            _ => false,
        };
        (!changed && Instant::now() < until).then_some(error)
    }

    fn replace(&self, value: HeaderValue) -> Bearer {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let generation = match &current.bearer {
            Some(bearer) if bearer.value == value => bearer.generation,
            Some(bearer) => bearer.generation + 1,
            None => 0,
        };
        let bearer = Bearer { value, generation };
        current.bearer = Some(bearer.clone());
        bearer
    }

    /// What was sent last.
    fn sent(&self) -> Option<HeaderValue> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.bearer.as_ref().map(|bearer| bearer.value.clone())
    }

    /// What the source gives; after a refusal another one than before.
    async fn given(&self, source: &dyn TokenSource, refused: bool) -> Result<String> {
        let sent = self.sent().filter(|_| refused);
        let old = sent.as_ref().and_then(|sent| sent.to_str().ok()?.strip_prefix(SCHEME));
        let token = source.token(old).await?;
        if old == Some(&*token) {
            return Err(refusal("the server does not take the token (any more), and there is no other one"));
        }
        Ok(token)
    }

    /// The token in the file. After a refusal it must be another one than before.
    async fn read_token(&self, path: &Path, renewal: &mut Renewal, only_if_changed: bool) -> Result<String> {
        let known = renewal.file.filter(|_| only_if_changed);
        let Some((mark, token)) = secret::read(path, known).await? else {
            return Err(refusal("the token file did not change"));
        };
        renewal.file = Some(mark);
        let sent = self.sent();
        if !only_if_changed && sent.is_some_and(|sent| header(&token).is_ok_and(|value| value == sent)) {
            return Err(refusal(format!(
                "the server does not take the token in {}: put a new one into the file, it is read again by itself",
                path.display()
            )));
        }
        Ok(token)
    }
}

fn refusal(reason: impl Into<String>) -> Error {
    Error::Unauthorized { reason: reason.into() }
}

fn header(token: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(&format!("{SCHEME}{token}"))
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
            Self::Given(_) => f.write_str("Given(…)"),
            Self::Login(login) => f.debug_struct("Login").field("user", &login.user).finish_non_exhaustive(),
        }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Credentials").field(&self.source).finish()
    }
}
