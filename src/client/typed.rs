//! Typed objects made of JSON that is a value already.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a type off a value, by way of its text. serde makes the code that reads a type anew for each form that it is
/// read from, and objects from the API are read from text: the same code for values again would be megabytes of this
/// program.
pub fn typed<T: DeserializeOwned>(value: &Value) -> Result<T, serde_json::Error> {
    serde_json::from_str(&value.to_string())
}
