//! Measures cosky against its goals: `make bench`. Prints a line per row and exits 1 when a goal is missed.
//!
//! The server runs on one core and the load on another. What a request costs is compared by the time that the
//! server's threads spend on their core, since other processes on the machine disturb that the least; rounds of
//! product and baseline alternate, and the median counts. Every load ends by itself after a fixed time.

mod client;
mod load;
mod machine;
mod report;
mod rows;
mod serve;
mod watchers;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use machine::Cores;
use mimalloc::MiMalloc;
use report::Row;
use rows::Setup;

/// As in the binary, since engine rows are measured in this process.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Open files that the bench and its servers need: 10,000 watchers at each end, and what is around them.
const FILES: u64 = 16_384;

#[derive(Debug, Parser)]
#[command(about = "Measures cosky against its goals")]
struct Args {
    /// The release binary to measure.
    #[arg(long, default_value = "target/release/cosky")]
    cosky: PathBuf,
    /// Which groups of rows to measure; all of them, when none is named.
    #[arg(value_enum)]
    groups: Vec<rows::Group>,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// Serves the product and static answers beside it; the bench starts this itself.
    #[command(hide = true)]
    Serve(serve::Args),
    /// Holds many views and prints what they need; the bench starts this itself.
    #[command(hide = true)]
    Views(rows::cache::ViewsArgs),
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    if let Some(part) = args.part {
        match part {
            Part::Serve(args) => runtime.block_on(serve::run(args))?,
            Part::Views(args) => runtime.block_on(rows::cache::hold_views(args))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    machine::allow_files(FILES)?;
    let cores = Cores::find()?;
    machine::pin(cores.load)?;
    if cores.load == cores.server {
        println!("this process may use one core only: server and load share it, so the numbers are too low");
    }
    let cosky =
        args.cosky.canonicalize().with_context(|| format!("{}: build it first", args.cosky.display()))?;
    let rows = runtime.block_on(measure(&Setup { cosky, cores }, &args.groups))?;
    let missed = rows.iter().filter(|row| !row.is_reached()).count();
    println!("\n{} goals reached, {missed} missed", rows.len() - missed);
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(setup: &Setup, groups: &[rows::Group]) -> Result<Vec<Row>> {
    println!("{}", Row::head());
    let mut rows = Vec::new();
    for group in rows::Group::ALL {
        if groups.is_empty() || groups.contains(&group) {
            for row in Box::pin(group.measure(setup)).await.with_context(|| format!("{group:?}"))? {
                println!("{row}");
                rows.push(row);
            }
        }
    }
    Ok(rows)
}
