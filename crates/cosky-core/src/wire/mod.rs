//! What travels over HTTP, for the server and for the SDK alike (compat §4, design §5): the headers here, the bodies, the
//! text of instances and events, and the paths.

mod bodies;
mod path;
mod text;

pub use bodies::*;
pub use path::{encode_segment, namespace_path};
pub(crate) use text::{Fragments, frame};
pub use text::{instances, write_instance};

/// Header: the index of an answer, opaque.
pub const INDEX: &str = "x-cosky-index";
/// Header: the age of an answer in milliseconds, 0 when live.
pub const AGE: &str = "x-cosky-age";
/// Header: how far an answer can be trusted, one of `live`, `stale`, `protected`.
pub const STATE: &str = "x-cosky-state";
/// Header of a watch: `true` when it goes on after the index that was asked for, `false` when it begins with a snapshot.
pub const RESUMED: &str = "x-cosky-resumed";
/// Header: remaining life in milliseconds; absent for a permanent instance.
pub const TTL_MS: &str = "x-cosky-ttl-ms";
/// Header: the nonce of who owns an instance now.
pub const OWNER: &str = "x-cosky-owner";
/// Header of every answer: the server's version.
pub const VERSION: &str = "x-cosky-version";

/// How the text of a 404 begins when it is the path that is unknown, and not what the path names. By it a client knows a
/// server that is too old.
pub const NO_SUCH_PATH: &str = "there is no such path";

/// Whole milliseconds.
pub fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
