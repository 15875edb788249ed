//! Who looks at a list all the time, and remembers what must not happen to it.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use cosky_core::{Metadata, ServiceInstance};

/// What a list says of an instance, its remaining life aside.
pub(crate) type Line = (String, u32, Metadata);

/// What one reader saw.
#[derive(Debug)]
pub(crate) struct Witness {
    who: &'static str,
    /// The instance that beats.
    beater: String,
    /// Whether the instance that beats must be there.
    steady: Arc<AtomicBool>,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    looks: u64,
    present: BTreeSet<String>,
    gone: BTreeSet<String>,
    wrong: Vec<String>,
}

pub(crate) fn lines(list: &[ServiceInstance]) -> Vec<Line> {
    let line = |i: &ServiceInstance| (i.id().to_string(), i.weight().get(), i.metadata().clone());
    list.iter().map(line).collect()
}

impl Witness {
    pub(crate) fn new(who: &'static str, beater: &str, steady: &Arc<AtomicBool>) -> Arc<Self> {
        let (beater, steady) = (beater.to_owned(), steady.clone());
        Arc::new(Self { who, beater, steady, seen: Mutex::default() })
    }

    /// Whether what is read from now on must have the instance that beats.
    pub(crate) fn steady(&self) -> bool {
        self.steady.load(Ordering::SeqCst)
    }

    pub(crate) fn look(&self, list: &[ServiceInstance], steady: bool) {
        let now: BTreeSet<String> = list.iter().map(|instance| instance.id().to_string()).collect();
        let mut seen = self.seen.lock().unwrap();
        let seen = &mut *seen;
        seen.looks += 1;
        if steady && !now.contains(&self.beater) {
            seen.wrong.push(format!("{} lacks the instance that beats", self.who));
        }
        // No id is used twice, so that what is gone has no reason to come back.
        for id in now.iter().filter(|id| **id != self.beater && seen.gone.contains(*id)) {
            seen.wrong.push(format!("{} has {id} again", self.who));
        }
        seen.gone.extend(seen.present.difference(&now).cloned());
        seen.present = now;
    }

    /// How often it looked since the last time that it was asked.
    ///
    /// # Panics
    /// When it saw what must not be.
    pub(crate) fn testify(&self) -> u64 {
        let mut seen = self.seen.lock().unwrap();
        assert!(seen.wrong.is_empty(), "{:?}", seen.wrong);
        std::mem::take(&mut seen.looks)
    }
}
