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
    postcard::from_bytes(formed(bytes)?).map_err(Error::io("cannot decode a message between members"))
}

/// Reads the first field of what [`encode`] wrote, and looks at nothing behind it.
pub fn decode_front<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Error> {
    let read = postcard::take_from_bytes(formed(bytes)?);
    read.map(|(front, _)| front).map_err(Error::io("cannot decode a message between members"))
}

/// The bytes behind the number of their form.
fn formed(bytes: &[u8]) -> Result<&[u8], Error> {
    match bytes.split_first() {
        Some((&FORM, rest)) => Ok(rest),
        Some((form, _)) => Err(Error::Io {
            doing: "cannot decode a message between members",
            why: format!("its form {form} is newer than this kedge"),
        }),
        None => Err(Error::Io { doing: "cannot decode a message between members", why: "it is empty".to_owned() }),
    }
}
