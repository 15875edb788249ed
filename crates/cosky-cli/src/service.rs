//! `cosky service`: the services of a namespace.

use clap::{Args, Subcommand};
use cosky_core::{Error, Registry as _, ServiceId, ServiceStat, wire::ServiceStatBody};

use crate::{
    client::{Connection, NamespaceArgs, OutputArgs, ServerArgs},
    exit::missing,
    output::{Format, print, print_json, print_table},
};

/// List, look at, add and remove services
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct ServiceArgs {
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
    /// List the services
    List,
    /// Show one service
    Get {
        /// The service's id
        service: ServiceId,
    },
    /// Add a service to the list; nothing happens when it is there
    Set {
        /// The service's id
        service: ServiceId,
    },
    /// Take a service off the list; refused while it has a live instance
    Rm {
        /// The service's id
        service: ServiceId,
    },
    /// Count the live instances of each service
    Stats,
}

pub(crate) async fn run(args: ServiceArgs) -> anyhow::Result<()> {
    let format = args.output.output;
    let namespace = args.scope.namespace;
    let connection = Connection::open(&args.server).await?;
    let registry = connection.registry();
    match args.verb {
        Verb::List => {
            let services = registry.services(&namespace).await?.value;
            match format {
                Format::Json => print_json(&services),
                Format::Table => print_table(&["SERVICE"], services.iter().map(|id| vec![id.to_string()])),
            }
        }
        Verb::Get { service } => {
            let stats = registry.service_stats(&namespace).await?.value;
            let Some(stat) = stats.into_iter().find(|stat| stat.service == service) else {
                return Err(missing(format!("service {service}")));
            };
            match format {
                Format::Json => print_json(&ServiceStatBody::from(stat)),
                Format::Table => table(vec![stat]),
            }
        }
        Verb::Set { service } => {
            let added = registry.set_service(&namespace, &service).await?;
            match format {
                Format::Json => print_json(&added),
                Format::Table if added => print(&format!("added {service}\n")),
                Format::Table => print(&format!("{service} is listed already\n")),
            }
        }
        Verb::Rm { service } => {
            if !registry.services(&namespace).await?.value.contains(&service) {
                return Err(missing(format!("service {service}")));
            }
            if !registry.remove_service(&namespace, &service).await? {
                let reason = format!("service {service} has a live instance: deregister it first");
                return Err(Error::Conflict { reason }.into());
            }
            match format {
                Format::Json => print_json(&true),
                Format::Table => print(&format!("removed {service}\n")),
            }
        }
        Verb::Stats => {
            let stats = registry.service_stats(&namespace).await?.value;
            match format {
                Format::Json => print_json(&stats.into_iter().map(ServiceStatBody::from).collect::<Vec<_>>()),
                Format::Table => table(stats),
            }
        }
    }
}

fn table(stats: Vec<ServiceStat>) -> anyhow::Result<()> {
    let row = |stat: ServiceStat| vec![stat.service.to_string(), stat.instances.to_string()];
    print_table(&["SERVICE", "INSTANCES"], stats.into_iter().map(row))
}
