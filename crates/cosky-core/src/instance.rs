//! Instances: what is registered, how it is named, and how long it still lives.

use std::{
    borrow::Borrow,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use serde::{Serialize, Serializer};

use crate::{Error, Host, Metadata, Owner, Port, Schema, ServiceId, Ttl, Weight, digest, wire};

/// The metadata key of an instance's status.
pub const STATUS: &str = "instance_status";

/// `service@schema#host#port` (compat §1.3). Unique in its namespace.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceId(Arc<str>);

/// A request to register an instance. Fields that have rules of their own are checked by their types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The service it belongs to.
    pub service: ServiceId,
    /// How to speak to it.
    pub schema: Schema,
    /// Where it is.
    pub host: Host,
    /// Its port.
    pub port: Port,
    /// Its share in balancing.
    pub weight: Weight,
    /// Whether it goes when its beats stop. A permanent instance stays until somebody deregisters it.
    pub ephemeral: bool,
    /// What it says of itself.
    pub metadata: Metadata,
    /// Its own TTL; without one the store's default counts.
    pub ttl: Option<Ttl>,
    /// Who registers it. Without one the present owner stays, and a new instance gets a fresh one.
    pub owner: Option<Owner>,
}

/// A registered instance without its remaining life. Immutable and shared; its JSON is made at most once.
#[derive(Debug)]
pub struct Instance {
    id: InstanceId,
    service: ServiceId,
    schema: Schema,
    host: Host,
    port: Port,
    weight: Weight,
    ephemeral: bool,
    metadata: Metadata,
    /// See [`crate::digest`].
    number: u64,
    json: OnceLock<wire::Fragments>,
}

/// How long an instance still lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// Until somebody deregisters it.
    Permanent,
    /// Until its beats stop.
    Remaining {
        /// Time left, by the store's clock, when it was read.
        remaining: Duration,
        /// The end in seconds since 1970, for CoSky's readers.
        ttl_at: i64,
    },
}

/// An instance as it was read: what it is, and how long it still lived at that moment. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceInstance {
    instance: Arc<Instance>,
    life: Life,
}

impl InstanceId {
    /// The id of what stands at this address.
    pub fn of(service: &ServiceId, schema: &Schema, host: &Host, port: Port) -> Self {
        let port = port.get().to_string();
        Self([service.as_str(), "@", schema.as_str(), "#", host.as_str(), "#", &port].concat().into())
    }

    /// Takes `text` apart and puts it together again, so that an IPv6 host in brackets finds its instance.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] of `instanceId` when it does not follow the grammar.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let grammar = || Error::invalid("instanceId", "must be service@schema#host#port");
        let (service, address) = text.split_once('@').ok_or_else(grammar)?;
        let mut parts = address.split('#');
        let (Some(schema), Some(host), Some(port), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(grammar());
        };
        let port: i64 = port.parse().map_err(|_| grammar())?;
        Ok(Self::of(&ServiceId::new(service)?, &Schema::new(schema)?, &Host::new(host)?, Port::new(port)?))
    }

    /// An id as a store or server reports it.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Borrow<str> for InstanceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for InstanceId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl Registration {
    /// An ephemeral instance of weight 1 without metadata.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the field.
    pub fn new(service: ServiceId, schema: &str, host: &str, port: i64) -> Result<Self, Error> {
        Ok(Self {
            service,
            schema: Schema::new(schema)?,
            host: Host::new(host)?,
            port: Port::new(port)?,
            weight: Weight::default(),
            ephemeral: true,
            metadata: Metadata::default(),
            ttl: None,
            owner: None,
        })
    }

    /// The id that the instance will have.
    pub fn id(&self) -> InstanceId {
        InstanceId::of(&self.service, &self.schema, &self.host, self.port)
    }
}

impl From<Registration> for Instance {
    fn from(new: Registration) -> Self {
        Self {
            id: new.id(),
            service: new.service,
            schema: new.schema,
            host: new.host,
            port: new.port,
            weight: new.weight,
            ephemeral: new.ephemeral,
            metadata: new.metadata,
            number: 0,
            json: OnceLock::new(),
        }
        .numbered()
    }
}

impl Instance {
    /// This instance with other metadata.
    pub fn with_metadata(&self, metadata: Metadata) -> Self {
        Self {
            id: self.id.clone(),
            service: self.service.clone(),
            schema: self.schema.clone(),
            host: self.host.clone(),
            port: self.port,
            weight: self.weight,
            ephemeral: self.ephemeral,
            metadata,
            number: 0,
            json: OnceLock::new(),
        }
        .numbered()
    }

    /// Its id.
    pub fn id(&self) -> &InstanceId {
        &self.id
    }

    /// The service it belongs to.
    pub fn service(&self) -> &ServiceId {
        &self.service
    }

    /// How to speak to it.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Where it is.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Its port.
    pub fn port(&self) -> Port {
        self.port
    }

    /// Its share in balancing.
    pub fn weight(&self) -> Weight {
        self.weight
    }

    /// Whether it goes when its beats stop.
    pub fn is_ephemeral(&self) -> bool {
        self.ephemeral
    }

    /// What it says of itself.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Whether its status lets balancers choose it: metadata `instance_status` absent or `UP`.
    pub fn is_in_service(&self) -> bool {
        self.metadata.get(STATUS).is_none_or(|status| status == "UP")
    }

    /// `schema://host:port`; `None` for a non-web instance, which has no valid URI.
    pub fn uri(&self) -> Option<String> {
        (self.schema.as_str() != Schema::NONE)
            .then(|| format!("{}://{}:{}", self.schema.as_str(), self.host.in_uri(), self.port.get()))
    }

    fn numbered(mut self) -> Self {
        self.number = digest::compute(&self);
        self
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn json(&self) -> &wire::Fragments {
        self.json.get_or_init(|| wire::Fragments::of(self))
    }
}

/// Two instances are equal when everything that was registered is.
impl PartialEq for Instance {
    fn eq(&self, other: &Self) -> bool {
        (&self.id, &self.service, self.weight, self.ephemeral, &self.metadata)
            == (&other.id, &other.service, other.weight, other.ephemeral, &other.metadata)
    }
}

impl Eq for Instance {}

impl Life {
    /// The time left; `None` when there is no end.
    pub fn remaining(self) -> Option<Duration> {
        match self {
            Self::Permanent => None,
            Self::Remaining { remaining, .. } => Some(remaining),
        }
    }

    /// The end in seconds since 1970, −1 for ever.
    pub fn ttl_at(self) -> i64 {
        match self {
            Self::Permanent => -1,
            Self::Remaining { ttl_at, .. } => ttl_at,
        }
    }

    /// Whether nothing is left.
    pub fn is_expired(self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }
}

impl ServiceInstance {
    /// Puts an instance and its remaining life together.
    pub fn new(instance: Arc<Instance>, life: Life) -> Self {
        Self { instance, life }
    }

    /// What was registered.
    pub fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }

    /// How long it still lived when it was read.
    pub fn life(&self) -> Life {
        self.life
    }
}

impl std::ops::Deref for ServiceInstance {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.instance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_the_grammar() {
        let id = InstanceId::parse("order@http#[2001:DB8::1]#8080").unwrap();
        assert_eq!(id.as_str(), "order@http#2001:db8::1#8080");
        for text in [
            "garbage",
            "order@http",
            "a@b@http#h#1",
            "order@http#h#x",
            "order@http#h#1#2",
            "@http#h#1",
            "order@http#h#0",
        ] {
            assert!(InstanceId::parse(text).is_err(), "{text:?}");
        }
        assert_eq!(InstanceId::parse("batch@__#10.0.0.5#4242").unwrap().as_str(), "batch@__#10.0.0.5#4242");
    }

    #[test]
    fn uris_put_ipv6_in_brackets_and_non_web_instances_have_none() {
        let at = |schema, host| {
            Instance::from(Registration::new(ServiceId::new("a").unwrap(), schema, host, 8080).unwrap()).uri()
        };
        assert_eq!(at("http", "2001:db8::1").as_deref(), Some("http://[2001:db8::1]:8080"));
        assert_eq!(at("__", "10.0.0.5"), None);
    }
}
