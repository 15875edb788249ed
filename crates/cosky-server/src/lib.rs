//! The HTTP server of cosky as a library: routes, authentication, watch streams, metrics, health.
//!
//! [`serve()`] takes a store and a listener and serves until it is told to stop; [`app()`] is the same without sockets.

mod app;
mod auth;
pub mod config;
mod error;
pub mod extract;
mod gzip;
mod handover;
mod health;
mod local;
pub mod metrics;
mod middleware;
mod openapi;
pub mod routes;
mod scrape;
mod serve;
mod state;

pub use app::{ServeError, app, app_with};
pub use auth::root::{ensure_root, reset_root};
pub use config::{Config, Limits};
pub use error::{ApiError, ApiResult};
pub use metrics::Metrics;
pub use serve::{serve, serve_with};
pub use state::{AppState, Caller, Streams};
