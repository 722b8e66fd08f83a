//! Bytes as hexadecimal digits, in lower case.

use std::fmt::Write;

/// Two digits a byte, nothing between them.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    join(bytes, "")
}

/// Two digits a byte with `between` between them, as link addresses are written with colons.
#[must_use]
pub fn join(bytes: &[u8], between: &str) -> String {
    let mut text = String::with_capacity(bytes.len() * (2 + between.len()));
    for (at, byte) in bytes.iter().enumerate() {
        let _infallible = write!(text, "{}{byte:02x}", if at == 0 { "" } else { between });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        for (bytes, plain, colons) in [(&[][..], "", ""), (&[0], "00", "00"), (&[0, 0x0a, 0xff], "000aff", "00:0a:ff")]
        {
            assert_eq!((encode(bytes), join(bytes, ":")), (plain.to_owned(), colons.to_owned()));
        }
    }
}
