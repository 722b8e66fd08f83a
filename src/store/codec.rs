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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_begins_with_its_form_and_a_newer_one_is_refused() {
        let bytes = encode(&(7_u64, "text")).unwrap();
        assert_eq!(bytes, b"\x01\x07\x04text");
        assert_eq!(decode::<(u64, String)>(&bytes).unwrap(), (7, "text".to_owned()));
        assert_eq!(decode_front::<u64>(&bytes).unwrap(), 7);
        let why = |bytes: &[u8]| decode::<(u64, String)>(bytes).unwrap_err().to_string();
        let doing = "cannot decode a message between members";
        assert_eq!(why(&[]), format!("{doing}: it is empty"));
        assert_eq!(why(&[2, 7, 4]), format!("{doing}: its form 2 is newer than this kedge"));
        assert!(why(&bytes[..4]).starts_with(doing), "cut short");
        assert!(decode_front::<u64>(&[1]).is_err());
    }
}
