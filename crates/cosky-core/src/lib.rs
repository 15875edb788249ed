//! The words of cosky: names, instances, events, accounts, the engine traits and the bodies that travel over HTTP.
//!
//! Nothing here does I/O. A rule is a plain function over values, time comes in through [`Clock`], and only the
//! traits of [`engine`] are asynchronous, because what stands behind them may be a disk or a network.

pub mod account;
mod choose;
mod clock;
pub mod digest;
pub mod engine;
mod error;
pub mod event;
mod field;
mod instance;
pub mod limits;
mod metadata;
mod name;
mod store_id;
pub mod wire;

pub use choose::{Weighted, eligible};
pub use clock::{Clock, SystemClock};
pub use engine::{
    Accounts, Beat, BeatKey, Figures, Read, Registered, Registry, ServiceStat, Stat, Store, StoreHealth,
    WatchStream,
};
pub use error::{Error, Result};
pub use event::{Change, Event, Index, InstanceOp, Scope, ServiceOp, Snapshot, StoreState};
pub use field::{Host, Owner, Port, Schema, Ttl, Weight};
pub use instance::{Instance, InstanceId, Life, Registration, STATUS, ServiceInstance};
pub use metadata::{Metadata, MetadataPatch};
pub use name::{ConsumerName, Namespace, ServiceId, UserName, is_invisible};
pub use store_id::StoreId;
