//! The few calls that are no part of the registry: logins and API tokens.

use std::{sync::Arc, time::Duration};

use cosky_core::{
    Error, UserName,
    wire::{self, ErrorBody, LoginBody, NewTokenBody, TokenBody, TokenPair},
};
use reqwest::{Client, Method, StatusCode, redirect::Policy};
use serde::{Serialize, de::DeserializeOwned};

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(3);
/// How long an answer may take. Hashing a password takes a server most of a second.
const ANSWER: Duration = Duration::from_secs(15);
/// The most bytes of an answer that are read.
const BYTES: usize = 4 << 20;

/// Calls the first address that can be reached.
pub(crate) struct Http {
    client: Client,
    addresses: Vec<String>,
}

impl Http {
    /// `addresses` were checked and are separated by commas.
    ///
    /// # Errors
    /// When the system's TLS cannot be set up.
    pub(crate) fn new(addresses: &str) -> anyhow::Result<Self> {
        // A redirect would carry the credential to somebody else, and a proxy would see it.
        let client = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT)
            .timeout(ANSWER)
            .build()?;
        // What follows a question mark is for the SDK: where the server stands.
        let base =
            |address: &str| address.split('?').next().unwrap_or(address).trim_end_matches('/').to_owned();
        Ok(Self { client, addresses: addresses.split(',').map(base).collect() })
    }

    /// Logs in.
    ///
    /// # Errors
    /// [`Error::Unauthorized`] with the server's words when it refuses.
    pub(crate) async fn login(&self, user: &UserName, password: String) -> Result<TokenPair, Error> {
        self.authenticate(user, "login", &LoginBody { password }).await
    }

    /// Buys a new pair of tokens.
    ///
    /// # Errors
    /// As [`Http::login`]. When the answer was lost the old pair may be spent.
    pub(crate) async fn refresh(&self, user: &UserName, pair: &TokenPair) -> Result<TokenPair, Error> {
        self.authenticate(user, "refresh", pair).await
    }

    async fn authenticate(
        &self,
        user: &UserName,
        verb: &str,
        body: &impl Serialize,
    ) -> Result<TokenPair, Error> {
        let mut path = "/v1/authenticate/".to_owned();
        wire::encode_segment(&mut path, user.as_str());
        path.push('/');
        path.push_str(verb);
        self.call(Method::POST, &path, Some(body), None).await.map_err(|error| match error {
            // CoSky's answer to a wrong password is 400, and so is ours.
            Error::InvalidArgument { reason, .. } => Error::Unauthorized { reason: reason.into_owned() },
            other => other,
        })
    }

    /// All API tokens, without their secrets.
    ///
    /// # Errors
    /// [`Error::Unauthorized`], [`Error::Forbidden`], [`Error::Unavailable`].
    pub(crate) async fn tokens(&self, bearer: Option<&str>) -> Result<Vec<TokenBody>, Error> {
        self.call(Method::GET, "/v1/tokens", None::<&()>, bearer).await
    }

    /// Makes an API token.
    ///
    /// # Errors
    /// As [`Http::tokens`], and what the server has against `new`.
    pub(crate) async fn create_token(
        &self,
        new: &NewTokenBody,
        bearer: Option<&str>,
    ) -> Result<TokenBody, Error> {
        self.call(Method::POST, "/v1/tokens", Some(new), bearer).await
    }

    /// Revokes an API token; false when there is none of that id.
    ///
    /// # Errors
    /// As [`Http::tokens`].
    pub(crate) async fn revoke_token(&self, id: &str, bearer: Option<&str>) -> Result<bool, Error> {
        let mut path = "/v1/tokens/".to_owned();
        wire::encode_segment(&mut path, id);
        match self.call(Method::DELETE, &path, None::<&()>, bearer).await {
            Err(Error::NotFound { .. }) => Ok(false),
            other => other,
        }
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
        bearer: Option<&str>,
    ) -> Result<T, Error> {
        let mut last = Error::unavailable("there is no address to ask (COSKY_ADDR or --addr)");
        for address in &self.addresses {
            let mut request = self.client.request(method.clone(), format!("{address}{path}"));
            if let Some(body) = body {
                request = request.json(body);
            }
            if let Some(bearer) = bearer {
                request = request.bearer_auth(bearer);
            }
            match request.send().await {
                // Only what surely reached nobody is tried at the next address (P7).
                Err(error) if error.is_connect() => last = unreachable(address, error),
                Err(error) => return Err(unreachable(address, error)),
                Ok(response) => return answer(address, response).await,
            }
        }
        Err(last)
    }
}

async fn answer<T: DeserializeOwned>(address: &str, mut response: reqwest::Response) -> Result<T, Error> {
    let status = response.status();
    if !response.headers().contains_key(wire::VERSION) {
        return Err(Error::unavailable(format!("{address} is not a cosky server: it answers {status}")));
    }
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| unreachable(address, error))? {
        if bytes.len() + chunk.len() > BYTES {
            return Err(Error::Corrupt {
                reason: format!("the answer of {address} is larger than {BYTES} bytes"),
            });
        }
        bytes.extend_from_slice(&chunk);
    }
    if status == StatusCode::OK {
        return serde_json::from_slice(&bytes)
            .map_err(|error| Error::Corrupt { reason: format!("the answer of {address}: {error}") });
    }
    let reason =
        serde_json::from_slice::<ErrorBody>(&bytes).map_or_else(|_| status.to_string(), |body| body.msg);
    Err(match status {
        StatusCode::BAD_REQUEST => Error::invalid("request", reason),
        StatusCode::UNAUTHORIZED => Error::Unauthorized { reason },
        StatusCode::FORBIDDEN => Error::Forbidden { reason },
        StatusCode::NOT_FOUND => Error::NotFound { what: reason },
        StatusCode::CONFLICT | StatusCode::TOO_MANY_REQUESTS => Error::Conflict { reason },
        _ => Error::unavailable(format!("{address} answers {status}: {reason}")),
    })
}

fn unreachable(address: &str, error: reqwest::Error) -> Error {
    Error::Unavailable {
        reason: format!("{address} cannot be reached"),
        maybe_applied: false,
        source: Some(Arc::new(error.without_url())),
    }
}
