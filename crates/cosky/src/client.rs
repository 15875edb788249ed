//! The client: its addresses, its credential, and the namespaces that it opens.

use std::{
    collections::HashMap,
    fmt,
    future::IntoFuture,
    path::PathBuf,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use cosky_cache::{Cache, Figures, OnMetadata};
use cosky_core::{ConsumerName, Namespace, UserName};
use reqwest::Method;
use tokio::runtime::Handle;

use crate::{
    Access, Error, HttpRegistry, IntoAddresses, NamespaceClient, Result, TokenSource,
    address::Addresses,
    credentials::Source,
    detect::Home,
    namespace::NamespaceCore,
    remember::Memory,
    session::{Login, Password},
    transport::{Call, Timeouts, Transport},
};

/// The address that is used when nobody says otherwise: a server of this machine.
const ADDRESS: &str = "http://127.0.0.1:8080";
/// The most namespaces that one client has open.
const NAMESPACES: usize = 1000;

/// A client of cosky. Cheap to clone; clones share connections, credential, beats and streams.
#[derive(Clone)]
pub struct Cosky {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Arc<HttpRegistry>,
    runtime: Handle,
    default_namespace: Namespace,
    close_timeout: Duration,
    home: Arc<Home>,
    cache: Cache,
    namespaces: Arc<Namespaces>,
}

/// The open ones, by name.
type Namespaces = Mutex<HashMap<Namespace, Weak<NamespaceCore>>>;

/// How to reach the servers. Awaiting it gives a [`Cosky`]; each value set later replaces an earlier one.
#[must_use = "await it"]
#[derive(Debug)]
pub struct Connect {
    addresses: Vec<String>,
    source: Source,
    namespace: Option<String>,
    consumer: Option<String>,
    zone: Option<String>,
    remember_in: Option<PathBuf>,
    protect: bool,
    timeouts: Timeouts,
    close_timeout: Duration,
    check: bool,
    error: Option<Error>,
}

impl Cosky {
    /// Connects to one or several servers of one cluster: `"http://10.0.0.5:8080,http://10.0.0.6:8080"`, or a list.
    ///
    /// # Errors
    /// Of the awaited value: [`Error::Config`] for what cannot be used, [`Error::NotCosky`] when something else answers
    /// there, [`Error::TooOld`] when an old server does, [`Error::Registry`] when nothing does or a login is refused.
    pub fn connect(addresses: impl IntoAddresses) -> Connect {
        Connect::new(addresses.into_addresses())
    }

    /// As [`Cosky::connect`] with what the environment says: `COSKY_ADDR`, one of `COSKY_TOKEN`, `COSKY_TOKEN_FILE` and
    /// `COSKY_USER` with `COSKY_PASSWORD_FILE`, `COSKY_NAMESPACE` and `COSKY_ZONE`. A blank variable counts as absent;
    /// without `COSKY_ADDR` it is the server of this machine at port 8080.
    pub fn from_env() -> Connect {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// As [`Cosky::from_env`], with the variables from anywhere.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Connect {
        let get =
            |name: &str| lookup(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let mut connect = Self::connect(get("COSKY_ADDR").as_deref().unwrap_or(ADDRESS));
        connect.namespace = get("COSKY_NAMESPACE");
        connect.zone = get("COSKY_ZONE");
        let token = get("COSKY_TOKEN");
        let file = get("COSKY_TOKEN_FILE");
        let user = (get("COSKY_USER"), get("COSKY_PASSWORD_FILE"));
        match (token, file, user) {
            (None, None, (None, None)) => connect,
            (Some(token), None, (None, None)) => connect.token(token),
            (None, Some(file), (None, None)) => connect.token_file(file),
            (None, None, (Some(user), Some(file))) => connect.password_file(user, file),
            (None, None, (Some(_), None)) => connect.refuse("COSKY_USER", "needs COSKY_PASSWORD_FILE beside it"),
            (None, None, (None, Some(_))) => connect.refuse("COSKY_PASSWORD_FILE", "needs COSKY_USER beside it"),
            _ => connect.refuse(
                "COSKY_TOKEN",
                "set only one credential: COSKY_TOKEN, COSKY_TOKEN_FILE, or COSKY_USER with COSKY_PASSWORD_FILE",
            ),
        }
    }

    /// A namespace. It may be one that does not exist yet.
    ///
    /// # Errors
    /// [`cosky_core::Error::InvalidArgument`] when the name breaks a rule.
    pub fn namespace(&self, name: &str) -> Result<NamespaceClient> {
        self.open(Namespace::new(name)?)
    }

    /// The namespace of `COSKY_NAMESPACE` or [`Connect::default_namespace`], else `cosky-{default}`.
    ///
    /// # Errors
    /// [`cosky_core::Error::Exhausted`] above 1,000 open namespaces.
    pub fn default_namespace(&self) -> Result<NamespaceClient> {
        self.open(self.inner.default_namespace.clone())
    }

    /// The registry itself, operation by operation.
    pub fn registry(&self) -> Arc<HttpRegistry> {
        self.inner.registry.clone()
    }

    /// Logins and API tokens of the server.
    pub fn access(&self) -> Access {
        Access::new(self.inner.registry.transport().clone())
    }

    /// What this client follows in all its namespaces, in numbers, for the application's metrics.
    pub fn figures(&self) -> Figures {
        self.inner.cache.figures()
    }

    fn open(&self, name: Namespace) -> Result<NamespaceClient> {
        let mut namespaces = self.inner.namespaces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(core) = namespaces.get(&name).and_then(Weak::upgrade) {
            return Ok(NamespaceClient::new(core));
        }
        namespaces.retain(|_, core| core.strong_count() > 0);
        if namespaces.len() >= NAMESPACES {
            let limit = NAMESPACES;
            return Err(cosky_core::Error::Exhausted { what: "open namespaces of one client", limit }.into());
        }
        let Inner { registry, runtime, cache, close_timeout, home, .. } = &*self.inner;
        let limit = registry.transport().timeouts().request;
        let core = NamespaceCore::new(
            registry.clone(),
            name.clone(),
            cache.clone(),
            runtime.clone(),
            limit,
            *close_timeout,
            home.clone(),
        );
        let core = Arc::new(core);
        namespaces.insert(name, Arc::downgrade(&core));
        Ok(NamespaceClient::new(core))
    }
}

impl Connect {
    fn new(addresses: Vec<String>) -> Self {
        Self {
            addresses,
            source: Source::None,
            namespace: None,
            consumer: None,
            zone: None,
            remember_in: None,
            protect: true,
            timeouts: Timeouts {
                connect: Duration::from_secs(1),
                request: Duration::from_secs(5),
                silence: Duration::from_secs(25),
            },
            close_timeout: Duration::from_secs(5),
            check: true,
            error: None,
        }
    }

    /// Other addresses.
    pub fn addresses(mut self, addresses: impl IntoAddresses) -> Self {
        self.addresses = addresses.into_addresses();
        self
    }

    /// An API token or access token that stays as it is. When it expires nothing can renew it.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.source = Source::Token(token.into());
        self
    }

    /// A file with a token, read again when it changes and when the server refuses what was read.
    pub fn token_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.source = Source::TokenFile(path.into());
        self
    }

    /// Tokens that somebody else renews and keeps, asked for when the first one is needed and when one is refused.
    pub fn token_source(mut self, source: Arc<dyn TokenSource>) -> Self {
        self.source = Source::Given(source);
        self
    }

    /// A user and password. Tokens are fetched and renewed by themselves. A password that is refused is tried again
    /// after 5 s, then ever later, up to 16 minutes and half of it more, so that it does not freeze the account.
    pub fn login(self, user: impl AsRef<str>, password: impl Into<String>) -> Self {
        self.user(user.as_ref(), Password::Text(password.into()))
    }

    /// A user, and a file with the password, read at every login. As [`Connect::login`]; but another password in the
    /// file is tried within a second of the next call that needs it.
    pub fn password_file(self, user: impl AsRef<str>, path: impl Into<PathBuf>) -> Self {
        self.user(user.as_ref(), Password::File(path.into()))
    }

    /// What [`Cosky::default_namespace`] gives.
    pub fn default_namespace(mut self, name: impl Into<String>) -> Self {
        self.namespace = Some(name.into());
        self
    }

    /// Who looks for services, for the topology: usually the service id of this process. Nothing is noted without, and
    /// nothing by a stream of a whole namespace, which is used for more than 64 services of it.
    pub fn consumer(mut self, name: impl Into<String>) -> Self {
        self.consumer = Some(name.into());
        self
    }

    /// The zone of this process: servers whose address names another one, as in `http://10.0.0.5:8080?zone=z1`, are asked
    /// only while none of the own zone answers.
    pub fn zone(mut self, name: impl Into<String>) -> Self {
        self.zone = Some(name.into());
        self
    }

    /// Whether lists keep, marked [`cosky_core::StoreState::Protected`], what vanished because a store lost its data or
    /// was started anew; true without this. That lasts until everybody who beats has had the time to register again: the
    /// longest life that was seen and two thirds of it, at most 5 minutes. With false a list is what the store has, an
    /// empty one at once.
    pub fn protect(mut self, on: bool) -> Self {
        self.protect = on;
        self
    }

    /// Keeps what is known of services in this file, for a process that starts while no server answers: connecting works
    /// then, and whatever is looked for and stands in the file is shown as it was last known, as `Stale` and with its age,
    /// until a server answers. The process before must have used the same file; two at once should not.
    ///
    /// The file is written within 2 s after a change and once a minute, never half, and only its owner may read it. It is
    /// at most 16 MiB. One that cannot be read or written costs a warning and nothing else, and one that is not of this
    /// kind is left alone.
    pub fn remember_in(mut self, path: impl Into<PathBuf>) -> Self {
        self.remember_in = Some(path.into());
        self
    }

    /// How long a connection may take to stand, 1 s without this.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.timeouts.connect = limit;
        self
    }

    /// How long a request may take over all addresses, 5 s without this. Beats take less than a period in any case, and
    /// where there is one address the beginning of a stream takes half of this.
    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.timeouts.request = limit;
        self
    }

    /// How long a stream may be silent before it counts as lost, 25 s without this. Servers send a comment every 15 s.
    pub fn silence_timeout(mut self, limit: Duration) -> Self {
        self.timeouts.silence = limit;
        self
    }

    /// How long [`crate::Registration::close`] waits for the server, 5 s without this.
    pub fn close_timeout(mut self, limit: Duration) -> Self {
        self.close_timeout = limit;
        self
    }

    /// Asks no server until the first operation: for a process that starts without its registry.
    pub fn lazy(mut self) -> Self {
        self.check = false;
        self
    }

    fn user(mut self, user: &str, password: Password) -> Self {
        match UserName::new(user) {
            Ok(user) => self.source = Source::Login(Login { user, password }),
            Err(error) => self.error = self.error.or(Some(error.into())),
        }
        self
    }

    fn refuse(mut self, setting: &str, reason: &str) -> Self {
        self.error = self.error.or_else(|| Some(Error::config(setting, reason)));
        self
    }

    async fn open(self) -> Result<Cosky> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let default_namespace = Namespace::new(self.namespace.as_deref().unwrap_or(Namespace::DEFAULT))?;
        let consumer = self.consumer.as_deref().map(ConsumerName::new).transpose()?;
        let home = Home::towards(self.addresses.iter().map(String::as_str));
        let transport = Transport::new(
            Addresses::new(self.addresses, self.zone.as_deref())?,
            self.source,
            self.timeouts,
        )?;
        let memory = match self.remember_in {
            Some(path) => Some(Memory::open(path).await),
            None => None,
        };
        if self.check
            && let Err(error) = greet(&transport).await
        {
            if !error.is_unavailable() || memory.as_ref().is_none_or(|memory| memory.is_empty()) {
                return Err(error);
            }
            tracing::warn!(%error, "no server answers; what is remembered is used until one does");
        }
        let registry = Arc::new(HttpRegistry::new(transport, consumer));
        let namespaces = Arc::<Namespaces>::default();
        let options = cosky_cache::Options {
            on_metadata: Some(keepers_of(&namespaces)),
            protect: self.protect,
            recall: memory.as_ref().map(Memory::recalls),
            ..Default::default()
        };
        let cache = Cache::new(registry.clone(), options);
        if let Some(memory) = memory {
            // Ends by itself, soon after the cache.
            tokio::spawn(memory.keep(cache.downgrade()));
        }
        let inner = Inner {
            registry,
            cache,
            runtime: Handle::current(),
            default_namespace,
            close_timeout: self.close_timeout,
            home: Arc::new(home),
            namespaces,
        };
        Ok(Cosky { inner: Arc::new(inner) })
    }
}

/// Asks who answers, and fetches the credential.
async fn greet(transport: &Transport) -> Result<()> {
    // The route is open to everybody and says by its headers who answers.
    transport.exchange(&Call::new(Method::GET, "/livez".into()), None).await?;
    transport.credentials().bearer(transport).await?;
    Ok(())
}

/// Tells those who keep instances registered what the registry says of them: the metadata that somebody edited is the one
/// to register again with.
fn keepers_of(namespaces: &Arc<Namespaces>) -> OnMetadata {
    let namespaces = namespaces.clone();
    Arc::new(move |namespace, instance| {
        let core = namespaces.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).cloned();
        if let Some(core) = core.and_then(|core| core.upgrade()) {
            core.keeper.saw_metadata(instance.id(), instance.metadata());
        }
    })
}

impl IntoFuture for Connect {
    type Output = Result<Cosky>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.open())
    }
}

impl fmt::Debug for Cosky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cosky").field("registry", &self.inner.registry).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Connect {
        Cosky::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_gives_addresses_credential_and_namespace() {
        let connect = from(&[
            ("COSKY_ADDR", "http://a,http://b"),
            ("COSKY_TOKEN", " secret "),
            ("COSKY_NAMESPACE", "shop-{eu}"),
            ("COSKY_TOKEN_FILE", " "),
        ]);
        assert_eq!(connect.addresses, ["http://a", "http://b"]);
        assert!(matches!(&connect.source, Source::Token(token) if token == "secret"));
        assert_eq!(connect.namespace.as_deref(), Some("shop-{eu}"));
        assert!(connect.error.is_none());
        assert!(!format!("{connect:?}").contains("secret"), "{connect:?}");
    }

    #[test]
    fn an_empty_environment_means_the_server_of_this_machine() {
        let connect = from(&[]);
        assert_eq!(connect.addresses, [ADDRESS]);
        assert!(matches!(connect.source, Source::None) && connect.error.is_none());
    }

    #[test]
    fn files_and_users_are_taken() {
        let file = from(&[("COSKY_TOKEN_FILE", "/run/token")]);
        assert!(matches!(&file.source, Source::TokenFile(path) if path.as_os_str() == "/run/token"));
        let user = from(&[("COSKY_USER", "cosky"), ("COSKY_PASSWORD_FILE", "/run/password")]);
        assert!(
            matches!(&user.source, Source::Login(Login { user, password: Password::File(_) }) if user.as_str() == "cosky")
        );
    }

    #[test]
    fn half_and_double_credentials_are_refused_by_name() {
        for (pairs, name) in [
            (&[("COSKY_USER", "cosky")][..], "COSKY_USER"),
            (&[("COSKY_PASSWORD_FILE", "/p")][..], "COSKY_PASSWORD_FILE"),
            (&[("COSKY_TOKEN", "t"), ("COSKY_TOKEN_FILE", "/t")][..], "COSKY_TOKEN"),
        ] {
            let error = from(pairs).error.expect("must be refused").to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
