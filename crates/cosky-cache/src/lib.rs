//! The consistent cache of cosky: what is looked for, kept in memory over any [`cosky_core::Registry`].
//!
//! # How it follows
//!
//! Each namespace has one task with one subscription for all names that somebody wants. The subscription is confirmed
//! first and a snapshot comes second, so nothing falls in between. A name that is wanted later widens the subscription;
//! the old one goes on until the wider one stands, then the name is asked for by itself, and of the changes that were
//! told meanwhile those count that are newer than the answer. A snapshot replaces everything whole. A lost stream is
//! opened again for ever, after 50 ms at first and at most 3 s later, after the last change where the registry remembers it. As a second net, the
//! registry's digest is compared every 25 s; when it differs, everything is asked for anew.
//!
//! # What it never does
//!
//! It drops nothing because time passed or because nobody answers: it says `Stale` and how old it is. After an
//! [`Incident`] it does not take absence for an answer until those who are only late had the time to come back. It
//! remembers no errors, and takes no error for an empty list.

mod backoff;
mod cache;
mod changes;
mod compare;
mod entry;
mod held;
mod kind;
mod options;
mod protection;
mod services;
mod shelf;
mod shown;
mod space;
mod supervisor;
mod view;
mod watch;

pub use backoff::Backoff;
pub use cache::{Cache, WeakCache};
pub use changes::{Changes, ViewChange};
pub use options::{Figures, Incident, OnMetadata, Options, Recall};
pub use shown::{Instances, Shown};
pub use view::{View, ViewReader};
pub use watch::{Silence, Watch, Watched};
