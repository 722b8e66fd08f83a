//! Changes of nftables.

use crate::elements::{Interval, Use, entries, join};
use crate::error::NetfilterError;
use crate::look;
use crate::script::{Merge, compile, put_elements};
use crate::socket::{Conversation, Mode};

/// A transaction that needs what it read is begun anew this often when others are faster.
const TRIES: usize = 20;

/// Applies a script in one transaction: all of it is in force, or nothing changed. One without a command costs nothing.
///
/// Blocks for as long as the kernel takes.
/// Errors: what the kernel refused, with the line, or that the script is not of our language; then nothing has changed.
/// After [`NetfilterError::Lost`] it may have.
pub fn apply(script: &str) -> Result<(), NetfilterError> {
    send(script, Mode::Commit)
}

/// Whether the kernel would take a script. Nothing is changed.
pub fn would_take(script: &str) -> Result<(), NetfilterError> {
    send(script, Mode::Check)
}

fn send(script: &str, mode: Mode) -> Result<(), NetfilterError> {
    for _ in 0..TRIES {
        let mut compiled = compile(script)?;
        if compiled.batch.is_empty() && compiled.merges.is_empty() {
            return Ok(());
        }
        let mut kernel = Conversation::open()?;
        let mut generation = None;
        if !compiled.merges.is_empty() {
            generation = Some(look::generation(&mut kernel)?);
            for merge in compiled.merges {
                let there = look::intervals(&mut kernel, merge.place)?;
                put_merged(&mut compiled.batch, &merge, there);
            }
            if compiled.batch.is_empty() {
                return Ok(());
            }
        }
        match kernel.transact(script, &mut compiled.batch, (mode, generation)) {
            Err(err) if generation.is_some() && is_outdated(&err) => {}
            done => return done,
        }
    }
    Err(NetfilterError::Unsteady)
}

/// Whether others changed the tables between reading and writing.
fn is_outdated(err: &NetfilterError) -> bool {
    err.errno().is_some_and(|errno| errno.raw_os_error() == ERESTART)
}

const ERESTART: i32 = 85;

/// Adds intervals to a set that has others: those that they meet are joined with them, as nft joins them.
fn put_merged(batch: &mut crate::script::Batch, merge: &Merge<'_>, there: Vec<Interval>) {
    let Merge { line, place, intervals } = merge;
    let wanted = join(there.iter().chain(intervals).cloned().collect());
    let stale: Vec<Interval> = there.iter().filter(|interval| !wanted.contains(interval)).cloned().collect();
    let fresh: Vec<Interval> = wanted.into_iter().filter(|interval| !there.contains(interval)).collect();
    if !stale.is_empty() {
        put_elements(batch, *line, *place, (&entries(&stale, Use::Delete), None), Use::Delete);
    }
    if !fresh.is_empty() {
        put_elements(batch, *line, *place, (&entries(&fresh, Use::Add), None), Use::Add);
    }
}
