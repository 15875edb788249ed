//! A storage that is read and never written: what is written to it stays in memory. Opening a database may repair its
//! file, and a repair that fails would leave the file other than it was; on an overlay it may fail. Several overlays can
//! lie over one storage.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use redb::StorageBackend;

const PAGE: u64 = 4096;

/// `under` with what was written since, page by page.
#[derive(Debug)]
pub(crate) struct Overlay<B> {
    under: Arc<B>,
    over: Mutex<Over>,
}

#[derive(Debug)]
struct Over {
    len: u64,
    /// Up to here what is below counts; beyond it there are zeroes.
    below: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl<B: StorageBackend> Overlay<B> {
    /// # Errors
    /// What `under` says when it is asked for its length.
    pub(crate) fn new(under: Arc<B>) -> io::Result<Self> {
        let len = under.len()?;
        Ok(Self { under, over: Mutex::new(Over { len, below: len, pages: BTreeMap::new() }) })
    }

    fn over(&self) -> MutexGuard<'_, Over> {
        self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is below, and zeroes beyond its end.
    fn read_below(&self, below: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(below.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        let (there, beyond) = out.split_at_mut(there);
        beyond.fill(0);
        if there.is_empty() { Ok(()) } else { self.under.read(offset, there) }
    }
}

impl<B: StorageBackend> StorageBackend for Overlay<B> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.over().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let over = self.over();
        let end = offset + out.len() as u64;
        if end > over.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_below(over.below, offset, out)?;
        for (page, data) in over.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let start = page * PAGE;
            let (from, to) = (start.max(offset), (start + PAGE).min(end));
            out[span(offset, from, to)].copy_from_slice(&data[span(start, from, to)]);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut over = self.over();
        over.len = len;
        over.below = over.below.min(len);
        over.pages.split_off(&len.div_ceil(PAGE));
        if let Some(last) = over.pages.get_mut(&(len / PAGE)) {
            last[span(0, len % PAGE, PAGE)].fill(0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut over = self.over();
        let end = offset + data.len() as u64;
        over.len = over.len.max(end);
        for page in offset / PAGE..end.div_ceil(PAGE) {
            let start = page * PAGE;
            if !over.pages.contains_key(&page) {
                let mut below = vec![0; PAGE as usize];
                self.read_below(over.below, start, &mut below)?;
                over.pages.insert(page, below);
            }
            let (from, to) = (start.max(offset), (start + PAGE).min(end));
            if let Some(there) = over.pages.get_mut(&page) {
                there[span(start, from, to)].copy_from_slice(&data[span(offset, from, to)]);
            }
        }
        Ok(())
    }
}

/// The bytes from `from` to `to` within something that begins at `start`. All three lie in memory, so they fit.
fn span(start: u64, from: u64, to: u64) -> std::ops::Range<usize> {
    (from - start) as usize..(to - start) as usize
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;

    /// Random operations do to an overlay what they do to plain memory, and nothing to what is below.
    #[test]
    fn it_behaves_as_a_file_and_leaves_the_one_below() {
        let below = InMemoryBackend::new();
        below.set_len(10_000).unwrap();
        below.write(0, &[7; 10_000]).unwrap();
        let overlay = Overlay::new(Arc::new(below)).unwrap();
        let mut plain = vec![7; 10_000];
        for _ in 0..2000 {
            let (offset, len) =
                (rand::random::<u16>() as usize % 20_000, rand::random::<u16>() as usize % 9000);
            if rand::random_ratio(1, 4) {
                overlay.set_len(offset as u64).unwrap();
                plain.resize(offset, 0);
            } else {
                let data = vec![rand::random(); len];
                plain.resize(plain.len().max(offset + len), 0);
                plain[offset..offset + len].copy_from_slice(&data);
                overlay.write(offset as u64, &data).unwrap();
            }
            assert_eq!(overlay.len().unwrap(), plain.len() as u64);
            let from = plain.len() / 3;
            let mut read = vec![1; plain.len() - from];
            overlay.read(from as u64, &mut read).unwrap();
            assert!(read == plain[from..]);
        }
        assert!(overlay.read(plain.len() as u64, &mut [0]).is_err());
        let mut read = vec![0; 10_000];
        overlay.under.read(0, &mut read).unwrap();
        assert_eq!(read, [7; 10_000]);
    }
}
