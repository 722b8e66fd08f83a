//! The bytes that a user may have in answers that nobody has taken yet: a part of the server's memory, beyond which
//! more are refused.

use std::sync::Arc;

use http::{Response, StatusCode};
use registry::status::Status;
use registry::user::GROUP_MASTERS;
use wire::Body;
use wire::held::Hold;

use crate::exchange::{Exchange, is_foreign};
use crate::respond;

/// A shorter answer counts nothing: 250 of these are what one connection can have at once.
const COUNTED_BYTES_MIN: usize = 4 * 1024;

/// Counts an answer before it is made. This process's own parts are counted nowhere: they take what they ask for.
///
/// Errors: 429 to a reader that has taken too little of what it has got. Masters and those who write are never refused.
pub(crate) fn count(x: &mut Exchange<'_>, bytes: usize) -> Result<(), Status> {
    if x.conn.identity.is_some() {
        return Ok(());
    }
    let (accounts, user) = (&x.server.held, &x.attributes.user);
    if !x.attributes.is_read_only() || user.in_group(GROUP_MASTERS) {
        x.held = Some(accounts.note(&user.name, bytes));
        return Ok(());
    }
    match accounts.take(&user.name, bytes) {
        Some(hold) => x.held = Some(hold),
        None => {
            return Err(Status::too_many_requests(
                "Too many answers of earlier requests have not been read, please try again later.",
                1,
            ));
        }
    }
    Ok(())
}

/// Puts an answer that is in memory into its reader's account, unless it is there already.
pub(crate) fn attach(x: &mut Exchange<'_>, mut response: Response<Body>) -> Response<Body> {
    let said = response.headers().get(http::header::CONTENT_LENGTH).and_then(|len| len.to_str().ok()?.parse().ok());
    let bytes: Option<usize> = said.or_else(|| usize::try_from(wire::body::len(response.body())?).ok());
    if let Some(bytes) = bytes.filter(|bytes| *bytes >= COUNTED_BYTES_MIN && x.held.is_none() && !is_foreign(x))
        && let Err(status) = count(x, bytes)
    {
        return respond::status(&status, &x.parts.headers);
    }
    let is_upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if let Some(hold) = x.held.take().filter(|_| !is_upgraded) {
        response.extensions_mut().insert::<Arc<Hold>>(hold);
    }
    response
}
