//! What every verb that asks a server has in common: where it is, who asks, and in which form the answer is printed.

use std::{
    env,
    ffi::OsStr,
    fs,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use clap::Args;
use cosky::{Access, Cosky, HttpRegistry, NamespaceClient};
use cosky_core::{Namespace, UserName};

use crate::{
    exit::usage,
    logging,
    output::Format,
    session::{Keyring, StoredLogin},
};

/// Where the server is.
#[derive(Debug, Args)]
pub(crate) struct AddressArgs {
    /// Address of the server; of several, separated by commas, one that answers
    #[arg(long, value_name = "URL", env = "COSKY_ADDR", hide_env_values = true, global = true)]
    #[arg(default_value = "http://127.0.0.1:8080")]
    addr: String,
}

/// Where the server is, and what proves to it who asks.
#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    #[command(flatten)]
    address: AddressArgs,
    /// File that holds a token, read again when it changes [env: COSKY_TOKEN_FILE]
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
}

/// Whose services and instances are meant.
#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    /// The namespace
    #[arg(long, short, value_name = "NAME", env = "COSKY_NAMESPACE", hide_env_values = true, global = true)]
    #[arg(default_value = Namespace::DEFAULT)]
    pub(crate) namespace: Namespace,
}

/// How the answer is printed.
#[derive(Debug, Args)]
pub(crate) struct OutputArgs {
    /// Form of the answer
    #[arg(long, short, value_name = "FORM", default_value = "table", global = true)]
    pub(crate) output: Format,
}

/// The most bytes that are read of a file with a token or a password, as in the SDK.
const SECRET_BYTES: u64 = 64 << 10;

/// What proves who asks.
enum Credential {
    None,
    Token(String),
    TokenFile(PathBuf),
    Password { user: UserName, file: PathBuf },
    Login(Keyring),
}

/// A way to a server, with a credential.
pub(crate) struct Connection {
    cosky: Cosky,
    addr: String,
}

/// Runs a client verb with logs of trouble only, unless COSKY_LOG says otherwise.
pub(crate) fn block_on(verb: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let filter = env::var("COSKY_LOG").unwrap_or_else(|_| "warn".to_owned());
    logging::start(&filter, logging::LogFormat::Text)?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(verb)
}

impl AddressArgs {
    /// The addresses in their one form, separated by commas.
    ///
    /// # Errors
    /// [`crate::exit::Usage`] when one is no HTTP address, or leads below a path, where cosky is not served. One that holds
    /// a password is refused and not repeated.
    pub(crate) fn checked(&self) -> anyhow::Result<String> {
        let parts = self.addr.split(',').map(str::trim).filter(|part| !part.is_empty());
        let addresses = parts.map(check_address).collect::<anyhow::Result<Vec<_>>>()?;
        if addresses.is_empty() {
            return Err(usage("COSKY_ADDR or --addr: must be an address such as http://127.0.0.1:8080"));
        }
        Ok(addresses.join(","))
    }
}

fn check_address(text: &str) -> anyhow::Result<String> {
    let text = text.trim_end_matches('/');
    if text.contains('@') {
        return Err(usage("COSKY_ADDR or --addr: must not hold a user or password; use cosky login"));
    }
    match reqwest::Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => match url.path() {
            "/" => Ok(text.to_owned()),
            path => Err(usage(format!(
                "COSKY_ADDR or --addr: {text:?} must end after host and port, without the path {path:?}"
            ))),
        },
        _ => {
            Err(usage(format!("COSKY_ADDR or --addr: {text:?} is no address such as http://127.0.0.1:8080")))
        }
    }
}

/// Refuses a file that holds no token or password. `setting` is what named it. Only a regular file can be read again when
/// it changes, and reading a pipe may never end.
fn check_secret(setting: &str, path: &Path) -> anyhow::Result<()> {
    let refuse = |reason: &str| usage(format!("{setting}: {} {reason}", path.display()));
    let unreadable = |error| refuse(&format!("cannot be read: {error}"));
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(refuse("is not a regular file"));
    }
    let mut text = String::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(SECRET_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    if text.trim().is_empty() { Err(refuse("is empty")) } else { Ok(()) }
}

impl Credential {
    /// What the flag, else the environment, else a login gives.
    ///
    /// # Errors
    /// [`crate::exit::Usage`] when there is half a credential or more than one, or a file that holds none.
    fn find(args: &ServerArgs, addr: &str) -> anyhow::Result<Self> {
        if let Some(file) = &args.token_file {
            return Self::token_file("--token-file", file.clone());
        }
        let text = |name| match env::var(name) {
            Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
            Err(env::VarError::NotPresent) => Ok(None),
            Err(env::VarError::NotUnicode(_)) => Err(usage(format!("{name} must be UTF-8"))),
        };
        let path = |name| env::var_os(name).filter(|value| value != OsStr::new("")).map(PathBuf::from);
        let token = (text("COSKY_TOKEN")?, path("COSKY_TOKEN_FILE"));
        let login = (text("COSKY_USER")?, path("COSKY_PASSWORD_FILE"));
        match (token, login) {
            ((Some(token), None), (None, None)) => Ok(Self::Token(token)),
            ((None, Some(file)), (None, None)) => Self::token_file("COSKY_TOKEN_FILE", file),
            ((None, None), (Some(user), Some(file))) => {
                check_secret("COSKY_PASSWORD_FILE", &file)?;
                Ok(Self::Password { user: UserName::new(&user)?, file })
            }
            ((None, None), (None, Some(_))) => Err(usage("COSKY_PASSWORD_FILE needs COSKY_USER")),
            ((None, None), (user, None)) => Self::login(user.as_deref(), addr),
            _ => Err(usage(
                "set one credential only: COSKY_TOKEN, COSKY_TOKEN_FILE, or COSKY_USER with COSKY_PASSWORD_FILE",
            )),
        }
    }

    fn token_file(setting: &str, file: PathBuf) -> anyhow::Result<Self> {
        check_secret(setting, &file)?;
        Ok(Self::TokenFile(file))
    }

    /// What `cosky login` left; of `user` alone, when one is asked for, since nobody shall act as somebody else unawares.
    fn login(user: Option<&str>, addr: &str) -> anyhow::Result<Self> {
        let login = match Keyring::find() {
            Ok(keyring) => keyring.user_at(addr)?.map(|known| (keyring, known)),
            Err(_) => None,
        };
        match (user, login) {
            (None, None) => Ok(Self::None),
            (None, Some((keyring, _))) => Ok(Self::Login(keyring)),
            (Some(user), Some((keyring, known))) if known.as_str() == user => Ok(Self::Login(keyring)),
            (Some(user), _) => Err(usage(format!(
                "COSKY_USER needs COSKY_PASSWORD_FILE, unless `cosky login` was run as {user:?} for this server"
            ))),
        }
    }
}

impl Connection {
    /// Asks nobody yet: every answer says whether it is a cosky server's, and no server needs to answer now.
    ///
    /// # Errors
    /// [`crate::exit::Usage`] of the address or credential.
    pub(crate) async fn open(args: &ServerArgs) -> anyhow::Result<Self> {
        let addr = args.address.checked()?;
        let connect = Cosky::connect(&addr).lazy();
        let connect = match Credential::find(args, &addr)? {
            Credential::None => connect,
            Credential::Token(token) => connect.token(token),
            Credential::TokenFile(file) => connect.token_file(file),
            Credential::Password { user, file } => connect.password_file(user, file),
            Credential::Login(keyring) => {
                let login = StoredLogin::new(keyring, addr.clone(), access(&addr).await?);
                connect.token_source(Arc::new(login))
            }
        };
        Ok(Self { cosky: connect.await?, addr })
    }

    /// The addresses, separated by commas.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// The SDK's view of a namespace.
    ///
    /// # Errors
    /// When the SDK refuses the name.
    pub(crate) fn namespace(&self, namespace: &Namespace) -> anyhow::Result<NamespaceClient> {
        Ok(self.cosky.namespace(namespace.as_str())?)
    }

    /// The registry behind the server.
    pub(crate) fn registry(&self) -> Arc<HttpRegistry> {
        self.cosky.registry()
    }

    /// The server's API tokens.
    pub(crate) fn access(&self) -> Access {
        self.cosky.access()
    }
}

/// The logins of the server at `addr`, for somebody who has none yet.
///
/// # Errors
/// When the SDK refuses an address.
pub(crate) async fn access(addr: &str) -> anyhow::Result<Access> {
    Ok(Cosky::connect(addr).lazy().await?.access())
}
