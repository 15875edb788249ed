//! The bodies, and what is checked when one is read.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use super::millis;
use crate::{
    Beat, Error, Host, Instance, Life, Metadata, Owner, Port, Registration, Schema, ServiceId,
    ServiceInstance, ServiceStat, Stat, Ttl, Weight,
};

/// The body of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// Stable per kind, for programs.
    pub code: String,
    /// For people; names the field when one is wrong.
    pub msg: String,
    /// `false`; in 401 and 403 only, as CoSky has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorized: Option<bool>,
    /// Why; in 401 and 403 only, as CoSky has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of a registration.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RegisterBody {
    /// A URI scheme, or `__` for a process that listens to nothing.
    pub schema: String,
    /// An IP address or host name.
    pub host: String,
    /// From 1 to 65535; a decimal text is taken as well.
    #[serde(deserialize_with = "integer")]
    pub port: i64,
    /// The share in balancing, 1 when absent; 0 is never chosen.
    #[serde(default = "one", deserialize_with = "integer")]
    pub weight: i64,
    /// Whether it goes when its beats stop; true when absent.
    #[serde(default = "yes")]
    pub is_ephemeral: bool,
    /// Texts by key; numbers and booleans are taken as their text.
    #[serde(default, deserialize_with = "scalars")]
    pub metadata: BTreeMap<String, String>,
    /// The instance's own TTL, 3 to 86,400; the server's default when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<i64>,
    /// Who registers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// One instance in a batch of beats.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeatBody<'a> {
    /// The service.
    #[serde(borrow)]
    pub service_id: std::borrow::Cow<'a, str>,
    /// The instance.
    #[serde(borrow)]
    pub instance_id: std::borrow::Cow<'a, str>,
}

/// The answer to one beat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeatAnswer {
    /// Always true: what cannot be renewed is answered 404 or 410.
    pub renewed: bool,
    /// Remaining life; absent for a permanent instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining_ms: Option<u64>,
    /// Its end in seconds since 1970, −1 for ever.
    pub ttl_at: i64,
}

/// The answer to a batch of beats.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BeatsAnswer {
    /// How many were renewed.
    pub renewed: usize,
    /// Ids to register again.
    pub unknown: Vec<String>,
    /// Ids that somebody deregistered.
    pub gone: Vec<String>,
}

/// An instance as CoSky shows it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InstanceBody {
    /// `service@schema#host#port`.
    pub instance_id: String,
    /// The service.
    pub service_id: String,
    /// The URI scheme, `__` for none.
    pub schema: String,
    /// The host, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u32,
    /// `schema://host:port`; null when there is none.
    #[serde(default)]
    pub uri: Option<String>,
    /// Whether the scheme is `https` or `wss`.
    #[serde(default)]
    pub is_secure: bool,
    /// The share in balancing.
    pub weight: u32,
    /// Whether it goes when its beats stop.
    pub is_ephemeral: bool,
    /// The end of its life in seconds since 1970, −1 for ever.
    pub ttl_at: i64,
    /// Whether its life was over when it was read.
    #[serde(default)]
    pub is_expired: bool,
    /// What it says of itself.
    pub metadata: BTreeMap<String, String>,
}

/// A namespace in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StatBody {
    /// Namespaces in the index.
    pub namespaces: u64,
    /// Services.
    pub services: ServicesStatBody,
    /// Live instances.
    pub instances: u64,
    /// Configs.
    pub configs: u64,
}

/// Services in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServicesStatBody {
    /// Listed services.
    pub total: u64,
    /// Those with a live instance.
    pub health: u64,
}

/// How many live instances a service has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceStatBody {
    /// The service.
    pub service_id: String,
    /// Its live instances.
    pub instance_count: u64,
}

/// The body of a login.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LoginBody {
    /// The password in plain text.
    pub password: String,
}

/// A pair of tokens: the answer to a login, and the body and answer of a refresh.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenPair {
    /// Goes into `Authorization: Bearer …`.
    pub access_token: String,
    /// Buys one new pair.
    pub refresh_token: String,
}

/// The body that asks for an API token.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewTokenBody {
    /// What it is for, in its maker's words.
    pub name: String,
    /// How long it is good; for ever when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_in_seconds: Option<u64>,
}

/// An API token in the list. `token` is there once, in the answer that made it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TokenBody {
    /// Names it; not secret.
    pub id: String,
    /// What it is for.
    pub name: String,
    /// For whom it acts.
    pub user: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// Seconds since 1970; never, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// The secret itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// What the health routes answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthBody {
    /// `UP`, `DEGRADED` or `DOWN`.
    pub status: String,
    /// The indicators that fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// `snapshot` of a watch.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotBody {
    /// The instances of each service in scope.
    pub services: BTreeMap<String, Vec<InstanceBody>>,
    /// The configs in scope.
    #[serde(default)]
    pub configs: BTreeMap<String, ConfigMark>,
    /// One of `live`, `stale`, `protected`.
    pub state: String,
    /// Which data it was taken of, as `id:opened:opening`. It is what it was before when all is the same, and was opened
    /// again when the second number, which counts openings, has grown. Anything else means that the data was lost or
    /// replaced. Servers that are older do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store: Option<String>,
}

/// The answer to a digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DigestBody {
    /// 16 hexadecimal digits.
    #[serde(with = "hex")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "00000000deadbeef"))]
    pub digest: u64,
}

/// Which content a config has.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConfigMark {
    /// Its version.
    pub version: u64,
    /// SHA-256 of its content.
    pub hash: String,
}

/// `instance` of a watch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InstanceEventBody {
    /// `register`, `deregister`, `expired` or `set_metadata`.
    pub op: String,
    /// The service.
    pub service_id: String,
    /// The instance.
    pub instance_id: String,
    /// Its new state; null when it is gone.
    pub instance: Option<InstanceBody>,
}

/// `service` of a watch.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ServiceEventBody {
    /// `set` or `remove`.
    pub op: String,
    /// The service.
    pub service_id: String,
}

/// `state` of a watch.
#[derive(Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateBody {
    /// `live`, `stale`, `protected` or `draining`.
    pub state: String,
}

mod hex {
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{number:016x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        u64::from_str_radix(&text, 16).map_err(|_| serde::de::Error::custom("must be hexadecimal digits"))
    }
}

fn one() -> i64 {
    1
}

fn yes() -> bool {
    true
}

/// A whole number, or its decimal text as CoSky takes it.
fn integer<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(i64),
        Text(String),
        Other(serde::de::IgnoredAny),
    }
    let number = match Form::deserialize(deserializer)? {
        Form::Number(number) => Some(number),
        Form::Text(text) => text.parse().ok(),
        Form::Other(_) => None,
    };
    number.ok_or_else(|| serde::de::Error::custom("must be a whole number"))
}

/// An object of texts, numbers and booleans; the latter two as their text, as CoSky takes them.
fn scalars<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let values = BTreeMap::<String, serde_json::Value>::deserialize(deserializer)?;
    let text = |(key, value): (String, serde_json::Value)| match value {
        serde_json::Value::String(text) => Ok((key, text)),
        serde_json::Value::Number(_) | serde_json::Value::Bool(_) => Ok((key, value.to_string())),
        _ => Err(serde::de::Error::custom(format!("metadata.{key}: must be a string"))),
    };
    values.into_iter().map(text).collect()
}

impl RegisterBody {
    /// Checks every field.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] or [`Error::TooLarge`] that names the field.
    pub fn check(self, service: ServiceId) -> Result<Registration, Error> {
        Ok(Registration {
            service,
            schema: Schema::new(&self.schema)?,
            host: Host::new(&self.host)?,
            port: Port::new(self.port)?,
            weight: Weight::new(self.weight)?,
            ephemeral: self.is_ephemeral,
            metadata: Metadata::new(self.metadata)?,
            ttl: self.ttl_seconds.map(Ttl::from_api).transpose()?,
            owner: self.owner.as_deref().map(Owner::new).transpose()?,
        })
    }
}

impl From<&Registration> for RegisterBody {
    fn from(new: &Registration) -> Self {
        Self {
            schema: new.schema.as_str().to_owned(),
            host: new.host.as_str().to_owned(),
            port: new.port.get().into(),
            weight: new.weight.get().into(),
            is_ephemeral: new.ephemeral,
            metadata: new.metadata.iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            ttl_seconds: new.ttl.map(|ttl| ttl.seconds().into()),
            owner: new.owner.as_ref().map(|owner| owner.as_str().to_owned()),
        }
    }
}

impl BeatAnswer {
    /// The answer to a beat that renewed.
    pub fn renewed(life: Life) -> Self {
        Self { renewed: true, remaining_ms: life.remaining().map(millis), ttl_at: life.ttl_at() }
    }

    /// The life that it tells of.
    pub fn life(&self) -> Life {
        match self.remaining_ms {
            None => Life::Permanent,
            Some(ms) => Life::Remaining { remaining: Duration::from_millis(ms), ttl_at: self.ttl_at },
        }
    }
}

impl BeatsAnswer {
    /// Sorts the answers of a batch by kind.
    pub fn new<'a>(ids: impl IntoIterator<Item = &'a str>, beats: &[Beat]) -> Self {
        let mut answer = Self::default();
        for (id, beat) in ids.into_iter().zip(beats) {
            match beat {
                Beat::Renewed(_) => answer.renewed += 1,
                Beat::Unknown => answer.unknown.push(id.to_owned()),
                Beat::Gone => answer.gone.push(id.to_owned()),
            }
        }
        answer
    }
}

impl InstanceBody {
    /// What `self` tells, seen `remaining` before its end. Takes what a server says as it is: a name that a JVM writer
    /// made may break our rules.
    ///
    /// # Errors
    /// [`Error::Corrupt`] when a field is not even a name.
    pub fn read(self, remaining: Option<Duration>) -> Result<ServiceInstance, Error> {
        let corrupt =
            |error: Error| Error::Corrupt { reason: format!("instance {}: {error}", self.instance_id) };
        let registration = Registration {
            service: ServiceId::new(&self.service_id).map_err(corrupt)?,
            schema: Schema::new(&self.schema).map_err(corrupt)?,
            host: Host::new(&self.host).map_err(corrupt)?,
            port: Port::stored(self.port),
            weight: Weight::new(self.weight.into()).map_err(corrupt)?,
            ephemeral: self.is_ephemeral,
            metadata: Metadata::new(self.metadata.clone()).map_err(corrupt)?,
            ttl: None,
            owner: None,
        };
        let life = match (self.is_ephemeral, remaining) {
            (false, _) => Life::Permanent,
            (true, remaining) => {
                Life::Remaining { remaining: remaining.unwrap_or_default(), ttl_at: self.ttl_at }
            }
        };
        Ok(ServiceInstance::new(Arc::new(Instance::from(registration)), life))
    }
}

impl From<Stat> for StatBody {
    fn from(stat: Stat) -> Self {
        Self {
            namespaces: stat.namespaces,
            services: ServicesStatBody { total: stat.services, health: stat.healthy_services },
            instances: stat.instances,
            configs: stat.configs,
        }
    }
}

impl From<StatBody> for Stat {
    fn from(body: StatBody) -> Self {
        Self {
            namespaces: body.namespaces,
            services: body.services.total,
            healthy_services: body.services.health,
            instances: body.instances,
            configs: body.configs,
        }
    }
}

impl From<ServiceStat> for ServiceStatBody {
    fn from(stat: ServiceStat) -> Self {
        Self { service_id: stat.service.to_string(), instance_count: stat.instances }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_take_what_cosky_takes() {
        let parse = |text| serde_json::from_str::<RegisterBody>(text);
        let body =
            parse(r#"{"schema":"http","host":"h","port":"81","metadata":{"n":1,"b":true},"foo":1}"#).unwrap();
        let new = body.check(ServiceId::new("a").unwrap()).unwrap();
        assert_eq!((new.port.get(), new.weight.get(), new.ephemeral), (81, 1, true));
        assert_eq!(new.metadata, Metadata::new([("n", "1"), ("b", "true")]).unwrap());
        for bad in [
            r#"{"schema":"http","host":"h"}"#,
            r#"{"schema":"http","host":"h","port":80.5}"#,
            r#"{"schema":"http","host":"h","port":null}"#,
            r#"{"schema":"http","host":"h","port":80,"weight":1.5}"#,
            r#"{"schema":"http","host":"h","port":80,"weight":1e308}"#,
            r#"{"schema":"http","host":"h","port":80,"weight":NaN}"#,
            r#"{"schema":"http","host":"h","port":80,"metadata":null}"#,
            r#"{"schema":"http","host":"h","port":80,"metadata":{"a":null}}"#,
            r#"{"schema":"http","host":"h","port":80,"metadata":{"a":[]}}"#,
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
