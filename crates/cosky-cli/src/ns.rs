//! `cosky ns`: the index of namespaces.

use clap::{Args, Subcommand};
use cosky_core::{Namespace, Registry as _, wire::StatBody};

use crate::{
    client::{Connection, OutputArgs, ServerArgs},
    exit::missing,
    output::{Format, print, print_json, print_table},
};

/// List, look at, add and remove namespaces
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct NsArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the namespaces
    List,
    /// Show a namespace in numbers
    Get {
        /// The namespace
        namespace: Namespace,
    },
    /// Add a namespace to the list; nothing happens when it is there
    Set {
        /// The namespace
        namespace: Namespace,
    },
    /// Take a namespace off the list; its data stays, unless --purge is given
    Rm {
        /// The namespace
        namespace: Namespace,
        /// Remove its data as well; refused while it has a live instance
        #[arg(long)]
        purge: bool,
    },
}

pub(crate) async fn run(args: NsArgs) -> anyhow::Result<()> {
    let format = args.output.output;
    let connection = Connection::open(&args.server).await?;
    let registry = connection.registry();
    match args.verb {
        Verb::List => {
            let namespaces = registry.namespaces().await?;
            match format {
                Format::Json => print_json(&namespaces),
                Format::Table => {
                    print_table(&["NAMESPACE"], namespaces.iter().map(|ns| vec![ns.to_string()]))
                }
            }
        }
        Verb::Get { namespace } => {
            let stat = registry.stat(&namespace).await?.value;
            let empty = stat.services == 0 && stat.instances == 0 && stat.configs == 0;
            if empty && !registry.namespaces().await?.contains(&namespace) {
                return Err(missing(format!("namespace {namespace}")));
            }
            match format {
                Format::Json => print_json(&StatBody::from(stat)),
                Format::Table => {
                    let row = [stat.services, stat.healthy_services, stat.instances, stat.configs];
                    print_table(
                        &["SERVICES", "WITH INSTANCES", "INSTANCES", "CONFIGS"],
                        [row.map(|number| number.to_string()).to_vec()],
                    )
                }
            }
        }
        Verb::Set { namespace } => {
            let added = registry.add_namespace(&namespace).await?;
            match format {
                Format::Json => print_json(&added),
                Format::Table if added => print(&format!("added {namespace}\n")),
                Format::Table => print(&format!("{namespace} is listed already\n")),
            }
        }
        Verb::Rm { namespace, purge } => {
            let removed = if purge {
                registry.purge_namespace(&namespace).await?
            } else {
                registry.remove_namespace(&namespace).await?
            };
            if !removed {
                return Err(missing(format!("namespace {namespace}")));
            }
            match format {
                Format::Json => print_json(&true),
                Format::Table => print(&format!("removed {namespace}\n")),
            }
        }
    }
}
