//! The bytes of a body once it is a tree: three bytes of an empty struct become a thousand. Paid while the tree grows,
//! not after.

use std::cell::Cell;

use serde_json::Value;

/// Bytes of the tree that one body may become. The largest object that is stored (1.5 MiB) needs half of it even if it
/// is nothing but structs of one short field.
pub(crate) const TREE_BYTES_MAX: usize = 48 * 1024 * 1024;
/// A map with its first entry: the least that the allocator gives.
const MAP_BYTES: usize = 640;
/// A value in a list, a further entry of a map.
const VALUE_BYTES: usize = 64;

/// Why a body is refused that would become more.
pub(crate) const TOO_LARGE: &str = "the object is too large once it is decoded";

/// The bytes that are left for one tree.
pub(crate) struct Purse(Cell<usize>);

impl Purse {
    /// Before anything was read.
    pub(crate) fn new() -> Purse {
        Purse(Cell::new(TREE_BYTES_MAX))
    }

    /// Pays for one value and its name or text.
    pub(crate) fn value(&self, text_bytes: usize) -> Result<(), &'static str> {
        self.pay(VALUE_BYTES + text_bytes)
    }

    /// Pays for a map that holds something.
    pub(crate) fn map(&self) -> Result<(), &'static str> {
        self.pay(MAP_BYTES)
    }

    /// Pays for a tree that is there already.
    pub(crate) fn tree(&self, value: &Value) -> Result<(), &'static str> {
        match value {
            Value::Object(fields) if !fields.is_empty() => {
                self.map()?;
                fields.values().try_for_each(|v| self.tree(v))
            }
            Value::Array(items) => items.iter().try_for_each(|v| self.tree(v)),
            _ => self.value(0),
        }
    }

    fn pay(&self, bytes: usize) -> Result<(), &'static str> {
        let left = self.0.get().checked_sub(bytes).ok_or(TOO_LARGE)?;
        self.0.set(left);
        Ok(())
    }
}
