//! Follows a service, and chooses one of its instances whenever something changes.
//!
//! ```sh
//! export COSKY_USER=cosky COSKY_PASSWORD_FILE=./password
//! cargo run -p cosky --example consumer -- stock
//! ```

use cosky::Cosky;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = std::env::args().nth(1).ok_or("usage: consumer SERVICE")?;
    let namespace = Cosky::from_env().await?.default_namespace()?;
    let mut view = namespace.discover(service).await?;
    loop {
        match view.choose() {
            Ok(chosen) => println!("{} of {}: {:?}", chosen.id(), view.snapshot().len(), view.state()),
            Err(none) => println!("{none}: {:?}", view.state()),
        }
        view.changed().await;
    }
}
