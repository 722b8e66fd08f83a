//! Values that must not reach a log: `Debug` and `Display` print nothing of them.

use std::fmt;

/// Holds a secret. Only [`Secret::expose`] gives it back, so a reader can find every use.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret<T>(T);

impl<T> Secret<T> {
    /// Takes the value out of sight.
    pub fn new(value: T) -> Secret<T> {
        Secret(value)
    }

    /// The value itself.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
