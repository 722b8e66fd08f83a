//! Mutex and read-write lock that know no poison.
//!
//! A task that panics is contained (`base::task`), so a lock must serve those that come after it. What a lock guards is
//! therefore changed in steps of which each leaves it whole. Clippy refuses std's own two.
#![allow(clippy::disallowed_types, reason = "this is where std's locks are wrapped")]

use std::sync::{self, PoisonError};

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// Mutual exclusion, as [`std::sync::Mutex`].
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub const fn new(value: T) -> Mutex<T> {
        Mutex(sync::Mutex::new(value))
    }

    /// The guarded value, when nobody shares it any more.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Blocks until no other thread has it. A thread that has it already waits for ever.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The guarded value, without locking: the borrow shows that nobody else has it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Many readers or one writer, as [`std::sync::RwLock`].
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

impl<T> RwLock<T> {
    pub const fn new(value: T) -> RwLock<T> {
        RwLock(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Blocks while somebody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Blocks while anybody else has it.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_lock_serves_those_who_come_after_a_panic() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let broken = catch_unwind(AssertUnwindSafe(|| {
            let (mut a, mut b) = (mutex.lock(), lock.write());
            (*a, *b) = (2, 2);
            panic!("with both locks held");
        }));
        assert!(broken.is_err());
        let read = *lock.read();
        assert_eq!((*mutex.lock(), read, *lock.write()), (2, 2, 2));
        assert_eq!(mutex.into_inner(), 2);
    }
}
