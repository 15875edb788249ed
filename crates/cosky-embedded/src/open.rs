//! Opening a data directory, and saying what stands in the way when that fails.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use redb::{Builder, Database, DatabaseError, StorageBackend, StorageError, backends::FileBackend};

use crate::{
    disk::{self, Disk},
    memory::Memory,
    overlay::Overlay,
};

/// The file that holds the rows.
const FILE: &str = "cosky.redb";
/// A file in the making; renamed to [`FILE`] when it is whole.
const NEW_FILE: &str = "cosky.redb.new";
/// Locked by the process that has the directory open.
const LOCK: &str = "lock";
/// Nobody else reads the data: the key that signs tokens is in it.
const OWNER_ONLY: u32 = 0o600;
/// What a storage backend is called in place of a path.
pub(crate) const BACKEND: &str = "the backend";
/// Memory that redb may use for pages. Reads are served from this crate's own memory, so it needs little.
const CACHE_BYTES: usize = 4 << 20;

/// Why the data directory cannot be opened. It was left as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has it open.
    #[error("{path} is in use by another cosky process; stop that one, or choose another --data-dir")]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// It cannot be written.
    #[error(
        "{path} cannot be written ({source}); mount it writable, grant the rights, or choose another --data-dir"
    )]
    ReadOnly {
        /// The directory or file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The disk is full.
    #[error("the disk that holds {path} is full; free some space and start again, nothing is lost")]
    Full {
        /// The directory.
        path: PathBuf,
    },
    /// The file is damaged.
    #[error(
        "the data file is damaged ({reason}); restore a copy of the data directory, or move it away to start empty"
    )]
    Corrupt {
        /// What is wrong.
        reason: String,
    },
    /// The file was written by a newer version.
    #[error(
        "the data file has format {found}, this version reads up to {known}; start the newer cosky that wrote it"
    )]
    NewerFormat {
        /// The file's format.
        found: u64,
        /// The newest format that this version knows.
        known: u64,
    },
    /// Anything else that the system says.
    #[error("{path} cannot be opened: {source}")]
    Io {
        /// The directory or file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Opens or makes a data directory, and loads what it holds.
pub(crate) fn directory(path: &Path, now: Duration) -> Result<(Disk, Memory), OpenError> {
    make_directory(path).map_err(|error| system(path, error))?;
    let lock = lock(path)?;
    let file = path.join(FILE);
    if !fs::exists(&file).map_err(|error| system(&file, error))? {
        create(path, &file)?;
    }
    // A read-only mount lets root past mode bits, so only opening for writing tells.
    let opened = OpenOptions::new().read(true).write(true).open(&file);
    let under = FileBackend::new(opened.map_err(|error| system(&file, error))?);
    let under = under.map_err(|error| database(&file, error))?;
    let memory = examine(under, &file, now)?;
    let reopen = {
        let file = file.clone();
        move || guarded(|| builder().open(&file))
    };
    let database = reopen().map_err(|error| database(&file, error))?;
    let place = Place::new(path, lock, &[&file, &path.join(LOCK)]).map_err(|error| system(path, error))?;
    Ok((Disk::new(database, Box::new(reopen), Some(place), memory.store)?, memory))
}

/// Opens or makes a database in a storage backend, and loads what it holds.
pub(crate) fn backend<B: StorageBackend + Clone>(
    backend: B,
    now: Duration,
) -> Result<(Disk, Memory), OpenError> {
    let memory = examine(backend.clone(), Path::new(BACKEND), now)?;
    let reopen = move || {
        let backend = backend.clone();
        guarded(|| builder().create_with_backend(backend))
    };
    let database = reopen().map_err(|error| self::database(Path::new(BACKEND), error))?;
    Ok((Disk::new(database, Box::new(reopen), None, memory.store)?, memory))
}

/// Where an open store is: its directory, the lock on it, and which files these are, whatever their names come to name.
pub(crate) struct Place {
    directory: PathBuf,
    files: Vec<(PathBuf, (u64, u64))>,
    _lock: File,
}

impl Place {
    fn new(directory: &Path, lock: File, files: &[&Path]) -> io::Result<Self> {
        let files = files.iter().map(|file| Ok((file.to_path_buf(), identity(file)?)));
        Ok(Self { directory: directory.to_owned(), files: files.collect::<io::Result<_>>()?, _lock: lock })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Which file was removed or replaced, if one was. What is written to it then is lost when the process ends, and
    /// another process may have the same directory open.
    pub(crate) fn missing(&self) -> Option<&Path> {
        let gone =
            |(file, known): &&(PathBuf, (u64, u64))| !identity(file).is_ok_and(|found| found == *known);
        self.files.iter().find(gone).map(|(file, _)| file.as_path())
    }
}

fn identity(file: &Path) -> io::Result<(u64, u64)> {
    fs::metadata(file).map(|file| (file.dev(), file.ino()))
}

/// Reads every row without writing: what cannot be used stays as it is, byte for byte. When the file was not closed in
/// order, every page is checked side by side with that.
fn examine(under: impl StorageBackend, path: &Path, now: Duration) -> Result<Memory, OpenError> {
    let under = Arc::new(under);
    let open = |check: bool| {
        let overlay = Overlay::new(Arc::clone(&under)).map_err(|error| system(path, error))?;
        let open = || builder().set_check_integrity_on_open(check).create_with_backend(overlay);
        guarded(open).map_err(|error| database(path, error))
    };
    let read = || {
        let opened = open(false)?;
        if disk::was_closed(&opened).map_err(|error| database(path, error))? {
            return disk::load(&opened, path, now);
        }
        std::thread::scope(|scope| {
            let checked = scope.spawn(|| open(true).map(drop));
            let loaded = disk::load(&opened, path, now);
            checked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            loaded
        })
    };
    // The rows may lead to the damage that the check of the pages finds.
    outlive(read, |reason| OpenError::Corrupt { reason })
}

/// Makes the directory when it is not there, so that it is still there after a power cut.
fn make_directory(path: &Path) -> io::Result<()> {
    if fs::exists(path)? {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    path.canonicalize()?.ancestors().skip(1).take(1).try_for_each(|parent| File::open(parent)?.sync_all())
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// Opens a database. A damaged file can trip an assertion in the library; that is an answer too.
fn guarded(open: impl FnOnce() -> Result<Database, DatabaseError>) -> Result<Database, DatabaseError> {
    outlive(open, |reason| DatabaseError::Storage(StorageError::Corrupted(reason)))
}

/// Turns a panic into the error that `damaged` makes of its text.
fn outlive<T, E>(run: impl FnOnce() -> Result<T, E>, damaged: impl FnOnce(String) -> E) -> Result<T, E> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text =
            panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        Err(damaged(text.unwrap_or("an assertion failed").to_owned()))
    })
}

fn lock(path: &Path) -> Result<File, OpenError> {
    let name = path.join(LOCK);
    let open = OpenOptions::new().create(true).truncate(false).write(true).mode(OWNER_ONLY).open(&name);
    let file = open.map_err(|error| system(path, error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked { path: path.to_owned() }),
        Err(TryLockError::Error(error)) => Err(system(&name, error)),
    }
}

/// Makes a database under another name and renames it, so that a crash on the way leaves no half-made file that looks
/// like a damaged one. The directory is locked.
fn create(path: &Path, file: &Path) -> Result<(), OpenError> {
    let new = path.join(NEW_FILE);
    if let Err(error) = fs::remove_file(&new)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(system(&new, error));
    }
    // Made here, since the library would let everybody read it.
    let file_made = OpenOptions::new().create_new(true).write(true).mode(OWNER_ONLY).open(&new);
    file_made.map_err(|error| system(&new, error))?;
    let made = guarded(|| builder().create(&new));
    let renamed = made.map_err(|error| database(&new, error)).and_then(|made| {
        drop(made);
        fs::rename(&new, file)
            .and_then(|()| File::open(path)?.sync_all())
            .map_err(|error| system(path, error))
    });
    if renamed.is_err() {
        let _ = fs::remove_file(&new);
    }
    renamed
}

/// Sorts what the system says.
pub(crate) fn system(path: &Path, source: io::Error) -> OpenError {
    let path = path.to_owned();
    match source.kind() {
        ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied => OpenError::ReadOnly { path, source },
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => OpenError::Full { path },
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof => {
            OpenError::Corrupt { reason: source.to_string() }
        }
        _ => OpenError::Io { path, source },
    }
}

/// Sorts what the database says.
pub(crate) fn database(path: &Path, error: impl Into<redb::Error>) -> OpenError {
    match error.into() {
        redb::Error::DatabaseAlreadyOpen => OpenError::Locked { path: path.to_owned() },
        redb::Error::Io(error) => system(path, error),
        other => OpenError::Corrupt { reason: other.to_string() },
    }
}
