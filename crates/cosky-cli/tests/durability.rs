//! `kill -9` of a server under load loses nothing that it acknowledged (P6), and it starts again by itself.
//!
//! This proves the process's side: that nothing is answered while it is still in the process's memory. What a power cut
//! takes is proven in `cosky-embedded/tests/engine/durability.rs`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use cosky::Cosky;
use cosky_core::{Error, Metadata, Namespace, Registration, Registry, ServiceId, account::ROOT};
use cosky_testkit::process::{CoskyServer, ServerOptions};

const WRITERS: u16 = 8;
const KILLS: u16 = 4;

/// What is known of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Registered,
    Deregistered,
    /// Its last write was not answered.
    Unknown,
}

type Ledger = BTreeMap<u16, Known>;

fn shop() -> Namespace {
    Namespace::new("shop").unwrap()
}

fn instance(port: u16) -> Registration {
    let service = ServiceId::new("order").unwrap();
    let new = Registration::new(service, "http", "10.0.0.1", port.into()).unwrap();
    let metadata = Metadata::new([("text", "x".repeat(500)), ("port", port.to_string())]).unwrap();
    Registration { ephemeral: false, metadata, ..new }
}

async fn client(server: &CoskyServer) -> Arc<dyn Registry> {
    let cosky = Cosky::connect(server.url()).login(ROOT, server.password());
    cosky.request_timeout(Duration::from_secs(5)).await.unwrap().registry()
}

/// Registers one instance after the other, and deregisters every third again, until the server does not answer.
async fn write(registry: Arc<dyn Registry>, ports: std::ops::Range<u16>) -> Ledger {
    let mut ledger = Ledger::new();
    for port in ports {
        let new = instance(port);
        ledger.insert(port, Known::Unknown);
        match registry.register(&shop(), &new).await {
            Ok(_) => ledger.insert(port, Known::Registered),
            Err(Error::Unavailable { .. }) => return ledger,
            Err(other) => panic!("{other:?}"),
        };
        if port % 3 == 0 {
            ledger.insert(port, Known::Unknown);
            match registry.deregister(&shop(), &new.service, new.id().as_str(), None).await {
                Ok(true) => ledger.insert(port, Known::Deregistered),
                Err(Error::Unavailable { .. }) => return ledger,
                other => panic!("{other:?}"),
            };
        }
    }
    panic!("the server was to be killed before all ports were used");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_under_load_loses_nothing() {
    let binary = env!("CARGO_BIN_EXE_cosky");
    let mut server = ServerOptions::default().binary(binary).start().await;
    let mut ledger = Ledger::new();
    for kill in 0..KILLS {
        let registry = client(&server).await;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let start = 1 + (kill * WRITERS + writer) * 2000;
                tokio::spawn(write(Arc::clone(&registry), start..start + 2000))
            })
            .collect();
        let written = async {
            while registry.instances(&shop(), &instance(1).service).await.unwrap().value.len()
                < 60 * (usize::from(kill) + 1)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), written).await.expect("the writers get on");
        server.kill().await;
        for writer in writers {
            ledger.append(&mut writer.await.expect("no writer panics"));
        }

        server = server.successor(false).binary(binary).start().await;
        let read = client(&server).await.instances(&shop(), &instance(1).service).await.unwrap().value;
        let found: BTreeMap<_, _> = read.iter().map(|found| (found.port().get(), found)).collect();
        for (&port, &known) in &ledger {
            match (known, found.get(&port.into())) {
                (Known::Registered, Some(found)) => {
                    assert_eq!(**found.instance(), cosky_core::Instance::from(instance(port)));
                }
                (Known::Deregistered, None) | (Known::Unknown, _) => {}
                (known, found) => panic!("kill {kill}, {port}: acknowledged {known:?}, found {found:?}"),
            }
        }
        let strangers: Vec<_> =
            found.keys().filter(|port| !ledger.keys().any(|p| u32::from(*p) == **port)).collect();
        assert!(strangers.is_empty(), "{strangers:?}");
    }
    assert!(ledger.values().filter(|known| **known == Known::Registered).count() > 100);
    assert!(ledger.values().any(|known| *known == Known::Deregistered));
    assert!(server.stop().await.success(), "{}", server.log());
}
