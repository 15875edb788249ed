//! One transaction's worth of requests: they are decided against the rows, and their effects on memory are kept until
//! the commit.

use std::{
    collections::BTreeSet,
    sync::{Arc, RwLockReadGuard},
};

use cosky_core::{
    ConsumerName, Error, Event, InstanceId, InstanceOp, Namespace, Result, ServiceId, ServiceOp, UserName,
    account::{Account, ApiToken},
};
use redb::{ReadableTable, Table};

use crate::{
    Limits, Shared,
    hub::Published,
    memory::{Gone, Memory, Slot, millis},
    row::{self, Key, Names, Row},
};

/// A change of memory, carried out when the rows behind it are durable.
pub(crate) enum Effect {
    ListNamespace(Namespace),
    UnlistNamespace(Namespace),
    SetService(Namespace, ServiceId),
    RemoveService(Namespace, ServiceId),
    /// Registered: a full TTL from when it is carried out.
    Register(Arc<Slot>),
    /// Edited: lives on as it did.
    SetMetadata(Arc<Slot>),
    Remove(Namespace, ServiceId, InstanceId, InstanceOp),
    Mark(Namespace, InstanceId, Gone),
    Unmark(Namespace, InstanceId),
    AddDependency(Namespace, ConsumerName, ConsumerName, u64),
    ClearDependencies(Namespace),
    SetAccount(UserName, Account),
    AddApiToken(ApiToken),
    RemoveApiToken(String),
    UseRefresh(String, u64),
    ForgetRefresh(String),
    SetSigningKey(Vec<u8>),
}

/// The open transaction, what memory was before it, and what it will do to memory.
pub(crate) struct Batch<'t> {
    rows: Table<'t, &'static str, &'static [u8]>,
    pub(crate) memory: RwLockReadGuard<'t, Memory>,
    pub(crate) limits: Limits,
    /// Milliseconds on the engine's clock.
    pub(crate) now: u64,
    /// Seconds since 1970.
    pub(crate) unix: u64,
    effects: Vec<Effect>,
    /// The rows that were written, kept by whoever must put them right after a failure.
    touched: &'t mut BTreeSet<Key>,
    failure: Option<Error>,
    /// How much this batch adds to what memory counts.
    pub(crate) growth: Growth,
}

#[derive(Default)]
pub(crate) struct Growth {
    pub(crate) namespaces: usize,
    pub(crate) services: usize,
    pub(crate) instances: usize,
    pub(crate) dependencies: usize,
    pub(crate) accounts: usize,
    pub(crate) api_tokens: usize,
    pub(crate) used_refresh: usize,
}

impl<'t> Batch<'t> {
    pub(crate) fn new(
        rows: Table<'t, &'static str, &'static [u8]>,
        touched: &'t mut BTreeSet<Key>,
        shared: &'t Shared,
    ) -> Self {
        Self {
            rows,
            memory: shared.read(),
            limits: shared.limits,
            now: millis(shared.clock.now()),
            unix: shared.clock.unix().as_secs(),
            effects: Vec::new(),
            touched,
            failure: None,
            growth: Growth::default(),
        }
    }

    /// The effects, when no row could not be read or written.
    ///
    /// # Errors
    /// The first such failure.
    pub(crate) fn finish(self) -> Result<Vec<Effect>> {
        self.failure.map_or(Ok(self.effects), Err)
    }

    /// Adds what will happen to memory.
    pub(crate) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Whether there is such a row.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; the whole batch has failed then.
    pub(crate) fn has(&mut self, key: &Key) -> Result<bool> {
        self.get(&key.text()).map(|value| value.is_some())
    }

    fn get(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        let value = self.rows.get(key).map(|value| value.map(|value| value.value().to_vec()));
        value.map_err(|error| self.fail(error))
    }

    /// A row, decoded.
    ///
    /// # Errors
    /// As [`Batch::has`], and [`Error::Corrupt`].
    pub(crate) fn row(&mut self, key: &Key) -> Result<Option<Row>> {
        let key = key.text();
        let Some(sealed) = self.get(&key)? else { return Ok(None) };
        Row::read(&key, &sealed, &mut Names::default()).map(Some).map_err(|reason| Error::Corrupt { reason })
    }

    /// Writes a row.
    ///
    /// # Errors
    /// As [`Batch::has`].
    pub(crate) fn put(&mut self, key: Key, value: &[u8]) -> Result<()> {
        let text = key.text();
        let written = self.rows.insert(text.as_str(), row::seal(&text, value).as_slice()).map(|_| ());
        self.touched.insert(key);
        written.map_err(|error| self.fail(error))
    }

    /// Deletes a row; false when it was not there.
    ///
    /// # Errors
    /// As [`Batch::has`].
    pub(crate) fn delete(&mut self, key: Key) -> Result<bool> {
        let removed = self.rows.remove(key.text().as_str()).map(|old| old.is_some());
        self.touched.insert(key);
        removed.map_err(|error| self.fail(error))
    }

    /// Up to `limit` keys that begin with `prefix`.
    ///
    /// # Errors
    /// As [`Batch::has`].
    pub(crate) fn keys(&mut self, prefix: &str, limit: usize) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        let scan = |rows: &Table<'_, &'static str, &'static [u8]>, keys: &mut Vec<String>| {
            for row in rows.range(prefix..)?.take(limit) {
                let (key, _) = row?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                keys.push(key.value().to_owned());
            }
            Ok(())
        };
        scan(&self.rows, &mut keys).map_err(|error: redb::StorageError| self.fail(error))?;
        Ok(keys)
    }

    /// Makes rows that failed transactions touched what memory says they are.
    ///
    /// # Errors
    /// As [`Batch::has`].
    pub(crate) fn reconcile(&mut self, keys: &BTreeSet<Key>) -> Result<()> {
        for key in keys {
            match self.memory.row(key) {
                Some(value) => self.put(key.clone(), &value)?,
                None => {
                    self.delete(key.clone())?;
                }
            }
        }
        Ok(())
    }

    /// Forgets a mark of a deregistered instance.
    ///
    /// # Errors
    /// As [`Batch::has`].
    pub(crate) fn unmark(&mut self, namespace: Namespace, instance: InstanceId) -> Result<()> {
        self.effect(Effect::Unmark(namespace.clone(), instance.clone()));
        self.delete(Key::Gone(namespace, instance)).map(|_| ())
    }

    /// Refuses what would grow something beyond its limit.
    ///
    /// # Errors
    /// [`Error::Exhausted`].
    pub(crate) fn check_limit(&self, what: &'static str, count: usize, limit: usize) -> Result<()> {
        if count >= limit { Err(Error::Exhausted { what, limit }) } else { Ok(()) }
    }

    fn fail(&mut self, error: impl Into<redb::Error>) -> Error {
        let error = unavailable(&error.into(), false);
        self.failure.get_or_insert(error.clone());
        error
    }
}

/// A storage failure, told to callers.
pub(crate) fn unavailable(error: &redb::Error, maybe_applied: bool) -> Error {
    let full = matches!(error, redb::Error::Io(error) if error.kind() == std::io::ErrorKind::StorageFull);
    let reason = if full {
        "storage full: free some space on the disk that holds the data directory; reads and beats go on"
            .into()
    } else {
        format!("the data file cannot be written ({error}); reads and beats go on, writes are tried again")
    };
    Error::Unavailable { reason, maybe_applied, source: None }
}

/// Carries out `effects` and returns what to tell the watchers, in order, with the slots that now have a deadline.
pub(crate) fn apply(
    memory: &mut Memory,
    effects: Vec<Effect>,
    clock: &dyn cosky_core::Clock,
) -> (Vec<Published>, Vec<Arc<Slot>>) {
    let now = millis(clock.now());
    let (mut published, mut slots) = (Vec::new(), Vec::new());
    for effect in effects {
        let told = carry_out(memory, effect, now, clock, &mut slots);
        if let Some((namespace, event)) = told {
            let index = memory.advance(Some(&namespace));
            published.push((Some(namespace), Arc::new(cosky_core::Change::new(index, event))));
        }
    }
    (published, slots)
}

fn carry_out(
    memory: &mut Memory,
    effect: Effect,
    now: u64,
    clock: &dyn cosky_core::Clock,
    slots: &mut Vec<Arc<Slot>>,
) -> Option<(Namespace, Event)> {
    let mut put = |memory: &mut Memory, slot: Arc<Slot>, op| {
        let (service, id) = (slot.instance.service().clone(), slot.instance.id().clone());
        let instance = Some(memory.instance(&slot, clock));
        memory.put(Arc::clone(&slot));
        let namespace = slot.namespace.clone();
        slots.push(slot);
        Some((namespace, Event::Instance { op, service, id, instance }))
    };
    match effect {
        Effect::SetService(namespace, service) => {
            memory.list_service(&namespace, &service);
            return Some((namespace, Event::Service { op: ServiceOp::Set, service }));
        }
        Effect::RemoveService(namespace, service) => {
            let told = Event::Service { op: ServiceOp::Remove, service: service.clone() };
            memory.unlist_service(&namespace, &service);
            return Some((namespace, told));
        }
        Effect::Register(slot) => {
            slot.renew(now);
            return put(memory, slot, InstanceOp::Register);
        }
        Effect::SetMetadata(slot) => {
            match memory.slot(&slot.namespace, slot.instance.id().as_str()) {
                Some(old) => slot.inherit(old),
                None => slot.renew(now),
            }
            return put(memory, slot, InstanceOp::SetMetadata);
        }
        Effect::Remove(namespace, service, id, op) => {
            memory.remove(&namespace, &service, &id);
            return Some((namespace, Event::Instance { op, service, id, instance: None }));
        }
        Effect::ListNamespace(namespace) => memory.list_namespace(namespace),
        Effect::UnlistNamespace(namespace) => memory.unlist_namespace(&namespace),
        Effect::Mark(namespace, id, gone) => memory.mark(&namespace, &id, gone),
        Effect::Unmark(namespace, id) => memory.unmark(&namespace, &id),
        Effect::AddDependency(namespace, consumer, producer, at) => {
            memory.add_dependency(&namespace, consumer, producer, at);
        }
        Effect::ClearDependencies(namespace) => memory.clear_dependencies(&namespace),
        Effect::SetAccount(user, account) => {
            memory.accounts.insert(user, account);
        }
        Effect::AddApiToken(token) => {
            memory.api_tokens.insert(token.id.clone(), token);
        }
        Effect::RemoveApiToken(id) => {
            memory.api_tokens.remove(&id);
        }
        Effect::UseRefresh(id, expires_at) => {
            memory.used_refresh.insert(id, expires_at);
        }
        Effect::ForgetRefresh(id) => {
            memory.used_refresh.remove(&id);
        }
        Effect::SetSigningKey(key) => memory.signing_key = Some(key),
    }
    None
}

/// The value of a row that only has to be there.
pub(crate) const PRESENT: &[u8] = &[];

/// The value of a time.
pub(crate) fn time(seconds: u64) -> Vec<u8> {
    row::encode(&seconds)
}
