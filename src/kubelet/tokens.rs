//! Tokens of projected volumes.

use std::collections::HashMap;
use std::time::Duration;

use base::sync::Mutex;
use jiff::{SignedDuration, Timestamp};

use crate::api_error::ApiError;

/// Tokens of projected volumes, kept as long as they are good.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<HashMap<String, Token>>);

/// A token of a pod's account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// When it was asked for: if the clock was set back behind that, nobody takes it yet.
    pub(crate) asked_at: Timestamp,
    /// From when on a fresh one is asked for.
    pub(crate) refresh_at: Timestamp,
    /// Until when this one is good, should there be no other.
    pub(crate) expires: Timestamp,
}

/// The API server gives no token.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("failed to fetch token")]
    Refused(#[source] ApiError),
    #[error("failed to fetch token: the answer holds none")]
    Empty,
}

/// A token that cannot be renewed is asked for again after so long.
const TOKEN_RETRY: SignedDuration = SignedDuration::from_secs(30);

/// A token that is good still is not waited for longer than this.
const TOKEN_PATIENCE: Duration = Duration::from_secs(5);

impl Tokens {
    /// The token of a volume's file: the one that is there until its time has come, then a fresh one. While that is not
    /// to be had the old one goes on as long as it is good (upstream's `GetServiceAccountToken`,
    /// pkg/kubelet/token/token_manager.go v1.36).
    ///
    /// Errors: those of `asking`, if there is no token that is good.
    pub(crate) async fn get(
        &self,
        key: String,
        now: Timestamp,
        asking: impl Future<Output = Result<Token, TokenError>>,
    ) -> Result<Token, TokenError> {
        let kept = self.0.lock().get(&key).filter(|kept| now >= kept.asked_at).cloned();
        let token = match kept {
            Some(kept) if now < kept.refresh_at => return Ok(kept),
            Some(kept) if now < kept.expires => match tokio::time::timeout(TOKEN_PATIENCE, asking).await {
                Ok(Ok(fresh)) => fresh,
                Ok(Err(_)) | Err(_) => {
                    Token { refresh_at: now.checked_add(TOKEN_RETRY).unwrap_or(kept.expires).min(kept.expires), ..kept }
                }
            },
            _ => asking.await?,
        };
        self.0.lock().insert(key, token.clone());
        Ok(token)
    }

    /// Forgets the tokens of a pod.
    pub(crate) fn forget(&self, pod_dir: &std::path::Path) {
        let prefix = pod_dir.display().to_string();
        self.0.lock().retain(|key, _| !key.starts_with(&prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md N6
    #[tokio::test]
    async fn a_token_is_kept_as_long_as_it_is_good_when_no_other_is_to_be_had() {
        let at = |secs: i64| Timestamp::from_second(secs).unwrap();
        let tokens = Tokens::default();
        let fresh = |text: &str| Token { text: text.to_owned(), asked_at: at(0), refresh_at: at(80), expires: at(100) };
        let get = async |now: i64, answer: Result<Token, TokenError>| {
            let got = tokens.get("k".to_owned(), at(now), async { answer }).await;
            got.map_err(|err| err.to_string())
        };
        let no = || Err(TokenError::Empty);
        let none = Err("failed to fetch token: the answer holds none".to_owned());
        assert_eq!(get(0, no()).await, none);
        assert_eq!(get(0, Ok(fresh("a"))).await, Ok(fresh("a")));
        assert_eq!(get(79, Ok(fresh("b"))).await, Ok(fresh("a")));
        assert_eq!(get(80, no()).await.map(|t| (t.text, t.refresh_at)), Ok(("a".to_owned(), at(100))));
        assert_eq!(get(100, no()).await, none, "it is good no longer");
        assert_eq!(get(100, Ok(fresh("b"))).await.map(|t| t.text), Ok("b".to_owned()));
        assert_eq!(
            get(-1, Ok(fresh("c"))).await.map(|t| t.text),
            Ok("c".to_owned()),
            "the clock was set back: it is of the future"
        );
    }

    #[tokio::test]
    async fn a_pod_that_is_gone_leaves_no_token_and_others_keep_theirs() {
        let at = |secs: i64| Timestamp::from_second(secs).unwrap();
        let tokens = Tokens::default();
        let get = async |key: &str, text: &str| {
            let (text, asked_at) = (text.to_owned(), at(0));
            let fresh = Token { text, asked_at, refresh_at: at(80), expires: at(100) };
            tokens.get(key.to_owned(), at(1), async { Ok(fresh) }).await.unwrap().text
        };
        get("/pods/a/volumes/t", "old").await;
        get("/pods/b/volumes/t", "old").await;
        tokens.forget(std::path::Path::new("/pods/a"));
        assert_eq!(get("/pods/a/volumes/t", "new").await, "new");
        assert_eq!(get("/pods/b/volumes/t", "new").await, "old");
    }
}
