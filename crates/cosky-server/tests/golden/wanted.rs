//! Where this server differs from CoSky on purpose, call by call, each with its reason.

use serde_json::Value;

use super::answer::{Answer, comparable};

/// A wanted difference from the recording. One that no longer differs fails the test.
pub(crate) struct Wanted {
    /// `part/call`.
    pub(crate) call: &'static str,
    /// The status, where it is another one.
    status: Option<u16>,
    body: Body,
    /// Why it is better so.
    reason: &'static str,
}

/// What the body is instead.
enum Body {
    /// This JSON.
    Json(&'static str),
    /// The recorded list without these instances.
    Without(&'static [&'static str]),
}

/// An error whose `code` tells the kind, where CoSky says `0001`.
const fn code(call: &'static str, body: &'static str) -> Wanted {
    let reason = "a program must be able to tell errors apart, and CoSky's code is always 0001";
    Wanted { call, status: None, body: Body::Json(body), reason }
}

/// 401, with `code` and `msg` beside CoSky's fields.
const fn denied(call: &'static str) -> Wanted {
    let body = r#"{"code":"unauthorized","msg":"<text>","authorized":false,"reason":"<text>"}"#;
    let reason = "every error has code and msg; CoSky's fields stay beside them";
    Wanted { call, status: None, body: Body::Json(body), reason }
}

/// An error with another status than CoSky's.
const fn refused(call: &'static str, status: u16, body: &'static str, reason: &'static str) -> Wanted {
    Wanted { call, status: Some(status), body: Body::Json(body), reason }
}

/// An answer that differs because of an earlier one.
const fn follows(call: &'static str, body: Body, reason: &'static str) -> Wanted {
    Wanted { call, status: None, body, reason }
}

const LOGIN_FAILED: &str = r#"{"code":"login_failed","msg":"<text>"}"#;
const REFRESH_FAILED: &str = r#"{"code":"refresh_failed","msg":"<text>"}"#;
const INVALID_BODY: &str = r#"{"code":"invalid_body","msg":"<text>"}"#;
const INVALID_ARGUMENT: &str = r#"{"code":"invalid_argument","msg":"<text>"}"#;
const NOT_FOUND: &str = r#"{"code":"not_found","msg":"<text>"}"#;
const WRONG_METHOD: &str = r#"{"code":"method_not_allowed","msg":"<text>"}"#;
const WRONG_MEDIA_TYPE: &str = r#"{"code":"unsupported_media_type","msg":"<text>"}"#;

const EVERY_MISTAKE: &str = "CoSky answers 400 to every mistake, whatever its kind";
const REFUSED_HERE: &str = "three of the instances that CoSky took are refused here";

/// The whole list, in the order of the calls.
pub(crate) const WANTED: &[Wanted] = &[
    code("login/root, wrong password", LOGIN_FAILED),
    code("login/unknown user", LOGIN_FAILED),
    code("login/no body", INVALID_BODY),
    code("login/no password field", INVALID_BODY),
    code("login/broken JSON", INVALID_BODY),
    refused(
        "login/refresh with a foreign path user",
        400,
        REFRESH_FAILED,
        "a refresh under another user's path is a mistake or an attack; CoSky ignores the path",
    ),
    code("login/refresh with garbage", REFRESH_FAILED),
    denied("access/namespaces, nobody"),
    denied("access/namespaces, garbage token"),
    denied("access/namespaces, Basic"),
    refused("access/unknown path, root", 404, NOT_FOUND, EVERY_MISTAKE),
    denied("access/unknown path, nobody"),
    refused("access/wrong method", 405, WRONG_METHOD, EVERY_MISTAKE),
    code("namespaces/blank", INVALID_ARGUMENT),
    code("services-input/no host", INVALID_BODY),
    code("services-input/no port", INVALID_BODY),
    code("services-input/no schema", INVALID_BODY),
    code("services-input/text port", INVALID_BODY),
    refused(
        "services-input/port 70000",
        400,
        INVALID_ARGUMENT,
        "no socket has that port, so nobody could call the instance",
    ),
    refused(
        "services-input/negative weight",
        400,
        INVALID_ARGUMENT,
        "a share below zero means nothing, and with one CoSky's own balancers choose wrongly",
    ),
    code("services-input/metadata key _x", INVALID_ARGUMENT),
    code("services-input/null metadata", INVALID_BODY),
    refused("services-input/empty host", 400, INVALID_ARGUMENT, "nobody could call the instance"),
    code("services-input/broken JSON", INVALID_BODY),
    refused("services-input/no content type", 415, WRONG_MEDIA_TYPE, EVERY_MISTAKE),
    follows(
        "services-input/what came of it",
        Body::Without(&["input@http##88", "input@http#h#70000", "input@http#h#82"]),
        REFUSED_HERE,
    ),
    code("services/metadata _x", INVALID_ARGUMENT),
    refused(
        "services/metadata null value",
        400,
        INVALID_ARGUMENT,
        "CoSky stores the text \"null\", which nobody has sent",
    ),
    code("services/metadata list", INVALID_BODY),
    follows(
        "services/stats",
        Body::Json(r#"[{"serviceId":"order","instanceCount":2},{"serviceId":"input","instanceCount":4}]"#),
        REFUSED_HERE,
    ),
    follows(
        "services/stat",
        Body::Json(r#"{"namespaces":2,"services":{"total":2,"health":2},"instances":6,"configs":0}"#),
        REFUSED_HERE,
    ),
];

impl Wanted {
    /// Changes what was recorded into what is wanted here.
    ///
    /// # Errors
    /// When the recording says the same already, so that the entry has to go.
    pub(crate) fn apply(&self, expected: &mut Answer) -> Result<(), String> {
        let recorded = expected.clone();
        expected.status = self.status.unwrap_or(expected.status);
        expected.body = match self.body {
            Body::Json(text) => comparable(None, serde_json::from_str(text).expect("the table holds JSON")),
            Body::Without(ids) => without(&recorded.body, ids)?,
        };
        if self.status == Some(recorded.status) || expected.body == recorded.body {
            let reason = self.reason;
            return Err(format!("the table says that this differs ({reason}), but the recording has it so"));
        }
        Ok(())
    }
}

fn without(list: &Value, ids: &[&str]) -> Result<Value, String> {
    let mut list = list.as_array().ok_or("the recording has no list")?.clone();
    for id in ids {
        let before = list.len();
        list.retain(|instance| instance["instanceId"] != *id);
        if list.len() == before {
            return Err(format!("the recording has no {id}"));
        }
    }
    Ok(list.into())
}
