//! Who may call.

/// What the auth layer knows.
pub(crate) struct Auth {}
