//! The conformance suite rejects every engine that breaks a promise: here the embedded one with a fault in front of it.

use std::{future::Future, pin::Pin, sync::Arc};

use crate::world::Memory;
use cosky_testkit::{
    conformance::{REGISTRY, STORE, World},
    faulty::{Fault, FaultyWorld, rejections},
};

fn world(fault: Option<Fault>) -> Pin<Box<dyn Future<Output = Arc<dyn World>> + Send>> {
    Box::pin(async move {
        // What never comes is waited for in vain, and only then.
        let good = if fault.is_some() { Memory::impatient().await } else { Memory::new().await };
        Arc::new(FaultyWorld::new(Arc::new(good), fault)) as _
    })
}

/// Without a fault no case fails, so it is the fault and nothing else that the other test sees rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_case_rejects_an_engine_without_a_fault() {
    let failed = rejections(REGISTRY.iter().chain(STORE).copied(), || world(None)).await;
    assert!(failed.is_empty(), "{failed:?}");
}

/// The case that was written against a fault notices it. Other cases may notice it too; that is not asked here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_fault_is_rejected_by_its_case() {
    let mut missed = Vec::new();
    for &(fault, expected) in Fault::ALL {
        let cases = REGISTRY.iter().chain(STORE).copied().filter(|case| case.name == expected);
        if rejections(cases, || world(Some(fault))).await.is_empty() {
            missed.push((fault, expected));
        }
    }
    assert!(missed.is_empty(), "faults that the case written against them did not notice: {missed:#?}");
}
