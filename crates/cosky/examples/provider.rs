//! Registers a service and keeps it registered until Ctrl-C.
//!
//! ```sh
//! export COSKY_USER=cosky COSKY_PASSWORD_FILE=./password
//! cargo run -p cosky --example provider -- stock 127.0.0.1 9000
//! ```

use cosky::{Cosky, Instance};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [service, host, port] = &arguments[..] else {
        return Err("usage: provider SERVICE HOST PORT".into());
    };
    let namespace = Cosky::from_env().await?.default_namespace()?;
    let registration = namespace.register(Instance::http(service, host, port.parse()?)).await?;
    println!("{} is registered in {}", registration.id(), namespace.name());

    let mut states = registration.state_changes();
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => break,
            _ = states.changed() => println!("{:?}", *states.borrow_and_update()),
        }
    }
    // Others stop choosing this process from here on; a server would now finish what it has begun.
    registration.close().await?;
    Ok(())
}
