//! What `cosky serve` is told: flag before environment before config file before default.

use std::{
    fmt::Write as _,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use cosky_core::{Ttl, account::PASSWORD_CHARS};
use serde::Deserialize;

use crate::{
    duration::{parse_second, parse_ttl, show},
    exit::usage,
    logging::{LogArgs, LogFormat},
};

/// The variable that sets root's password at the first start. No flag does: arguments are seen by everybody.
pub(crate) const ROOT_PASSWORD: &str = "COSKY_ROOT_PASSWORD";

/// Run a server
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Config file (TOML; each flag is an entry of the same name)
    #[arg(long, value_name = "FILE", env = "COSKY_CONFIG", hide_env_values = true)]
    config: Option<PathBuf>,
    /// Address to serve on; port 0 takes a free one [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS:PORT", env = "COSKY_LISTEN", hide_env_values = true)]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    store: StoreArgs,
    /// Life of an instance without a beat, when its registration names none [default: 30s]
    #[arg(long, value_name = "TIME", env = "COSKY_INSTANCE_TTL", hide_env_values = true)]
    #[arg(value_parser = parse_ttl, allow_hyphen_values = true)]
    instance_ttl: Option<Ttl>,
    /// Ask nobody for a credential; on a loopback address only
    #[arg(long)]
    no_auth: bool,
    /// Serve /metrics on an address of its own, open to all who reach it
    #[arg(long, value_name = "ADDRESS:PORT", env = "COSKY_METRICS_LISTEN", hide_env_values = true)]
    metrics_listen: Option<SocketAddr>,
    /// How long a login is good before it is refreshed [default: 15m]
    #[arg(long, value_name = "TIME", env = "COSKY_ACCESS_TOKEN_TTL", hide_env_values = true)]
    #[arg(value_parser = parse_second)]
    access_token_ttl: Option<Duration>,
    #[command(flatten)]
    log: LogArgs,
    /// Print the settings as a config file, secrets left out, and end
    #[arg(long)]
    pub(crate) print_config: bool,
}

/// Where the data is.
#[derive(Debug, Args)]
pub(crate) struct StoreArgs {
    /// Directory of the embedded store [default: ./cosky-data]
    #[arg(long, value_name = "DIR", env = "COSKY_DATA_DIR", hide_env_values = true)]
    data_dir: Option<PathBuf>,
    /// Where the data is kept: embedded [default: embedded]
    #[arg(long, value_name = "STORE", env = "COSKY_STORE", hide_env_values = true)]
    store: Option<String>,
}

/// The settings of one server, merged and checked.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) data_dir: PathBuf,
    pub(crate) instance_ttl: Ttl,
    pub(crate) auth: bool,
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) access_token_ttl: Duration,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) root_password: Option<String>,
}

/// The config file. Values are texts in the form that the flags take, so that one reader checks both.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct File {
    listen: Option<String>,
    data_dir: Option<PathBuf>,
    store: Option<String>,
    instance_ttl: Option<String>,
    no_auth: Option<bool>,
    metrics_listen: Option<String>,
    access_token_ttl: Option<String>,
    log: Option<String>,
    log_format: Option<String>,
    root_password: Option<String>,
}

impl Settings {
    /// Merges `args`, which hold the environment already, with the config file. Binds and writes nothing.
    ///
    /// # Errors
    /// [`crate::exit::Usage`] that names the entry.
    pub(crate) fn resolve(args: ServeArgs, root_password: Option<String>) -> anyhow::Result<Self> {
        let file = args.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let settings = Self::merge(args, root_password, file)?;
        settings.check()?;
        Ok(settings)
    }

    fn merge(args: ServeArgs, root_password: Option<String>, file: File) -> anyhow::Result<Self> {
        let address = |text: &str| text.parse::<SocketAddr>().map_err(|error| error.to_string());
        let listen = pick(args.listen, "listen", file.listen, address)?;
        let default_listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
        let instance_ttl = pick(args.instance_ttl, "instance-ttl", file.instance_ttl, parse_ttl)?;
        let access_token_ttl =
            pick(args.access_token_ttl, "access-token-ttl", file.access_token_ttl, parse_second)?;
        let log_format = pick(args.log.log_format, "log-format", file.log_format, LogFormat::parse)?;
        Ok(Self {
            listen: listen.unwrap_or(default_listen),
            data_dir: StoreArgs {
                data_dir: args.store.data_dir.or(file.data_dir),
                store: args.store.store.or(file.store),
            }
            .data_dir()?,
            instance_ttl: instance_ttl.unwrap_or(Ttl::DEFAULT),
            auth: !(args.no_auth || file.no_auth.unwrap_or(false)),
            metrics_listen: pick(args.metrics_listen, "metrics-listen", file.metrics_listen, address)?,
            access_token_ttl: access_token_ttl.unwrap_or(Duration::from_secs(15 * 60)),
            log: args.log.log.or(file.log).unwrap_or_else(|| "info".to_owned()),
            log_format: log_format.unwrap_or(LogFormat::Text),
            root_password: root_password.or(file.root_password),
        })
    }

    fn check(&self) -> anyhow::Result<()> {
        if !self.auth && !self.listen.ip().is_loopback() {
            let listen = self.listen;
            return Err(usage(format!(
                "--no-auth would let everybody who reaches {listen} do everything: use it with a loopback \
                 address such as 127.0.0.1:8080, or leave authentication on"
            )));
        }
        if self.metrics_listen.is_some_and(|metrics| metrics.port() != 0 && metrics == self.listen) {
            return Err(usage(
                "--metrics-listen must not be the address of --listen; without it /metrics is there",
            ));
        }
        if self.root_password.as_ref().is_some_and(|word| word.chars().count() < PASSWORD_CHARS) {
            return Err(usage(format!("{ROOT_PASSWORD} must have at least {PASSWORD_CHARS} characters")));
        }
        crate::logging::filter(&self.log).map(drop)
    }

    /// The settings as a config file that says the same, but for the password.
    pub(crate) fn to_toml(&self) -> String {
        let mut out = String::new();
        let mut line = |key: &str, value: toml::Value| {
            let _ = writeln!(out, "{key} = {value}");
        };
        line("listen", self.listen.to_string().into());
        line("data-dir", self.data_dir.display().to_string().into());
        line("store", "embedded".into());
        line("instance-ttl", show(self.instance_ttl.duration()).into());
        line("no-auth", (!self.auth).into());
        if let Some(metrics) = self.metrics_listen {
            line("metrics-listen", metrics.to_string().into());
        }
        line("access-token-ttl", show(self.access_token_ttl).into());
        line("log", self.log.clone().into());
        line("log-format", self.log_format.as_str().into());
        if self.root_password.is_some() {
            out.push_str("# root-password = (set, not shown)\n");
        }
        out
    }

    /// What the server is told.
    pub(crate) fn server(&self) -> cosky_server::Config {
        cosky_server::Config {
            metrics_listen: self.metrics_listen,
            auth: self.auth,
            access_token_ttl: self.access_token_ttl,
            instance_ttl: self.instance_ttl,
            root_password: self.root_password.clone(),
            ..cosky_server::Config::default()
        }
    }
}

impl StoreArgs {
    /// The directory of the embedded store.
    ///
    /// # Errors
    /// [`crate::exit::Usage`] when another store is asked for. Its address may hold a password, so only the scheme is
    /// repeated.
    pub(crate) fn data_dir(self) -> anyhow::Result<PathBuf> {
        match self.store.as_deref() {
            None | Some("embedded") => Ok(self.data_dir.unwrap_or_else(|| "./cosky-data".into())),
            Some(other) => {
                let scheme = other.split_once("://").map_or("of that name", |(scheme, _)| scheme);
                Err(usage(format!("--store: this build has no store {scheme}; it has: embedded")))
            }
        }
    }
}

impl File {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| usage(format!("cannot read config file {name}: {error}")))?;
        toml::from_str(&text).map_err(|error: toml::de::Error| {
            // The error's own text quotes the line, which may hold the password.
            let line = error.span().map_or(0, |span| text[..span.start].matches('\n').count() + 1);
            usage(format!("config file {name}, line {line}: {}", error.message()))
        })
    }
}

/// The value of the flag or, without one, that of the config file.
fn pick<T>(
    flag: Option<T>,
    key: &str,
    file: Option<String>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> anyhow::Result<Option<T>> {
    match (flag, file) {
        (Some(value), _) => Ok(Some(value)),
        (None, None) => Ok(None),
        (None, Some(text)) => {
            parse(&text).map(Some).map_err(|error| usage(format!("config file: {key} = {text:?} {error}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn resolve(flags: &[&str], file: &str) -> anyhow::Result<Settings> {
        let args = Line::parse_from([&["serve"], flags].concat()).args;
        let settings = Settings::merge(args, None, toml::from_str(file)?)?;
        settings.check()?;
        Ok(settings)
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let file = "listen = '127.0.0.1:1'\ninstance-ttl = '60s'\nno-auth = true";
        let settings = resolve(&["--listen", "127.0.0.1:2"], file).unwrap();
        assert_eq!(settings.listen, "127.0.0.1:2".parse().unwrap());
        assert_eq!(settings.instance_ttl.seconds(), 60);
        assert_eq!(settings.data_dir, PathBuf::from("./cosky-data"));
        assert!(!settings.auth);
    }

    #[test]
    fn what_is_printed_says_the_same_when_read_again() {
        let file =
            "listen = '[::1]:1'\ndata-dir = 'a \"b\"'\nmetrics-listen = '127.0.0.1:3'\nlog-format = 'json'";
        let settings = resolve(&[], file).unwrap();
        assert!(resolve(&[], &settings.to_toml()).unwrap() == settings);
    }

    #[test]
    fn the_password_is_never_shown() {
        let mut settings = resolve(&[], "root-password = 'correct horse'").unwrap();
        assert_eq!(settings.root_password.as_deref(), Some("correct horse"));
        assert!(!settings.to_toml().contains("horse"));
        settings.root_password = None;
        assert!(!settings.to_toml().contains("root-password"));
    }

    #[test]
    fn unsafe_and_unknown_settings_are_refused() {
        for file in [
            "no-auth = true\nlisten = '0.0.0.0:8080'",
            "metrics-listen = '127.0.0.1:8080'",
            "instance-ttl = '2s'",
            "access-token-ttl = '10ms'",
            "store = 'redis://:secret@127.0.0.1'",
            "root-password = 'short'",
            "log = 'a=b=c'",
            "log-format = 'xml'",
            "listen = 'localhost'",
        ] {
            let error = resolve(&[], file).err().unwrap_or_else(|| panic!("{file} was taken"));
            assert!(error.is::<crate::exit::Usage>(), "{file}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(resolve(&[], "instance_ttl = '30s'").is_err(), "an unknown entry is a mistake");
    }
}
