//! An axum service that registers itself as soon as it listens, tells its health, and leaves in good order on SIGTERM or
//! Ctrl-C: first nobody finds it any more, then it goes on serving for a while, and only then it ends.
//!
//! ```sh
//! export COSKY_USER=cosky COSKY_PASSWORD_FILE=./password
//! cargo run -p cosky --example axum_service -- stock
//! ```
//!
//! `LISTEN` is where it listens, a free port of this machine without it. `cosky::Instance::from_env` lists what else the
//! environment may say.

use std::{net::SocketAddr, sync::Arc};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use cosky::{Cosky, Instance, Registration};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let service = std::env::args().nth(1).ok_or("usage: axum_service SERVICE")?;
    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(&listen).await?;
    let address = listener.local_addr()?;

    // Whoever calls between this and `serve` waits in the queue of the socket.
    let namespace = Cosky::from_env().await?.default_namespace()?;
    let registration = namespace.register(Instance::from_env(service)?.listening(address)).await?;
    let registration = Arc::new(registration);
    println!("{} at {address}", registration.id());

    let app = Router::new()
        .route("/", get(move || greet(address)))
        .route("/health", get(health))
        .with_state(Arc::clone(&registration));
    let stop = registration.drained_on(cosky::terminated());
    axum::serve(listener, app).with_graceful_shutdown(stop).await?;
    println!("ended");
    Ok(())
}

async fn greet(address: SocketAddr) -> String {
    format!("greetings from {address}\n")
}

/// 200 while it should be sent requests, 503 from the beginning of the end on.
async fn health(State(registration): State<Arc<Registration>>) -> Response {
    let health = registration.health();
    let status = StatusCode::from_u16(health.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(health)).into_response()
}
