//! `cosky login`: buys a pair of tokens for a password and keeps them for later calls.

use std::path::PathBuf;

use clap::Args;
use cosky_core::{UserName, account::ROOT};

use crate::{
    client::{self, AddressArgs},
    output::print,
    prompt,
    session::Keyring,
};

/// Log in and keep the credentials, readable by you alone, for later calls
#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    #[command(flatten)]
    address: AddressArgs,
    /// Who logs in
    #[arg(long, value_name = "NAME", env = "COSKY_USER", default_value = ROOT, hide_env_values = true)]
    user: UserName,
    /// File that holds the password, - for standard input; asked for at the terminal, when not given
    #[arg(long, value_name = "FILE", env = "COSKY_PASSWORD_FILE", hide_env_values = true)]
    password_file: Option<PathBuf>,
}

pub(crate) async fn run(args: LoginArgs) -> anyhow::Result<()> {
    let LoginArgs { address, user, password_file } = args;
    let addr = address.checked()?;
    let access = client::access(&addr).await?;
    let keyring = Keyring::find()?;
    let password = prompt::password(user.as_str(), password_file.as_deref()).await?;
    let pair = access.log_in(&user, &password).await?;
    let file = keyring.store(&addr, user.clone(), pair)?;
    print(&format!("logged in as {user} at {addr}; the credentials are in {}\n", file.display()))
}
