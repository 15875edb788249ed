//! The limits of names and records (P9). Each is checked in the constructor of the type that it bounds.

/// Bytes of a namespace, service, consumer or user name.
pub const NAME_BYTES: usize = 512;
/// Bytes of a host.
pub const HOST_BYTES: usize = 255;
/// Bytes of a URI scheme.
pub const SCHEMA_BYTES: usize = 255;
/// Bytes of an instance id: a service, a scheme, a host and a port, and room for a host in another spelling.
pub const INSTANCE_ID_BYTES: usize = 2048;
/// Bytes of an owner nonce.
pub const OWNER_BYTES: usize = 64;
/// Entries of one instance's metadata.
pub const METADATA_ENTRIES: usize = 256;
/// Bytes of one metadata key.
pub const METADATA_KEY_BYTES: usize = 255;
/// Bytes of one metadata value.
pub const METADATA_VALUE_BYTES: usize = 4096;
/// Bytes of all keys and values of one instance's metadata.
pub const METADATA_BYTES: usize = 32 * 1024;
/// Instances in one call to `beats`.
pub const BEATS: usize = 1000;
/// Services that one watch may name.
pub const WATCHED_SERVICES: usize = 1000;
