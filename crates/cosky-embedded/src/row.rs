//! The rows of the file: keys, and values in postcard form.
//!
//! A key is its kind and its names with NUL between them, which no name can hold. A value ends with a checksum of key and
//! value, so that a row whose bytes have changed on the disk is noticed when it is read.

use cosky_core::{
    ConsumerName, Host, Instance, InstanceId, Metadata, Namespace, Owner, Port, Registration, Schema,
    ServiceId, Ttl, UserName, Weight,
    account::{Account, ApiToken},
};
use serde::{Deserialize, Serialize};

/// Which row: its kind with the names that make its key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Namespace(Namespace),
    Service(Namespace, ServiceId),
    Instance(Namespace, ServiceId, InstanceId),
    Gone(Namespace, InstanceId),
    Dependency(Namespace, ConsumerName, ConsumerName),
    Account(UserName),
    ApiToken(String),
    UsedRefresh(String),
    Signing,
}

/// A registered instance.
#[derive(Serialize, Deserialize)]
pub(crate) struct InstanceRow<'a> {
    schema: &'a str,
    host: &'a str,
    port: u32,
    weight: u32,
    ephemeral: bool,
    #[serde(borrow)]
    metadata: Vec<(&'a str, &'a str)>,
    ttl: u32,
    owner: &'a str,
}

/// That an instance was deregistered.
#[derive(Serialize, Deserialize)]
pub(crate) struct GoneRow {
    owner: String,
    ttl: u32,
}

#[derive(Serialize, Deserialize)]
struct AccountRow {
    password_hash: String,
    generation: u64,
}

#[derive(Serialize, Deserialize)]
struct ApiTokenRow {
    name: String,
    user: String,
    digest: [u8; 32],
    created_at: u64,
    expires_at: Option<u64>,
}

/// A row read from the file.
pub(crate) enum Row {
    Namespace(Namespace),
    Service(Namespace, ServiceId),
    Instance(Namespace, Instance, Ttl, Owner),
    Gone(Namespace, InstanceId, Owner, Ttl),
    Dependency(Namespace, ConsumerName, ConsumerName, u64),
    Account(UserName, Account),
    ApiToken(ApiToken),
    UsedRefresh(String, u64),
    SigningKey(Vec<u8>),
}

impl Key {
    /// The key as it stands in the file.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Namespace(namespace) => format!("n\0{namespace}"),
            Self::Service(namespace, service) => format!("s\0{namespace}\0{service}"),
            Self::Instance(namespace, service, id) => format!("i\0{namespace}\0{service}\0{id}"),
            Self::Gone(namespace, id) => format!("g\0{namespace}\0{id}"),
            Self::Dependency(namespace, consumer, producer) => {
                format!("t\0{namespace}\0{consumer}\0{producer}")
            }
            Self::Account(user) => format!("u\0{user}"),
            Self::ApiToken(id) => format!("a\0{id}"),
            Self::UsedRefresh(id) => format!("r\0{id}"),
            Self::Signing => "k".into(),
        }
    }

    /// Where the rows of a namespace's services begin.
    pub(crate) fn services_of(namespace: &Namespace) -> String {
        format!("s\0{namespace}\0")
    }

    /// Where the rows of a namespace's instances begin.
    pub(crate) fn instances_in(namespace: &Namespace) -> String {
        format!("i\0{namespace}\0")
    }

    /// Where the rows of a service's instances begin.
    pub(crate) fn instances_of(namespace: &Namespace, service: &ServiceId) -> String {
        format!("i\0{namespace}\0{service}\0")
    }

    /// Where the rows of a namespace's topology begin.
    pub(crate) fn dependencies_of(namespace: &Namespace) -> String {
        format!("t\0{namespace}\0")
    }
}

impl<'a> InstanceRow<'a> {
    pub(crate) fn new(instance: &'a Instance, ttl: Ttl, owner: &'a Owner) -> Self {
        Self {
            schema: instance.schema().as_str(),
            host: instance.host().as_str(),
            port: instance.port().get(),
            weight: instance.weight().get(),
            ephemeral: instance.is_ephemeral(),
            metadata: instance.metadata().iter().collect(),
            ttl: ttl.seconds(),
            owner: owner.as_str(),
        }
    }

    pub(crate) fn read(self, service: ServiceId) -> cosky_core::Result<(Instance, Ttl, Owner)> {
        let instance = Instance::from(Registration {
            service,
            schema: Schema::new(self.schema)?,
            host: Host::new(self.host)?,
            port: Port::stored(self.port),
            weight: Weight::new(self.weight.into())?,
            ephemeral: self.ephemeral,
            metadata: Metadata::new(self.metadata)?,
            ttl: None,
            owner: None,
        });
        Ok((instance, Ttl::from_seconds(self.ttl.into())?, Owner::new(self.owner)?))
    }
}

impl GoneRow {
    pub(crate) fn new(owner: &Owner, ttl: Ttl) -> Self {
        Self { owner: owner.as_str().into(), ttl: ttl.seconds() }
    }

    pub(crate) fn read(self) -> cosky_core::Result<(Owner, Ttl)> {
        Ok((Owner::new(&self.owner)?, Ttl::from_seconds(self.ttl.into())?))
    }
}

/// The value of an account's row.
pub(crate) fn account(account: &Account) -> Vec<u8> {
    encode(&AccountRow { password_hash: account.password_hash.clone(), generation: account.generation })
}

/// The value of an API token's row.
pub(crate) fn api_token(token: &ApiToken) -> Vec<u8> {
    encode(&ApiTokenRow {
        name: token.name.clone(),
        user: token.user.to_string(),
        digest: token.digest,
        created_at: token.created_at,
        expires_at: token.expires_at,
    })
}

/// Bytes of a row's checksum.
const CHECKSUM: usize = 4;

/// A value as it stands in the file: with its checksum.
pub(crate) fn seal(key: &str, value: &[u8]) -> Vec<u8> {
    [value, &checksum(key, value)].concat()
}

/// The value without its checksum.
fn unseal<'a>(key: &str, sealed: &'a [u8]) -> Result<&'a [u8], String> {
    let (value, found) = sealed.split_last_chunk::<CHECKSUM>().ok_or("it has no checksum")?;
    if *found == checksum(key, value) { Ok(value) } else { Err("its checksum does not fit".into()) }
}

fn checksum(key: &str, value: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(key.as_bytes());
    hasher.update(value);
    hasher.finalize().to_le_bytes()
}

/// The value of any row.
pub(crate) fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("rows hold numbers, texts and lists, which all have a postcard form")
}

/// Reads a value.
///
/// # Errors
/// What is wrong with it, in words.
pub(crate) fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, String> {
    postcard::from_bytes(value).map_err(|error| error.to_string())
}

/// The names of the row before, which the next row nearly always repeats: rows are read in the order of their keys.
#[derive(Default)]
pub(crate) struct Names {
    namespace: Option<Namespace>,
    service: Option<ServiceId>,
}

impl Names {
    fn namespace(&mut self, text: &str) -> cosky_core::Result<Namespace> {
        match &self.namespace {
            Some(known) if known.as_str() == text => Ok(known.clone()),
            _ => Ok(self.namespace.insert(Namespace::new(text)?).clone()),
        }
    }

    fn service(&mut self, text: &str) -> cosky_core::Result<ServiceId> {
        match &self.service {
            Some(known) if known.as_str() == text => Ok(known.clone()),
            _ => Ok(self.service.insert(ServiceId::new(text)?).clone()),
        }
    }
}

impl Row {
    /// Reads a row of the file.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub(crate) fn read(key: &str, sealed: &[u8], names: &mut Names) -> Result<Self, String> {
        let value = unseal(key, sealed)?;
        let rule = |error: cosky_core::Error| error.to_string();
        let mut parts = [""; 5];
        let mut count = 0;
        for part in key.split('\0') {
            *parts.get_mut(count).ok_or("its key has too many parts")? = part;
            count += 1;
        }
        Ok(match parts[..count] {
            ["n", namespace] => Self::Namespace(names.namespace(namespace).map_err(rule)?),
            ["s", namespace, service] => Self::Service(
                names.namespace(namespace).map_err(rule)?,
                names.service(service).map_err(rule)?,
            ),
            ["i", namespace, service, id] => {
                let service = names.service(service).map_err(rule)?;
                let (instance, ttl, owner) = decode::<InstanceRow<'_>>(value)?.read(service).map_err(rule)?;
                if instance.id().as_str() != id {
                    return Err(format!("its content belongs to {}", instance.id()));
                }
                Self::Instance(names.namespace(namespace).map_err(rule)?, instance, ttl, owner)
            }
            ["g", namespace, id] => {
                let (owner, ttl) = decode::<GoneRow>(value)?.read().map_err(rule)?;
                Self::Gone(names.namespace(namespace).map_err(rule)?, InstanceId::stored(id), owner, ttl)
            }
            ["t", namespace, consumer, producer] => Self::Dependency(
                names.namespace(namespace).map_err(rule)?,
                ConsumerName::new(consumer).map_err(rule)?,
                ConsumerName::new(producer).map_err(rule)?,
                decode(value)?,
            ),
            ["u", user] => {
                let AccountRow { password_hash, generation } = decode(value)?;
                Self::Account(UserName::new(user).map_err(rule)?, Account { password_hash, generation })
            }
            ["a", id] => {
                let ApiTokenRow { name, user, digest, created_at, expires_at } = decode(value)?;
                let user = UserName::new(&user).map_err(rule)?;
                Self::ApiToken(ApiToken { id: id.into(), name, user, digest, created_at, expires_at })
            }
            ["r", id] => Self::UsedRefresh(id.into(), decode(value)?),
            ["k"] => Self::SigningKey(decode(value)?),
            _ => return Err("its kind is not known".into()),
        })
    }
}
