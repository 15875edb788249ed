//! The HTTP server of cosky as a library: routes, authentication, watch streams, metrics, health.

mod auth;
pub mod config;
mod error;
pub mod extract;
pub mod metrics;
pub mod routes;
mod state;

pub use config::{Config, Limits};
pub use error::{ApiError, ApiResult};
pub use metrics::Metrics;
pub use state::{AppState, Caller, Streams};
