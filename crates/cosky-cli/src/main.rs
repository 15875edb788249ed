//! The one binary: server, agent and client of cosky.

mod agent;
mod client;
mod duration;
mod exit;
mod instance;
mod logging;
mod login;
mod ns;
mod output;
mod prompt;
mod serve;
mod service;
mod session;
mod token;
mod watch;

use std::{ffi::OsStr, process::ExitCode};

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use mimalloc::MiMalloc;

/// Packs instances closer than the system's allocator: a batch of beats meets fewer pages, and a large store is loaded
/// sooner. Without huge pages, which would double what an idle server needs.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Service discovery: register, beat, discover
#[derive(Debug, Parser)]
#[command(name = "cosky", version, arg_required_else_help = true, disable_help_subcommand = true)]
#[command(after_help = "Exit codes: 0 ok, 1 error, 2 usage, 3 not found, 4 conflict, 5 unreachable.\n\
    Ids that begin with a dash follow after --.\n\
    Who asks: --token-file, or one of COSKY_TOKEN, COSKY_TOKEN_FILE and COSKY_USER with COSKY_PASSWORD_FILE, \
    or what `cosky login` left.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Serve(serve::ServeArgs),
    ResetRoot(serve::ResetRootArgs),
    Agent(agent::AgentArgs),
    Login(login::LoginArgs),
    Token(token::TokenArgs),
    Ns(ns::NsArgs),
    Service(service::ServiceArgs),
    Instance(instance::InstanceArgs),
    Watch(watch::WatchArgs),
    Completions(CompletionsArgs),
    /// Print the version
    Version,
}

/// Print a script that completes cosky's arguments in a shell
#[derive(Debug, Args)]
struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

fn main() -> ExitCode {
    let mut args = std::env::args_os();
    if args.nth(1).as_deref() == Some(OsStr::new(agent::EXEC_VERB)) {
        return agent::exec(args);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let printed = error.print();
            return match printed {
                _ if error.use_stderr() => ExitCode::from(exit::USAGE),
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => exit::report(&output::unwritten(error)),
            };
        }
    };
    match run(cli.verb) {
        Ok(code) => code,
        Err(error) => exit::report(&error),
    }
}

fn run(verb: Verb) -> anyhow::Result<ExitCode> {
    match verb {
        Verb::Serve(args) => serve::serve(args)?,
        Verb::ResetRoot(args) => serve::reset_root(args)?,
        Verb::Agent(args) => return agent::run(args),
        Verb::Login(args) => client::block_on(login::run(args))?,
        Verb::Token(args) => client::block_on(token::run(args))?,
        Verb::Ns(args) => client::block_on(ns::run(args))?,
        Verb::Service(args) => client::block_on(service::run(args))?,
        Verb::Instance(args) => client::block_on(instance::run(args))?,
        Verb::Watch(args) => client::block_on(watch::run(args))?,
        Verb::Completions(args) => {
            let mut script = Vec::new();
            clap_complete::generate(args.shell, &mut Cli::command(), "cosky", &mut script);
            output::print(&String::from_utf8(script)?)?;
        }
        Verb::Version => output::print(&format!("cosky {}\n", env!("CARGO_PKG_VERSION")))?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
