//! `cosky token`: API tokens, for machines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use cosky_core::wire::TokenBody;

use crate::{
    client::{Connection, OutputArgs, ServerArgs},
    duration::parse_second,
    exit::missing,
    output::{Format, print, print_json, print_table, say, span},
};

/// List, create and revoke API tokens
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List the tokens, without their secrets
    List,
    /// Create a token and print it, this once
    Create {
        /// What it is for
        name: String,
        /// How long it is good; for ever, when not given
        #[arg(long, value_name = "TIME", value_parser = parse_second)]
        expires: Option<Duration>,
    },
    /// Revoke a token
    Rm {
        /// The token's id, from the list
        id: String,
    },
}

pub(crate) async fn run(args: TokenArgs) -> anyhow::Result<()> {
    let format = args.output.output;
    let access = Connection::open(&args.server).await?.access();
    match args.verb {
        Verb::List => {
            let tokens = access.tokens().await?;
            match format {
                Format::Json => print_json(&tokens),
                Format::Table => table(&tokens),
            }
        }
        Verb::Create { name, expires } => {
            let token = access.create_token(&name, expires).await?;
            match format {
                Format::Json => print_json(&token),
                Format::Table => {
                    say(format_args!("token {} was created; its secret is not shown again:", token.id));
                    print(&format!("{}\n", token.token.as_deref().unwrap_or_default()))
                }
            }
        }
        Verb::Rm { id } => {
            if !access.revoke_token(&id).await? {
                return Err(missing(format!("token {id}")));
            }
            match format {
                Format::Json => print_json(&true),
                Format::Table => print(&format!("revoked {id}\n")),
            }
        }
    }
}

fn table(tokens: &[TokenBody]) -> anyhow::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    let row = |token: &TokenBody| {
        let left = match token.expires_at {
            None => "for ever".to_owned(),
            Some(end) if end <= now => "expired".to_owned(),
            Some(end) => span(end - now),
        };
        vec![
            token.id.clone(),
            token.name.clone(),
            token.user.clone(),
            span(now.saturating_sub(token.created_at)),
            left,
        ]
    };
    print_table(&["ID", "NAME", "USER", "AGE", "LIFE"], tokens.iter().map(row))
}
