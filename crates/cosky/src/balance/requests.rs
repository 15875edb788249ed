//! How many requests are under way at one instance: an atomic number that threads raise and lower without waiting for each
//! other. The tests have loom go through all orders of that.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

/// Clones count the same requests.
#[derive(Debug, Default)]
pub(super) struct Requests<C = AtomicU32>(Arc<C>);

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Request<C: Counter = AtomicU32>(Arc<C>);

/// A number that threads share. No other memory depends on its order.
pub(super) trait Counter {
    fn get(&self) -> u32;
    fn raise(&self);
    fn lower(&self);
}

/// The same text for the standard library's atomic and for loom's, so that what loom judges is what runs.
macro_rules! counter {
    ($atomic:ty) => {
        impl Counter for $atomic {
            fn get(&self) -> u32 {
                self.load(Ordering::Relaxed)
            }

            fn raise(&self) {
                self.fetch_add(1, Ordering::Relaxed);
            }

            fn lower(&self) {
                self.fetch_sub(1, Ordering::Relaxed);
            }
        }
    };
}

counter!(AtomicU32);

impl<C: Counter> Requests<C> {
    /// How many there are. A count that is a moment old is as good a guess as any.
    pub(super) fn count(&self) -> u32 {
        self.0.get()
    }

    /// Counts one more.
    pub(super) fn begin(&self) -> Request<C> {
        self.0.raise();
        Request(self.0.clone())
    }
}

impl<C> Clone for Requests<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C: Counter> Drop for Request<C> {
    fn drop(&mut self) {
        self.0.lower();
    }
}

#[cfg(test)]
mod tests {
    use loom::{sync::atomic::AtomicU32, thread};

    use super::*;

    counter!(AtomicU32);

    /// Requests begin and end on some threads while another one takes the count over to a new list: none is lost, none stays,
    /// and no count is below what is held or above what has begun.
    #[test]
    fn no_order_of_beginnings_and_ends_miscounts() {
        loom::model(|| {
            let requests = Requests::<AtomicU32>(Arc::default());
            let held = requests.begin();
            let threads = [(); 2].map(|()| {
                let requests = requests.clone();
                thread::spawn(move || {
                    let request = requests.begin();
                    assert!((2..=3).contains(&requests.count()), "{}", requests.count());
                    drop(request);
                })
            });
            let taken_over = requests.clone();
            drop(requests);
            assert!((1..=3).contains(&taken_over.count()), "{}", taken_over.count());
            for thread in threads {
                thread.join().unwrap();
            }
            assert_eq!(taken_over.count(), 1);
            drop(held);
            assert_eq!(taken_over.count(), 0);
        });
    }
}
