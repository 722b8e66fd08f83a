//! Continue tokens: where the next page of a list starts, and as of when.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use registry::status::Status;
use serde::{Deserialize, Serialize};

/// The inside of a token, as upstream writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    #[serde(rename = "v")]
    version: String,
    /// Revision of the whole list; -1: whatever is there when the token comes back.
    #[serde(rename = "rv")]
    rv: i64,
    /// The first local key of the next page is this or the next behind it.
    pub start: String,
}

const VERSION: &str = "meta.k8s.io/v1";
const NOW: i64 = -1;

impl Token {
    /// A token for the keys behind `last`.
    pub fn after(last: &str, rv: u64) -> Token {
        Token { version: VERSION.to_owned(), rv: i64::try_from(rv).unwrap_or(i64::MAX), start: format!("{last}\0") }
    }

    /// The revision of the list that the pages belong to; `None` for a rest that is read as it is now.
    pub fn revision(&self) -> Option<u64> {
        u64::try_from(self.rv).ok()
    }

    /// A token for the same place in the list as it is when the token comes back.
    pub fn inconsistent(&self) -> Token {
        Token { rv: NOW, ..self.clone() }
    }

    /// For the wire.
    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    /// From the wire.
    ///
    /// Errors: 400 for anything this server did not write.
    pub fn decode(text: &str) -> Result<Token, Status> {
        let bad = || {
            Status::bad_request(
                "invalid continue token: continue key is not valid: the continue parameter was not issued by this \
                 server",
            )
        };
        let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|_| bad())?;
        let token: Token = serde_json::from_slice(&bytes).map_err(|_| bad())?;
        if token.version != VERSION || token.rv < NOW || token.rv == 0 || token.start.is_empty() {
            return Err(bad());
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_went_out() {
        let token = Token::after("default/web", 7);
        assert_eq!(Token::decode(&token.encode()).unwrap(), token);
        let rest = Token::decode(&token.inconsistent().encode()).unwrap();
        assert_eq!((rest.revision(), rest.start), (None, token.start));
        assert_eq!(Token::decode("bm9uc2Vuc2U").unwrap_err().code, 400);
    }

    #[test]
    fn a_token_that_this_server_did_not_write_is_refused() {
        let whole = |text: &str| URL_SAFE_NO_PAD.encode(text);
        for (text, is_taken) in [
            (r#"{"v":"meta.k8s.io/v1","rv":7,"start":"a\u0000"}"#, true),
            (r#"{"v":"meta.k8s.io/v1","rv":-1,"start":"a"}"#, true),
            (r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#, false),
            (r#"{"v":"meta.k8s.io/v1","rv":-2,"start":"a"}"#, false),
            (r#"{"v":"meta.k8s.io/v1","rv":7,"start":""}"#, false),
            (r#"{"v":"meta.k8s.io/v2","rv":7,"start":"a"}"#, false),
            (r#"{"v":"meta.k8s.io/v1","start":"a"}"#, false),
            ("[]", false),
        ] {
            assert_eq!(Token::decode(&whole(text)).is_ok(), is_taken, "{text}");
        }
        let padded = format!("{}==", Token::after("a", 7).encode());
        assert!(Token::decode(&padded).is_ok(), "clients may pad it");
        assert_eq!(
            Token::decode("*").unwrap_err().message,
            "invalid continue token: continue key is not valid: the continue parameter was not issued by this server"
        );
    }
}
