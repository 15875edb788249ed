//! `cosky instance`: the instances of a namespace.

use clap::{Args, Subcommand};
use cosky_core::{
    Beat, BeatKey, Error, InstanceId, Metadata, MetadataPatch, Namespace, Registration, Registry, STATUS,
    ServiceId, ServiceInstance, Ttl, Weight,
    wire::{self, BeatAnswer},
};
use serde_json::json;

use crate::{
    client::{Connection, NamespaceArgs, OutputArgs, ServerArgs},
    duration::parse_ttl,
    exit::{missing, usage},
    output::{Format, print, print_json, print_table, span},
};

/// List, look at, register, change and remove instances
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct InstanceArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    scope: NamespaceArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the live instances of a service
    List {
        /// The service's id
        service: ServiceId,
    },
    /// Show one instance
    Get {
        /// The instance's id: service@schema#host#port
        #[arg(value_parser = Id::parse)]
        id: Id,
    },
    /// Register an instance, or register it again with everything replaced
    Set(SetArgs),
    /// Renew an instance's life once
    Beat {
        /// The instance's id: service@schema#host#port
        #[arg(value_parser = Id::parse)]
        id: Id,
    },
    /// Deregister an instance
    Rm {
        /// The instance's id: service@schema#host#port
        #[arg(value_parser = Id::parse)]
        id: Id,
    },
    /// Show an instance's metadata, or change single entries of it
    Metadata(MetadataArgs),
}

#[derive(Debug, Args)]
struct SetArgs {
    /// The service's id
    service: ServiceId,
    #[command(flatten)]
    what: WhatArgs,
    /// The port
    #[arg(long, value_parser = clap::value_parser!(i64).range(1..=65535))]
    port: i64,
    /// Its address or host name
    #[arg(long)]
    host: String,
    /// Keep it until somebody deregisters it, beats or not
    #[arg(long, conflicts_with = "ttl")]
    permanent: bool,
}

/// What is registered besides the address.
#[derive(Debug, Args)]
pub(crate) struct WhatArgs {
    /// How to speak to it: a URI scheme
    #[arg(long, default_value = "http")]
    pub(crate) schema: String,
    /// Its share in balancing; 0 is never chosen
    #[arg(long, value_name = "NUMBER", default_value = "1", allow_hyphen_values = true)]
    pub(crate) weight: i64,
    /// What it says of itself; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) metadata: Vec<(String, String)>,
    /// Life without a beat; the server's default, when not given
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
}

#[derive(Debug, Args)]
struct MetadataArgs {
    /// The instance's id: service@schema#host#port
    #[arg(value_parser = Id::parse)]
    id: Id,
    /// Entries to set
    #[arg(value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Entry to remove; may be repeated
    #[arg(long, value_name = "KEY")]
    unset: Vec<String>,
    /// Replace all entries by those given
    #[arg(long, conflicts_with = "unset")]
    replace: bool,
}

/// An instance's id and the service in it.
#[derive(Debug, Clone)]
struct Id {
    service: ServiceId,
    text: String,
}

impl Id {
    /// Takes an id that follows the grammar in its one form, and any other that names a service as it is: a JVM writer
    /// may have made it.
    fn parse(text: &str) -> Result<Self, Error> {
        let grammar = || Error::invalid("instance id", "must be service@schema#host#port");
        let (service, _) = text.split_once('@').ok_or_else(grammar)?;
        let text = InstanceId::parse(text).map_or_else(|_| text.to_owned(), |id| id.to_string());
        Ok(Self { service: ServiceId::new(service)?, text })
    }

    fn missing(&self) -> anyhow::Error {
        missing(format!("instance {}", self.text))
    }
}

impl WhatArgs {
    /// The registration of `service` at an address.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the argument.
    pub(crate) fn registration(
        self,
        service: ServiceId,
        host: &str,
        port: i64,
    ) -> Result<Registration, Error> {
        Ok(Registration {
            weight: Weight::new(self.weight)?,
            metadata: Metadata::new(self.metadata)?,
            ttl: self.ttl,
            ..Registration::new(service, &self.schema, host, port)?
        })
    }
}

pub(crate) async fn run(args: InstanceArgs) -> anyhow::Result<()> {
    let format = args.output.output;
    let namespace = args.scope.namespace;
    // What can be refused without a server is refused first.
    let verb = match args.verb {
        Verb::Set(set) => Checked::Set(set.registration()?),
        Verb::Metadata(change) => Checked::Metadata(change.id.clone(), change.change()?),
        Verb::List { service } => Checked::List(service),
        Verb::Get { id } => Checked::Get(id),
        Verb::Beat { id } => Checked::Beat(id),
        Verb::Rm { id } => Checked::Rm(id),
    };
    let connection = Connection::open(&args.server).await?;
    let registry = connection.registry();
    match verb {
        Checked::List(service) => show(&registry.instances(&namespace, &service).await?.value, format),
        Checked::Get(id) => {
            let found = registry.instance(&namespace, &id.service, &id.text).await?.value;
            let instance = found.ok_or_else(|| id.missing())?;
            match format {
                Format::Json => {
                    let mut text = String::new();
                    wire::write_instance(&mut text, &instance);
                    text.push('\n');
                    print(&text)
                }
                Format::Table => show(&[instance], format),
            }
        }
        Checked::Set(new) => {
            let registered = registry.register(&namespace, &new).await?;
            let remaining = registered.life.remaining().map(wire::millis);
            match format {
                Format::Json => print_json(
                    &json!({"instanceId": new.id(), "remainingMs": remaining, "ttlAt": registered.life.ttl_at()}),
                ),
                Format::Table => print(&format!("registered {}\n", new.id())),
            }
        }
        Checked::Beat(id) => beat(&*registry, &namespace, &id, format).await,
        Checked::Rm(id) => {
            if !registry.deregister(&namespace, &id.service, &id.text, None).await? {
                return Err(id.missing());
            }
            match format {
                Format::Json => print_json(&true),
                Format::Table => print(&format!("deregistered {}\n", id.text)),
            }
        }
        Checked::Metadata(id, change) => {
            let done = match change {
                None => true,
                Some(Change::Patch(patch)) => {
                    registry.patch_metadata(&namespace, &id.service, &id.text, &patch).await?
                }
                Some(Change::All(all)) => {
                    registry.set_metadata(&namespace, &id.service, &id.text, &all).await?
                }
            };
            let found = registry.instance(&namespace, &id.service, &id.text).await?.value;
            let instance = found.filter(|_| done).ok_or_else(|| id.missing())?;
            match format {
                Format::Json => print_json(instance.metadata()),
                Format::Table => {
                    let row = |(key, value): (&str, &str)| vec![key.to_owned(), value.to_owned()];
                    print_table(&["KEY", "VALUE"], instance.metadata().iter().map(row))
                }
            }
        }
    }
}

/// A verb whose arguments keep every rule.
enum Checked {
    List(ServiceId),
    Get(Id),
    Set(Registration),
    Beat(Id),
    Rm(Id),
    Metadata(Id, Option<Change>),
}

enum Change {
    Patch(MetadataPatch),
    All(Metadata),
}

impl SetArgs {
    fn registration(self) -> anyhow::Result<Registration> {
        let mut new = self.what.registration(self.service, &self.host, self.port)?;
        new.ephemeral = !self.permanent;
        Ok(new)
    }
}

impl MetadataArgs {
    fn change(self) -> anyhow::Result<Option<Change>> {
        if self.replace {
            return Ok(Some(Change::All(Metadata::new(self.set)?)));
        }
        if self.set.is_empty() && self.unset.is_empty() {
            return Ok(None);
        }
        if let Some((key, _)) = self.set.iter().find(|(key, _)| self.unset.contains(key)) {
            return Err(usage(format!("metadata {key} cannot be set and removed at once")));
        }
        let set = self.set.into_iter().map(|(key, value)| (key, Some(value)));
        let unset = self.unset.into_iter().map(|key| (key, None));
        Ok(Some(Change::Patch(MetadataPatch::new(set.chain(unset))?)))
    }
}

async fn beat(registry: &dyn Registry, namespace: &Namespace, id: &Id, format: Format) -> anyhow::Result<()> {
    let key = BeatKey { service: id.service.as_str(), instance: &id.text };
    match registry.beat(namespace, &[key]).await?.first() {
        Some(Beat::Renewed(life)) => match (format, life) {
            (Format::Json, Some(life)) => print_json(&BeatAnswer::renewed(*life)),
            (Format::Json, None) => print_json(&json!({"renewed": true})),
            (Format::Table, _) => print(&format!("renewed {}\n", id.text)),
        },
        Some(Beat::Gone) => Err(Error::Gone { what: format!("instance {}", id.text) }.into()),
        Some(Beat::Unknown) | None => Err(id.missing()),
    }
}

fn show(instances: &[ServiceInstance], format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        let mut text = wire::instances(instances);
        text.push('\n');
        return print(&text);
    }
    let row = |instance: &ServiceInstance| {
        let life = instance.life().remaining();
        let metadata: Vec<_> =
            instance.metadata().iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            instance.id().to_string(),
            format!("{}:{}", instance.host().in_uri(), instance.port().get()),
            instance.metadata().get(STATUS).unwrap_or("UP").to_owned(),
            instance.weight().get().to_string(),
            life.map_or_else(|| "for ever".to_owned(), |left| span(left.as_secs())),
            metadata.join(","),
        ]
    };
    print_table(&["INSTANCE", "ADDRESS", "STATUS", "WEIGHT", "LIFE", "METADATA"], instances.iter().map(row))
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    if key.is_empty() {
        Err("the key must not be empty".to_owned())
    } else {
        Ok((key.to_owned(), value.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_service_whatever_it_holds() {
        let id = Id::parse("team/app-a@http#[2001:DB8::1]#80").unwrap();
        assert_eq!((id.service.as_str(), id.text.as_str()), ("team/app-a", "team/app-a@http#2001:db8::1#80"));
        assert_eq!(Id::parse("app@__#h#123456").unwrap().text, "app@__#h#123456", "a process id as port");
        assert!(Id::parse("app").is_err());
        assert!(Id::parse("@http#h#80").is_err());
    }

    #[test]
    fn entries_split_at_the_first_equals_sign() {
        assert_eq!(key_value("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(key_value("a="), Ok(("a".into(), String::new())));
        assert!(key_value("a").is_err() && key_value("=b").is_err());
    }
}
