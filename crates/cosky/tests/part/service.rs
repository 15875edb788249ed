//! A web service that says all of itself by the environment, tells its health, and drains when it is told to end.

use std::{sync::Arc, time::Duration};

use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
use cosky::{Health, Instance, Registration, terminated};
use tokio::{net::TcpListener, time::sleep};

use crate::{connect, tell};

/// How long an answer takes, so that there is always one under way.
const WORK: Duration = Duration::from_millis(300);
/// The exit code when nobody heard the goodbye.
const UNHEARD: i32 = 3;

pub(crate) async fn run() {
    let end = terminated();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shop = connect().await.unwrap().default_namespace().unwrap();
    let instance = Instance::from_env("order").unwrap().listening(address);
    let registration = Arc::new(shop.register(instance).await.unwrap());
    tell(format_args!("port {}", address.port()));
    let app = Router::new()
        .route("/health", get(health))
        .route("/orders", get(orders))
        .with_state(registration.clone());
    axum::serve(listener, app).with_graceful_shutdown(registration.drained_on(end)).await.unwrap();
    // The drain is over, so that this only tells how it went.
    let heard = registration.drain(Duration::ZERO).await;
    std::process::exit(if heard.is_ok() { 0 } else { UNHEARD });
}

async fn health(State(registration): State<Arc<Registration>>) -> (StatusCode, Json<Health>) {
    let health = registration.health();
    (StatusCode::from_u16(health.http_status()).unwrap(), Json(health))
}

async fn orders() -> &'static str {
    sleep(WORK).await;
    "none yet\n"
}
