//! The form of a record: a header, what it says, and the entries; padded with zeros to whole blocks.
//!
//! ```text
//! 0 "kdgl" | 4 crc32 of all from 8 on | 8 bytes of the body | 12 bytes with padding | 16 salt | 24 segment | 32 number | 40 body
//! body: head_bytes u32, Head, then for each entry its bytes u32, Entry
//! ```
//! Numbers are little-endian. The segment is that of the file's name, which no file had before; the salt is a secret of the database
//! to which the log belongs; records are counted over the whole log. So what a file held in a life before, or what somebody wrote
//! into a value, is never taken for a record.

use openraft::{Entry, LogId};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::raft::TypeConfig;
use crate::raft::rpc::{decode, encode};

/// Bytes before the body.
pub const HEADER_BYTES: usize = 40;

/// Records begin at multiples of this; a disk may ask for larger blocks.
pub const STEP_BYTES: usize = 512;

const MAGIC: [u8; 4] = *b"kdgl";

/// Where a record belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The database's.
    pub salt: u64,
    /// The segment.
    pub segment: u64,
    /// Counts the records of the log.
    pub number: u64,
}

/// What a record says. New variants are added at the end: the form on the disk counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Head {
    /// Entries follow. Those that the log has from the first of them on count no more; if it ends before `prev`, all that it has is in
    /// the database and counts no more.
    Entries {
        /// The entry before the first.
        prev: Option<LogId<u64>>,
        /// The last of them.
        last: LogId<u64>,
    },
    /// Entries from `since` on count no more.
    Truncate {
        /// The first of them.
        since: u64,
    },
}

/// The index after that of an entry.
pub fn next_index(log: Option<LogId<u64>>) -> u64 {
    log.map_or(0, |log| log.index + 1)
}

/// The body of a record.
pub fn body(head: &Head, entries: &[Entry<TypeConfig>]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut push = |part: Vec<u8>| -> Result<(), Error> {
        let bytes = u32::try_from(part.len()).map_err(Error::io("cannot append to the log"))?;
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&part);
        Ok(())
    };
    push(encode(head)?)?;
    for entry in entries {
        push(encode(entry)?)?;
    }
    Ok(out)
}

/// Makes a record of `body` in `out`, which is as long as the record is with its padding.
pub fn seal(out: &mut [u8], mark: Mark, body: &[u8]) -> Result<(), Error> {
    let too_long = || Error::io("cannot append to the log");
    let (length, span) = (u32::try_from(body.len()).map_err(too_long())?, u32::try_from(out.len()).map_err(too_long())?);
    out.fill(0);
    out[..4].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&length.to_le_bytes());
    out[12..16].copy_from_slice(&span.to_le_bytes());
    for (at, number) in [(16, mark.salt), (24, mark.segment), (32, mark.number)] {
        out[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    let end = HEADER_BYTES + body.len();
    out[HEADER_BYTES..end].copy_from_slice(body);
    let crc = crc32fast::hash(&out[8..end]);
    out[4..8].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// A whole record.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Where it belongs.
    pub mark: Mark,
    /// Its bytes with padding.
    pub span: usize,
    body: &'a [u8],
}

/// The record that starts at the first of these bytes; `None` if they hold no whole one.
pub fn read(bytes: &[u8]) -> Option<Record<'_>> {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes);
    let long = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    if bytes.get(..4)? != MAGIC {
        return None;
    }
    let (length, span) = (usize::try_from(word(8)?).ok()?, usize::try_from(word(12)?).ok()?);
    let end = HEADER_BYTES.checked_add(length)?;
    if span < end || !span.is_multiple_of(STEP_BYTES) || span > bytes.len() || crc32fast::hash(&bytes[8..end]) != word(4)? {
        return None;
    }
    let mark = Mark { salt: long(16)?, segment: long(24)?, number: long(32)? };
    Some(Record { mark, span, body: &bytes[HEADER_BYTES..end] })
}

/// The next part of a body, and what is behind it.
fn part(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

fn cut_short() -> Error {
    Error::Io { doing: "cannot read the log", why: "a record ends too early".to_owned() }
}

impl Record<'_> {
    /// What it says.
    ///
    /// Errors: `Io` if a newer kedge wrote it.
    pub fn head(&self) -> Result<Head, Error> {
        decode(part(self.body).ok_or_else(cut_short)?.0)
    }

    /// Its entries.
    ///
    /// Errors: `Io` if a newer kedge wrote it.
    pub fn entries(&self) -> Result<Vec<Entry<TypeConfig>>, Error> {
        let mut rest = part(self.body).ok_or_else(cut_short)?.1;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, behind) = part(rest).ok_or_else(cut_short)?;
            entries.push(decode(entry)?);
            rest = behind;
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use base::rng::Rng;
    use openraft::{CommittedLeaderId, EntryPayload};

    use super::*;

    const MARK: Mark = Mark { salt: 77, segment: 3, number: 12 };

    fn log(index: u64) -> LogId<u64> {
        LogId::new(CommittedLeaderId::new(2, 1), index)
    }

    fn sealed(span: usize) -> Vec<u8> {
        let entry = Entry::<TypeConfig> { log_id: log(7), payload: EntryPayload::Blank };
        let mut out = vec![0xff; span];
        seal(&mut out, MARK, &body(&Head::Entries { prev: Some(log(6)), last: log(7) }, &[entry]).unwrap()).unwrap();
        out
    }

    #[test]
    fn what_was_sealed_is_read_and_the_padding_is_zeros() {
        let bytes = sealed(1024);
        let record = read(&bytes).unwrap();
        assert_eq!((record.mark, record.span), (MARK, 1024));
        assert_eq!(record.head().unwrap(), Head::Entries { prev: Some(log(6)), last: log(7) });
        assert_eq!(record.entries().unwrap().iter().map(|e| e.log_id).collect::<Vec<_>>(), [log(7)]);
        assert!(bytes[512..].iter().all(|b| *b == 0));
    }

    #[test]
    fn a_record_with_any_bit_turned_is_none() {
        let whole = sealed(512);
        let length = HEADER_BYTES + read(&whole).unwrap().body.len();
        for bit in 0..length * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn bytes_of_no_meaning_never_panic() {
        let seed = Rng::from_os().below(u64::MAX);
        println!("seed {seed}");
        let (rng, whole) = (Rng::from_seed(seed), sealed(512));
        for _ in 0..20_000 {
            let mut bytes = whole[..usize::try_from(rng.below(513)).unwrap()].to_vec();
            for _ in 0..rng.below(4) {
                let n = bytes.len() as u64;
                if n > 0 {
                    bytes[usize::try_from(rng.below(n)).unwrap()] = u8::try_from(rng.below(256)).unwrap();
                }
            }
            // With a sum that is right, so that what is behind it is looked at too.
            if bytes.len() > HEADER_BYTES && rng.below(2) == 0 {
                let length = usize::try_from(rng.below((bytes.len() - HEADER_BYTES) as u64)).unwrap();
                bytes[8..12].copy_from_slice(&u32::try_from(length).unwrap().to_le_bytes());
                let crc = crc32fast::hash(&bytes[8..HEADER_BYTES + length]);
                bytes[4..8].copy_from_slice(&crc.to_le_bytes());
            }
            if let Some(record) = read(&bytes) {
                let _whatever = (record.head(), record.entries());
            }
        }
    }
}
