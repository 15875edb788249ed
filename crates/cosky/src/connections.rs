//! The connections to the servers, and when they are given up together.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arc_swap::ArcSwap;
use reqwest::Client;

use crate::transport::Timeouts;

/// Connections are not given up more often than this, whatever gives reason for it.
const RENEWED_AT_MOST_EVERY: Duration = Duration::from_millis(500);

/// Connections that are kept for the next request.
///
/// When a network forgets its connections (a router that restarts, an address that moves) nobody is told. All that wait
/// here are dead then, and each would cost a request its whole time limit: three of them cost a TTL. So one that gives
/// no answer condemns all that wait; requests and streams that are under way go on.
pub(crate) struct Connections {
    pool: ArcSwap<Pool>,
    timeouts: Timeouts,
    plain: bool,
}

/// Connections of one age.
pub(crate) struct Pool {
    pub(crate) client: Client,
    since: Instant,
}

impl Connections {
    /// None yet. With `plain`, no certificates are needed.
    ///
    /// # Errors
    /// When TLS cannot be set up.
    pub(crate) fn new(timeouts: Timeouts, plain: bool) -> reqwest::Result<Self> {
        let pool = Pool { client: build(timeouts, plain)?, since: Instant::now() };
        Ok(Self { pool: ArcSwap::from_pointee(pool), timeouts, plain })
    }

    /// Those to use now.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        self.pool.load_full()
    }

    /// A connection of `pool` gave no answer: new requests begin with new ones.
    pub(crate) fn give_up(&self, pool: &Arc<Pool>) {
        if pool.since.elapsed() < RENEWED_AT_MOST_EVERY {
            return;
        }
        match build(self.timeouts, self.plain) {
            // Of many that give up the same pool, one replaces it.
            Ok(client) => {
                let new = Arc::new(Pool { client, since: Instant::now() });
                self.pool.compare_and_swap(pool, new);
            }
            Err(error) => tracing::debug!(%error, "old connections are kept"),
        }
    }
}

fn build(timeouts: Timeouts, plain: bool) -> reqwest::Result<Client> {
    let mut client = Client::builder()
        // A registry is a neighbour: a proxy for the Internet has no business between.
        .no_proxy()
        // A redirect would carry the credential to somebody who is not in the list of addresses.
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(timeouts.connect)
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(15))
        .pool_idle_timeout(Duration::from_secs(30))
        .user_agent(concat!("cosky-rust/", env!("CARGO_PKG_VERSION")));
    if plain {
        // Images without a certificate store work as long as nobody asks for TLS.
        client = client.tls_certs_only([]);
    }
    client.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Connections {
        let second = Duration::from_secs(1);
        Connections::new(Timeouts { connect: second, request: second, silence: second }, true).unwrap()
    }

    /// As if it had been made earlier.
    fn old(connections: &Connections) -> Arc<Pool> {
        let since = Instant::now().checked_sub(RENEWED_AT_MOST_EVERY).unwrap();
        connections.pool.store(Arc::new(Pool { client: connections.pool().client.clone(), since }));
        connections.pool()
    }

    #[test]
    fn connections_that_many_give_up_are_replaced_once() {
        let connections = connections();
        let first = old(&connections);
        connections.give_up(&first);
        let second = connections.pool();
        assert!(!Arc::ptr_eq(&first, &second));
        connections.give_up(&first);
        assert!(Arc::ptr_eq(&second, &connections.pool()), "nobody has complained of the new ones");
    }

    #[test]
    fn new_connections_are_given_time() {
        let connections = connections();
        let first = connections.pool();
        connections.give_up(&first);
        assert!(Arc::ptr_eq(&first, &connections.pool()));
    }
}
