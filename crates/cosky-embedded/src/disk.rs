//! The file: loading it, one transaction after another, and opening it again after an I/O error.

use std::{collections::BTreeSet, path::Path, sync::Arc, time::Duration};

use cosky_core::{Error, StoreId};
use redb::{
    AccessGuard, Database, DatabaseError, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    StorageError, TableDefinition,
};

use crate::{
    Shared,
    batch::{Batch, Effect, unavailable},
    memory::{Gone, Memory, Slot, millis},
    open::{self, OpenError, Place},
    row::{Key, Names, Row},
};

const ROWS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("rows");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
/// The format of the rows. Raise it when older versions could not read them.
const FORMAT: u64 = 1;
/// Rows that memory is set aside for at once, whatever a damaged file says of their number.
const MOST_RESERVED: usize = 1 << 17;
/// How long to wait between two attempts to open the file again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);

type Reopen = Box<dyn Fn() -> Result<Database, DatabaseError> + Send>;

/// The file and what must still be put right in it.
pub(crate) struct Disk {
    /// Absent after an I/O error: the library refuses everything from then on, so it is opened again.
    database: Option<Database>,
    reopen: Reopen,
    /// On the engine's clock.
    last_attempt: Duration,
    /// Why it is not open, when it is not.
    failure: Option<Error>,
    /// Rows that a failed transaction touched: what the file says of them is not known.
    dirty: BTreeSet<Key>,
    /// Where it is; nowhere for a test's backend.
    place: Option<Place>,
    /// Which data it holds, this opening counted.
    store: StoreId,
}

impl Disk {
    /// Proves that the file can be written, and notes in it that it was opened.
    pub(crate) fn new(
        database: Database,
        reopen: Reopen,
        place: Option<Place>,
        store: StoreId,
    ) -> Result<Self, OpenError> {
        let path = place.as_ref().map_or(Path::new(open::BACKEND), Place::directory);
        begin(&database, store).map_err(|error| open::database(path, error))?;
        Ok(Self {
            database: Some(database),
            reopen,
            last_attempt: Duration::ZERO,
            failure: None,
            dirty: BTreeSet::new(),
            place,
            store,
        })
    }

    pub(crate) fn directory(&self) -> Option<&Path> {
        self.place.as_ref().map(Place::directory)
    }

    /// Whether the files are where they were opened.
    pub(crate) fn is_in_place(&self) -> bool {
        self.check_place().is_ok()
    }

    /// Refuses writes when they would go to a file that is no longer there.
    fn check_place(&self) -> Result<(), Error> {
        match self.place.as_ref().and_then(Place::missing) {
            None => Ok(()),
            Some(file) => Err(Error::unavailable(format!(
                "{} was removed or replaced; stop this server, put the data directory back and start again; reads and \
                 beats go on",
                file.display()
            ))),
        }
    }

    /// Whether there is something to put right now, without anybody asking for it.
    pub(crate) fn needs_repair(&self, now: Duration) -> bool {
        match self.database {
            Some(_) => !self.dirty.is_empty(),
            None => now.saturating_sub(self.last_attempt) >= REOPEN_PAUSE,
        }
    }

    /// Rows of which it is not known whether the file agrees with memory.
    pub(crate) fn mark_dirty(&mut self, keys: BTreeSet<Key>) {
        self.dirty.extend(keys);
    }

    /// Runs `work` in one transaction, commits it with an fsync, and returns its effects on memory. After a failure the
    /// file is opened again at a later call, and the rows that `work` touched are put right before anything else.
    pub(crate) fn transact(
        &mut self,
        shared: &Shared,
        work: impl FnOnce(&mut Batch<'_>),
    ) -> Result<Vec<Effect>, Error> {
        self.check_place()?;
        let now = shared.clock.now();
        if let (None, Some(failure)) = (&self.database, &self.failure)
            && now.saturating_sub(self.last_attempt) < REOPEN_PAUSE
        {
            return Err(Error::unavailable(failure.to_string()));
        }
        let mut touched = BTreeSet::new();
        let failure = match self.attempt(shared, &mut touched, work) {
            Ok(effects) => {
                self.dirty.clear();
                return Ok(effects);
            }
            Err(failure) => failure,
        };
        self.database = None;
        self.last_attempt = now;
        self.failure = Some(failure.clone());
        self.dirty.append(&mut touched);
        Err(failure)
    }

    /// Notes in the file that it is closed in order, when it is as it should be.
    pub(crate) fn close(mut self) {
        let Some(database) = self.database.take().filter(|_| self.dirty.is_empty()) else { return };
        let closed = || -> Result<(), redb::Error> {
            let transaction = database.begin_write()?;
            transaction.open_table(META)?.insert("closed", 1)?;
            Ok(transaction.commit()?)
        };
        if let Err(error) = closed() {
            tracing::warn!(%error, "the data file could not be closed in order; the next start checks it whole");
        }
    }

    fn attempt(
        &mut self,
        shared: &Shared,
        touched: &mut BTreeSet<Key>,
        work: impl FnOnce(&mut Batch<'_>),
    ) -> Result<Vec<Effect>, Error> {
        let refused = |error: redb::Error| unavailable(&error, false);
        let database = match self.database.take() {
            Some(database) => database,
            None => {
                let database = (self.reopen)().map_err(|error| refused(error.into()))?;
                begin(&database, self.store).map_err(refused)?;
                database
            }
        };
        let transaction = database.begin_write().map_err(|error| refused(error.into()))?;
        let rows = transaction.open_table(ROWS).map_err(|error| refused(error.into()))?;
        let mut batch = Batch::new(rows, touched, shared);
        if batch.reconcile(&self.dirty).is_ok() {
            work(&mut batch);
        }
        let effects = batch.finish()?;
        transaction.commit().map_err(|error| unavailable(&error.into(), true))?;
        self.database = Some(database);
        Ok(effects)
    }
}

/// Checks the format and reads everything, as a store that is opened once more than the file knows. Instances and marks live one full term from `now`.
///
/// # Errors
/// [`OpenError::NewerFormat`], [`OpenError::Corrupt`], or what the system says of `path`.
pub(crate) fn load(database: &Database, path: &Path, now: Duration) -> Result<Memory, OpenError> {
    let mut memory = Memory::new();
    match format(database).map_err(|error| open::database(path, error))? {
        // A new file has nothing in it yet.
        None => return Ok(memory),
        Some(found) if found > FORMAT => return Err(OpenError::NewerFormat { found, known: FORMAT }),
        Some(_) => {}
    }
    if let Some((id, opened)) = store(database).map_err(|error| open::database(path, error))? {
        memory.store = StoreId::opening(id, opened.saturating_add(1));
    }
    let now = millis(now);
    match read(database, &mut memory, now) {
        Ok(None) => memory.grace(now),
        Ok(Some(reason)) => return Err(OpenError::Corrupt { reason }),
        Err(error) => return Err(open::database(path, error)),
    }
    Ok(memory)
}

/// Reads all rows on two threads. This one reads fewer, since it also puts all of them into memory. What is wrong with a
/// row is returned.
fn read(database: &Database, memory: &mut Memory, now: u64) -> Result<Option<String>, redb::Error> {
    let rows = database.begin_read()?.open_table(ROWS)?;
    let all = usize::try_from(rows.len()?).unwrap_or(usize::MAX);
    let first = all * 2 / 5;
    std::thread::scope(|scope| {
        let second = scope.spawn(|| {
            let mut read = Vec::with_capacity((all - first).min(MOST_RESERVED));
            let bad = decode(rows.iter()?.rev(), all - first, |row| read.push(row))?;
            Ok::<_, redb::Error>((read, bad))
        });
        let bad = decode(rows.iter()?, first, |row| take(memory, row, now))?;
        // A panic over a damaged page goes on to whoever guards against that.
        let (second, also_bad) = second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        second.into_iter().rev().for_each(|row| take(memory, row, now));
        Ok(bad.or(also_bad))
    })
}

/// Hands on so many rows, or stops at the first that is bad and says what is wrong.
fn decode<'a>(
    rows: impl Iterator<
        Item = Result<(AccessGuard<'a, &'static str>, AccessGuard<'a, &'static [u8]>), StorageError>,
    >,
    count: usize,
    mut found: impl FnMut(Row),
) -> Result<Option<String>, redb::Error> {
    let mut names = Names::default();
    let mut left = count;
    for row in rows.take(count) {
        let (key, value) = row?;
        match Row::read(key.value(), value.value(), &mut names) {
            Ok(row) => found(row),
            Err(reason) => return Ok(Some(format!("row {:?}: {reason}", key.value().replace('\0', " ")))),
        }
        left -= 1;
    }
    Ok((left > 0).then(|| format!("{left} rows are missing")))
}

/// Whether the file was closed in order: then its pages are as they were written, and the rows' own checksums tell what
/// has changed since. Otherwise every page is to be checked.
pub(crate) fn was_closed(database: &Database) -> Result<bool, redb::Error> {
    let transaction = database.begin_read()?;
    match transaction.open_table(META) {
        Ok(meta) => Ok(meta.get("closed")?.is_some_and(|closed| closed.value() == 1)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn format(database: &Database) -> Result<Option<u64>, redb::Error> {
    let transaction = database.begin_read()?;
    match transaction.open_table(META) {
        Ok(meta) => Ok(meta.get("format")?.map(|format| format.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Which data the file holds and how often it was opened; `None` for one that an older version wrote.
fn store(database: &Database) -> Result<Option<(u64, u64)>, redb::Error> {
    let meta = database.begin_read()?.open_table(META)?;
    let number = |name| Ok::<_, redb::Error>(meta.get(name)?.map(|number| number.value()));
    Ok(number("store")?.zip(number("opened")?))
}

/// The first transaction of an opening: whoever can make it can write.
fn begin(database: &Database, store: StoreId) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    let mut meta = transaction.open_table(META)?;
    meta.insert("format", FORMAT)?;
    meta.insert("closed", 0)?;
    meta.insert("store", store.id)?;
    meta.insert("opened", store.opened)?;
    drop(meta);
    transaction.open_table(ROWS)?;
    transaction.commit()?;
    Ok(())
}

fn take(memory: &mut Memory, row: Row, now: u64) {
    match row {
        Row::Namespace(namespace) => memory.list_namespace(namespace),
        Row::Service(namespace, service) => memory.list_service(&namespace, &service),
        Row::Instance(namespace, instance, ttl, owner) => {
            let slot = Slot::new(namespace, instance, ttl, owner);
            slot.renew(now);
            memory.put(Arc::new(slot));
        }
        Row::Gone(namespace, id, owner, ttl) => {
            let until = now + 2 * millis(ttl.duration());
            memory.mark(&namespace, &id, Gone { owner, ttl, until });
        }
        Row::Dependency(namespace, consumer, producer, at) => {
            memory.add_dependency(&namespace, consumer, producer, at)
        }
        Row::Account(user, account) => {
            memory.accounts.insert(user, account);
        }
        Row::ApiToken(token) => {
            memory.api_tokens.insert(token.id.clone(), token);
        }
        Row::UsedRefresh(id, expires_at) => {
            memory.used_refresh.insert(id, expires_at);
        }
        Row::SigningKey(key) => memory.signing_key = Some(key),
    }
}
