//! Service discovery with cosky: register a service, find another, keep a live view.
//!
//! ```no_run
//! use cosky::{Cosky, Instance};
//!
//! # async fn example(token: String) -> cosky::Result<()> {
//! let cosky = Cosky::connect("http://127.0.0.1:8080").token(token).await?;
//! let shop = cosky.namespace("shop-{eu}")?;
//! let order = shop.register(Instance::http("order", "10.0.0.5", 8080)).await?;
//! let stock = shop.discover("stock").await?;
//! let target = stock.choose()?;
//! println!("calling {} of {}", target.uri().unwrap_or_default(), stock.snapshot().len());
//! order.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What it does by itself
//!
//! * **Beats.** Instances are kept registered by one task per namespace: batches of up to 1,000, the first beat after
//!   1 s, then every third of the TTL ± 10 %, never two batches at once, each given up before the next is due.
//!   [`Registration`] says what happens when the server forgot an instance or somebody deregistered it.
//! * **Views.** A [`LiveView`] shows one service; all of a namespace are followed over one stream. It reconnects for
//!   ever, every 100 ms to 2 s, to any address, keeps its last list meanwhile, and says how old that is.
//!   [`NamespaceClient::instances`] gives the same by name.
//! * **Choice.** [`LiveView::choose`] is random by weight; [`balance`] has round robin, least requests, hashing by a
//!   key, the own zone first, and a trait for one's own; a [`Subset`] is a version or lane, and says what comes after
//!   it. None chooses what is out of service or of weight 0.
//! * **Addresses.** Requests stay with one address and go to the next when it fails. A request whose answer was lost is
//!   repeated only when twice is as good as once ([`HttpRegistry`]).
//! * **Credentials.** A token file is read again when it changes or is refused; user and password fetch new tokens by
//!   themselves, and follow a server that asks to come later, for 5 s at most. An expired token costs neither a
//!   registration nor a view.
//!
//! # Start without a registry
//!
//! [`Connect::lazy`], [`NamespaceClient::keep_registered`] and [`Discover::start_empty`] return at once and get there
//! when a server does. With [`Connect::remember_in`] views show meanwhile what a process before this one knew.
//!
//! # End
//!
//! Dropping a [`Registration`] asks for its deregistration in the background; [`Registration::close`] and
//! [`NamespaceClient::close`] wait for it, at most 5 s. Stop taking work only after that: until then others still
//! find the instance.

mod access;
mod address;
pub mod balance;
mod beats;
mod client;
mod connections;
mod credentials;
mod decode;
mod detect;
mod drain;
mod entry;
mod error;
mod http;
mod instance;
mod namespace;
mod ready;
mod register;
mod registration;
mod remember;
mod secret;
mod session;
mod settings;
mod sse;
mod subset;
mod transport;
mod version;
mod view;
mod vitals;

pub use access::Access;
pub use address::IntoAddresses;
pub use client::{Connect, Cosky};
pub use cosky_cache::{Changes, Figures, ViewChange, Watch, Watched};
pub use cosky_core as core;
pub use cosky_core::{
    Index, InstanceId, Life, Metadata, Namespace, Registry, Scope, ServiceId, ServiceInstance, StoreState,
};
pub use credentials::TokenSource;
pub use drain::terminated;
pub use entry::RegistrationState;
pub use error::{Error, NotCosky, Result, TooOld};
pub use http::HttpRegistry;
pub use instance::{Instance, OUT_OF_SERVICE, UP};
pub use namespace::{Discover, NamespaceClient};
pub use ready::Ready;
pub use registration::Registration;
pub use subset::{Subset, SubsetView};
pub use view::{LiveView, ViewReader};
pub use vitals::{Health, HealthStatus, Vitals, VitalsChanges};

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
mod readme {}
