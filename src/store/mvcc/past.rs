//! Reading the past for a watch.

use crate::error::Error;
use crate::EventBatch;

/// Pages through the history of a range.
#[derive(Debug)]
pub(crate) struct Past {}

impl Past {
    /// The next page; `None` at the end.
    pub(crate) async fn page(&mut self) -> Result<Option<Vec<EventBatch>>, Error> {
        Ok(None)
    }
}
