//! One answer, in the form in which two servers are compared.

use std::{fmt, time::SystemTime};

use serde::Deserialize;
use serde_json::{Map, Value};

/// A line of the recording.
#[derive(Debug, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) part: String,
    pub(crate) call: String,
    pub(crate) method: String,
    pub(crate) path: String,
    #[serde(rename = "as")]
    pub(crate) who: Option<String>,
    status: u16,
    #[serde(rename = "type")]
    media_type: String,
    body: Value,
}

/// What a server answered, with lists sorted and what changes from run to run replaced.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) media_type: String,
    pub(crate) body: Value,
}

impl Recorded {
    /// `part/call`.
    pub(crate) fn name(&self) -> String {
        format!("{}/{}", self.part, self.call)
    }

    pub(crate) fn answer(&self) -> Answer {
        Answer {
            status: self.status,
            media_type: self.media_type.clone(),
            body: comparable(None, self.body.clone()),
        }
    }
}

impl Answer {
    pub(crate) async fn read(response: reqwest::Response) -> Self {
        let status = response.status().as_u16();
        let content_type = response.headers().get("content-type").map(|value| value.to_str().unwrap());
        let media_type = content_type.unwrap_or_default().split(';').next().unwrap().to_owned();
        let text = response.text().await.unwrap();
        let body = match serde_json::from_str(&text) {
            Ok(value) => value,
            Err(_) if text.is_empty() => Value::Null,
            Err(_) => serde_json::json!({ "text": text }),
        };
        Self { status, media_type, body: comparable(None, body) }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.status, self.media_type, self.body)
    }
}

/// `value`, found under `key`, with sorted lists and without what differs from run to run.
pub(crate) fn comparable(key: Option<&str>, value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().filter(|(key, _)| key != "delegate").collect();
            fields.sort_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(Map::from_iter(fields.into_iter().map(|(key, value)| {
                let value = comparable(Some(&key), value);
                (key, value)
            })))
        }
        Value::Array(items) => {
            let mut items: Vec<_> = items.into_iter().map(|item| comparable(None, item)).collect();
            items.sort_by_cached_key(Value::to_string);
            Value::Array(items)
        }
        Value::String(text) if !text.is_empty() && matches!(key, Some("msg" | "reason")) => "<text>".into(),
        Value::String(text) if is_jwt(&text) => "<jwt>".into(),
        Value::Number(number) if number.as_i64().is_some_and(is_about_now) => "@time".into(),
        other => other,
    }
}

fn is_jwt(text: &str) -> bool {
    text.starts_with("eyJ") && text.split('.').count() == 3
}

/// Seconds since 1970 within ten minutes of now.
fn is_about_now(seconds: i64) -> bool {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    seconds.abs_diff(i64::try_from(now).unwrap()) < 600
}
