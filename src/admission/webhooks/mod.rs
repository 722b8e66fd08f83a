//! Admission webhooks: programs outside of this server that change and judge objects.
//!
//! [`Mutating`] asks one after the other, in the order of the configurations' names; [`Validating`] asks all at once.

pub mod hook;
pub mod mutating;
pub mod outside;
pub mod question;
pub mod validating;

pub use mutating::Mutating;
pub use outside::Outside;
pub use validating::Validating;

#[cfg(test)]
mod tests;
