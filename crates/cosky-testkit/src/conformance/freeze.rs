//! How long a frozen account stays frozen.

use std::{sync::Arc, time::Duration};

use cosky_core::account::{LOGIN_ATTEMPTS, LOGIN_FREEZE_SECONDS, LoginAttempt};

use super::{accounts::user, world::World};

/// The freeze ends 15 minutes after the tenth try, however many follow; fewer tries are forgotten after that time too.
pub async fn a_freeze_ends(world: Arc<dyn World>) {
    let accounts = world.accounts();
    let freeze = Duration::from_secs(LOGIN_FREEZE_SECONDS);
    for _ in 0..LOGIN_ATTEMPTS {
        accounts.login_attempt(&user("ana")).await.unwrap();
        world.pass(Duration::from_secs(60)).await;
    }
    world.pass(freeze - Duration::from_secs(120)).await;
    let left = accounts.login_attempt(&user("ana")).await.unwrap();
    assert_eq!(left, LoginAttempt::Frozen { seconds: 60 });
    world.pass(Duration::from_secs(60)).await;
    assert_eq!(accounts.login_attempt(&user("ana")).await.unwrap(), LoginAttempt::Allowed(1));
    world.pass(freeze - Duration::from_secs(1)).await;
    assert_eq!(accounts.login_attempt(&user("ana")).await.unwrap(), LoginAttempt::Allowed(2));
    world.pass(freeze).await;
    assert_eq!(accounts.login_attempt(&user("ana")).await.unwrap(), LoginAttempt::Allowed(1));
}
