//! Access and refresh tokens: JWT, HS256 (compat §4.3).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cosky_core::{Error, UserName, wire::TokenPair};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, errors::ErrorKind};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes of a key that this server makes, and the least that it takes.
pub(crate) const KEY_BYTES: usize = 32;

/// Signs and verifies.
pub(crate) struct Keys {
    encoding: EncodingKey,
    decoding: DecodingKey,
    strict: Validation,
    expired_too: Validation,
    /// Seconds, as claims count in them.
    access_ttl: u64,
    refresh_ttl: u64,
}

/// What a token says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub(crate) jti: String,
    /// The user; of a refresh token the `jti` of its access token.
    pub(crate) sub: String,
    pub(crate) iat: u64,
    pub(crate) exp: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    roles: Vec<String>,
    /// The account's generation when the token was issued.
    #[serde(rename = "gen")]
    pub(crate) generation: u64,
    /// Absent in an access token, so that neither kind passes for the other.
    #[serde(rename = "use", default, skip_serializing_if = "Option::is_none")]
    purpose: Option<Purpose>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Purpose {
    Refresh,
}

/// Why a token is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Expired,
    Invalid,
}

impl Keys {
    /// # Errors
    /// [`Error::Corrupt`] when the stored key is too short to be one of ours.
    pub(crate) fn new(secret: &[u8], access_ttl: Duration, refresh_ttl: Duration) -> Result<Self, Error> {
        let corrupt = |reason: String| Error::Corrupt { reason: format!("the signing key: {reason}") };
        if secret.len() < KEY_BYTES {
            return Err(corrupt(format!("{} bytes, at least {KEY_BYTES} are needed", secret.len())));
        }
        let mut strict = Validation::new(Algorithm::HS256);
        strict.leeway = 0;
        strict.validate_nbf = true;
        strict.validate_aud = false;
        let mut expired_too = strict.clone();
        expired_too.validate_exp = false;
        Ok(Self {
            encoding: EncodingKey::from_secret(secret).map_err(|e| corrupt(e.to_string()))?,
            decoding: DecodingKey::from_secret(secret).map_err(|e| corrupt(e.to_string()))?,
            strict,
            expired_too,
            access_ttl: access_ttl.as_secs(),
            refresh_ttl: refresh_ttl.as_secs(),
        })
    }

    /// A new pair for `user`.
    pub(crate) fn issue(&self, user: &UserName, generation: u64) -> TokenPair {
        let now = unix_now();
        let access = Claims {
            jti: Uuid::now_v7().to_string(),
            sub: user.to_string(),
            iat: now,
            exp: now + self.access_ttl,
            roles: Vec::new(),
            generation,
            purpose: None,
        };
        let refresh = Claims {
            jti: Uuid::now_v7().to_string(),
            sub: access.jti.clone(),
            iat: now,
            exp: now + self.refresh_ttl,
            roles: Vec::new(),
            generation,
            purpose: Some(Purpose::Refresh),
        };
        TokenPair { access_token: self.sign(&access), refresh_token: self.sign(&refresh) }
    }

    /// An access token that is good now.
    pub(crate) fn access(&self, token: &str) -> Result<Claims, Refusal> {
        let claims = self.decode(token, &self.strict, None)?;
        // The library calls a token good within the second in which it expires.
        if claims.exp <= unix_now() { Err(Refusal::Expired) } else { Ok(claims) }
    }

    /// An access token that was good once. Its signature counts, or anybody could claim to be anybody in a refresh.
    pub(crate) fn access_even_expired(&self, token: &str) -> Result<Claims, Refusal> {
        self.decode(token, &self.expired_too, None)
    }

    /// A refresh token that is good now, whether it was used or not.
    pub(crate) fn refresh(&self, token: &str) -> Result<Claims, Refusal> {
        let claims = self.decode(token, &self.strict, Some(Purpose::Refresh))?;
        if claims.exp <= unix_now() { Err(Refusal::Expired) } else { Ok(claims) }
    }

    fn decode(&self, token: &str, rules: &Validation, purpose: Option<Purpose>) -> Result<Claims, Refusal> {
        match jsonwebtoken::decode::<Claims>(token, &self.decoding, rules) {
            Ok(data) if data.claims.purpose == purpose => Ok(data.claims),
            Ok(_) => Err(Refusal::Invalid),
            Err(error) if matches!(error.kind(), ErrorKind::ExpiredSignature) => Err(Refusal::Expired),
            Err(_) => Err(Refusal::Invalid),
        }
    }

    fn sign(&self, claims: &Claims) -> String {
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &self.encoding)
            .expect("text and numbers have a JSON form, and HS256 takes any key that is not empty")
    }
}

/// Seconds since 1970.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn keys() -> Keys {
        Keys::new(&[7; 32], 900 * SECOND, 10_800 * SECOND).unwrap()
    }

    #[test]
    fn a_pair_is_what_cosky_clients_expect() {
        let keys = keys();
        let pair = keys.issue(&UserName::new("cosky").unwrap(), 3);
        let access = keys.access(&pair.access_token).unwrap();
        let refresh = keys.refresh(&pair.refresh_token).unwrap();
        assert_eq!((access.sub.as_str(), access.generation), ("cosky", 3));
        assert_eq!(refresh.sub, access.jti);
        assert_eq!((access.exp - access.iat, refresh.exp - refresh.iat), (900, 10_800));
        let claims: serde_json::Value =
            jsonwebtoken::dangerous::insecure_decode::<serde_json::Value>(&pair.access_token).unwrap().claims;
        let names: Vec<_> = claims.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, ["exp", "gen", "iat", "jti", "sub"], "empty roles are left out");
    }

    #[test]
    fn neither_kind_passes_for_the_other() {
        let keys = keys();
        let pair = keys.issue(&UserName::new("cosky").unwrap(), 0);
        assert_eq!(keys.access(&pair.refresh_token).unwrap_err(), Refusal::Invalid);
        assert_eq!(keys.access_even_expired(&pair.refresh_token).unwrap_err(), Refusal::Invalid);
        assert_eq!(keys.refresh(&pair.access_token).unwrap_err(), Refusal::Invalid);
    }

    #[test]
    fn an_expired_token_is_expired_and_a_foreign_one_invalid() {
        let expired = Keys::new(&[7; 32], Duration::ZERO, Duration::ZERO).unwrap();
        let pair = expired.issue(&UserName::new("cosky").unwrap(), 0);
        assert_eq!(keys().access(&pair.access_token).unwrap_err(), Refusal::Expired);
        assert_eq!(keys().refresh(&pair.refresh_token).unwrap_err(), Refusal::Expired);
        assert!(keys().access_even_expired(&pair.access_token).is_ok());
        let foreign = Keys::new(&[8; 32], 900 * SECOND, SECOND).unwrap();
        assert_eq!(foreign.access_even_expired(&pair.access_token).unwrap_err(), Refusal::Invalid);
    }

    #[test]
    fn a_short_key_is_refused() {
        assert!(matches!(Keys::new(&[7; 31], SECOND, SECOND), Err(Error::Corrupt { .. })));
    }
}
