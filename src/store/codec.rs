//! The bytes of messages between members, and of entries in the log: postcard.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// The form below.
const FORM: u8 = 1;

/// The bytes of a call, an answer or a log row.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    postcard::to_extend(value, vec![FORM]).map_err(Error::io("cannot encode a message between members"))
}

/// Reads what [`encode`] wrote.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    match bytes.split_first() {
        Some((&FORM, rest)) => postcard::from_bytes(rest).map_err(Error::io("cannot decode a message between members")),
        Some((form, _)) => Err(Error::Io {
            doing: "cannot decode a message between members",
            why: format!("its form {form} is newer than this kedge"),
        }),
        None => Err(Error::Io { doing: "cannot decode a message between members", why: "it is empty".to_owned() }),
    }
}
