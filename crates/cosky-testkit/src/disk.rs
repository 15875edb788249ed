//! A disk in memory that fills up, fails, and loses power, for databases that write through [`redb::StorageBackend`].

use std::{
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use rand::{RngExt, SeedableRng, rngs::StdRng};
use redb::StorageBackend;

/// What a disk writes whole or not at all.
const SECTOR: usize = 512;

/// A disk that holds one file. Clones are the same disk, so a test keeps one to switch faults on and to cut the power
/// while a database uses a [`file`](Self::file) of it.
#[derive(Debug, Clone, Default)]
pub struct Disk(Arc<Shared>);

/// The file of a [`Disk`], as redb takes it; clones are the same file. Like a file that is held open, it stays usable when a fault is over.
#[derive(Debug, Clone)]
pub struct DiskFile(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    content: Mutex<Content>,
    /// Whether each write and each growth fails with "no space left".
    full: AtomicBool,
    /// Whether syncs are reported as done and not done.
    lying: AtomicBool,
    /// What the disk still does.
    countdown: Mutex<Countdown>,
    /// Whether syncs wait, and whom to wake when they no longer do.
    hanging: (Mutex<bool>, Condvar),
}

/// Calls that still succeed, and what fails after them.
#[derive(Debug, Default)]
enum Countdown {
    /// Nothing fails.
    #[default]
    Off,
    /// So many calls succeed, then all fail until the disk is healed.
    All(u64),
    /// So many syncs succeed, then all fail until the disk is healed.
    Syncs(u64),
}

#[derive(Debug, Default)]
struct Content {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What is there after a power cut for sure.
    synced: Vec<u8>,
    /// What was done to it since, in order.
    pending: Vec<Pending>,
    syncs: u64,
}

#[derive(Debug)]
enum Pending {
    Write { offset: usize, data: Vec<u8> },
    Length(usize),
}

/// What a call asks of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Read,
    Write,
    Grow,
    Shrink,
    Sync,
}

impl Disk {
    /// An empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    /// A disk that holds `image`, all of it synced.
    pub fn holding(image: Vec<u8>) -> Self {
        let content = Content { synced: image.clone(), seen: image, ..Content::default() };
        Self(Arc::new(Shared { content: Mutex::new(content), ..Shared::default() }))
    }

    /// Its file, as redb takes it.
    pub fn file(&self) -> DiskFile {
        DiskFile(Arc::clone(&self.0))
    }

    /// What a reader sees now.
    pub fn image(&self) -> Vec<u8> {
        self.0.content().seen.clone()
    }

    /// How often it was synced.
    pub fn syncs(&self) -> u64 {
        self.0.content().syncs
    }

    /// The disk as a power cut at this moment leaves it: all that was synced, and of each later write, sector by
    /// sector, what `seed` chooses. This disk goes on unharmed.
    pub fn crash(&self, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let content = self.0.content();
        let mut image = content.synced.clone();
        // Some cuts lose nearly all and some nearly nothing: a fixed half would seldom keep a whole commit.
        let kept = random.random_range(0.0..=1.0);
        for pending in &content.pending {
            match pending {
                Pending::Length(len) if random.random_bool(kept) => image.resize(*len, 0),
                Pending::Length(_) => {}
                Pending::Write { offset, data } => {
                    for (at, sector) in sectors(*offset, data) {
                        if random.random_bool(kept) {
                            write(&mut image, at, sector);
                        }
                    }
                }
            }
        }
        Self::holding(image)
    }

    /// From now on nothing is synced, though each sync is reported as done: what a database that leaves out its fsync
    /// looks like.
    pub fn lie_about_syncs(&self) {
        self.0.lying.store(true, Ordering::SeqCst);
    }

    /// While `full`, each write and each growth fails with "no space left on device"; reads and shrinking go on.
    pub fn set_full(&self, full: bool) {
        self.0.full.store(full, Ordering::SeqCst);
    }

    /// After `calls` more calls of any kind, all fail until [`heal`](Self::heal).
    pub fn fail_after(&self, calls: u64) {
        *self.0.countdown() = Countdown::All(calls);
    }

    /// After `syncs` more syncs, all further ones fail until [`heal`](Self::heal).
    pub fn fail_syncs_after(&self, syncs: u64) {
        *self.0.countdown() = Countdown::Syncs(syncs);
    }

    /// From now on each sync waits until [`heal`](Self::heal), as on a network disk whose server is away.
    pub fn hang(&self) {
        *self.0.hanging.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Ends every fault.
    pub fn heal(&self) {
        *self.0.hanging.0.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.0.hanging.1.notify_all();
        self.set_full(false);
        self.0.lying.store(false, Ordering::SeqCst);
        *self.0.countdown() = Countdown::Off;
    }
}

impl Shared {
    fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn countdown(&self) -> MutexGuard<'_, Countdown> {
        self.countdown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the disk does what `call` asks.
    fn admit(&self, call: Call) -> io::Result<()> {
        let left = match &mut *self.countdown() {
            Countdown::Syncs(left) if call == Call::Sync => Some(left.checked_sub(1).map(|now| *left = now)),
            Countdown::All(left) => Some(left.checked_sub(1).map(|now| *left = now)),
            Countdown::Off | Countdown::Syncs(_) => None,
        };
        let hanging = self.hanging.0.lock().unwrap_or_else(PoisonError::into_inner);
        if call == Call::Sync {
            drop(self.hanging.1.wait_while(hanging, |hanging| *hanging));
        }
        if left == Some(None) {
            return Err(io::Error::other("the simulated disk fails"));
        }
        if self.full.load(Ordering::SeqCst) && matches!(call, Call::Write | Call::Grow) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error()));
        }
        Ok(())
    }
}

impl StorageBackend for DiskFile {
    fn len(&self) -> io::Result<u64> {
        self.0.admit(Call::Read)?;
        Ok(self.0.content().seen.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.admit(Call::Read)?;
        let offset = size(offset)?;
        let content = self.0.content();
        let found = content.seen.get(offset..offset + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let len = size(len)?;
        let grows = len > self.0.content().seen.len();
        self.0.admit(if grows { Call::Grow } else { Call::Shrink })?;
        let mut content = self.0.content();
        content.seen.resize(len, 0);
        content.pending.push(Pending::Length(len));
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.admit(Call::Sync)?;
        if !self.0.lying.load(Ordering::SeqCst) {
            let Content { synced, pending, syncs, .. } = &mut *self.0.content();
            for done in pending.drain(..) {
                match done {
                    Pending::Length(len) => synced.resize(len, 0),
                    Pending::Write { offset, data } => write(synced, offset, &data),
                }
            }
            *syncs += 1;
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.admit(Call::Write)?;
        let offset = size(offset)?;
        let mut content = self.0.content();
        write(&mut content.seen, offset, data);
        content.pending.push(Pending::Write { offset, data: data.to_owned() });
        Ok(())
    }
}

fn size(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// Writes as a file system does: what lies beyond the end makes the file longer.
fn write(image: &mut Vec<u8>, offset: usize, data: &[u8]) {
    if image.len() < offset + data.len() {
        image.resize(offset + data.len(), 0);
    }
    image[offset..offset + data.len()].copy_from_slice(data);
}

/// Splits a write where the disk may stop in it.
fn sectors(offset: usize, data: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let head = (SECTOR - offset % SECTOR).min(data.len());
    let (first, rest) = data.split_at(head);
    let rest = rest.chunks(SECTOR).enumerate().map(move |(n, chunk)| (offset + head + n * SECTOR, chunk));
    std::iter::once((offset, first)).chain(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_any_of_the_rest() {
        let disk = Disk::new();
        let file = disk.file();
        file.set_len(4096).unwrap();
        file.write(0, &[1; 1024]).unwrap();
        file.sync_data().unwrap();
        file.write(1024, &[2; 1024]).unwrap();
        let images: Vec<_> = (0..64).map(|seed| disk.crash(seed).image()).collect();
        assert!(images.iter().all(|image| image[..1024] == [1; 1024] && image[2048..] == [0; 2048]));
        for (first, second) in [(0, 0), (0, 2), (2, 0), (2, 2)] {
            assert!(images.iter().any(|image| (image[1024], image[1536]) == (first, second)));
        }
        assert_eq!(disk.crash(7).image(), disk.crash(7).image(), "a seed says what is lost");
    }

    #[test]
    fn a_lying_disk_keeps_nothing_for_sure() {
        let disk = Disk::new();
        disk.lie_about_syncs();
        disk.file().write(0, &[1; 512]).unwrap();
        disk.file().sync_data().unwrap();
        assert!((0..16).any(|seed| disk.crash(seed).image().is_empty()));
        assert_eq!(disk.syncs(), 0);
    }

    #[test]
    fn a_full_disk_refuses_to_write_and_recovers() {
        let disk = Disk::holding(vec![3; 16]);
        let file = disk.file();
        disk.set_full(true);
        assert_eq!(file.write(0, &[1]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.set_len(32).unwrap_err().kind(), io::ErrorKind::StorageFull);
        file.read(0, &mut [0; 16]).unwrap();
        file.set_len(8).unwrap();
        disk.heal();
        file.write(0, &[1]).unwrap();
        assert_eq!(disk.image(), [1, 3, 3, 3, 3, 3, 3, 3]);
        assert!(file.read(8, &mut [0]).is_err());
    }

    #[test]
    fn calls_and_syncs_are_counted() {
        let disk = Disk::new();
        let file = disk.file();
        disk.fail_after(2);
        assert!(file.write(0, &[1]).is_ok() && file.len().is_ok());
        assert!(file.len().is_err() && file.sync_data().is_err());
        disk.fail_syncs_after(1);
        assert!(file.sync_data().is_ok() && file.sync_data().is_err() && file.len().is_ok());
        disk.heal();
        assert!(file.sync_data().is_ok());
    }
}
