//! Logging in, and looking into what came of it.

use cosky_core::account::ROOT;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};

use super::{
    PASSWORD,
    client::{Answer, Client},
};

/// The signing key that CoSky's public `application.yaml` has.
pub(crate) const PUBLISHED_KEY: &[u8] = b"FyN0Igd80Gas3stTavArGKOYnS9uLWGA$";

pub(crate) async fn login(client: &mut Client, user: &str, password: &str) -> Answer {
    client.json("POST", &format!("/v1/authenticate/{user}/login"), &json!({ "password": password })).await
}

/// A fresh pair of root's.
pub(crate) async fn pair(client: &mut Client) -> Value {
    login(client, ROOT, PASSWORD).await.expect(200).value()
}

pub(crate) async fn refresh(client: &mut Client, user: &str, pair: &Value) -> Answer {
    client.json("POST", &format!("/v1/authenticate/{user}/refresh"), pair).await
}

pub(crate) fn claims(token: &Value) -> Value {
    let token = token.as_str().unwrap();
    jsonwebtoken::dangerous::insecure_decode::<Value>(token).unwrap().claims
}

pub(crate) fn sign(algorithm: Algorithm, claims: &Value, key: &[u8]) -> String {
    jsonwebtoken::encode(&Header::new(algorithm), claims, &EncodingKey::from_secret(key).unwrap()).unwrap()
}
