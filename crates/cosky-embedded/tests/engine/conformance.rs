//! The embedded engine passes the cases that every engine must pass.

use crate::world::Memory;

cosky_testkit::registry_tests!(Memory::new().await);
cosky_testkit::store_tests!(Memory::new().await);
cosky_testkit::long_tests!(Memory::new().await);
