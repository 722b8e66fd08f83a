//! The form of a record: a header, what it says, and the entries, over sectors of 512 bytes that each say to which
//! record they belong.
//!
//! ```text
//! sector:  0 500 bytes of the record | 500 crc of the record, again |
//!         504 tag: salt, segment, crc and the sector's place, mixed
//! record:  0 "kdg2" | 4 crc32 of all from 8 on | 8 bytes of the body | 12 bytes with padding |
//!         16 salt | 24 segment | 32 number | 40 crc32 of these 40 | 44 body
//! body: head_bytes u32, Head, then for each entry its bytes u32, Entry
//! ```
//! Numbers are little-endian. The segment is that of the file's name, which no file had before; the salt is a secret of
//! the database to which the log belongs; records are counted over the whole log. So what a file held in a life before,
//! or what somebody wrote into a value, is never taken for a record.
//!
//! The tags tell a record that was torn from one that is *rotten*: a record whose sectors all arrived was acknowledged,
//! perhaps, and if its sum is wrong now, that is damage. Of a torn one some sector did not arrive. A sector has no tag
//! by chance, nor one of a record that was torn at the same place before, as the sum of that one was another. Records
//! of before ("kdgl") have no tags.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::codec::{decode, encode};
use crate::error::Error;
use crate::journal::frame::{EntryId, Frame};

/// Bytes before the body.
const HEADER_BYTES: usize = 44;
/// The same in records of before.
const OLD_HEADER_BYTES: usize = 40;
/// Bytes of a record in one sector, before what says where the sector belongs.
const SECTOR_BYTES: usize = 500;

/// Records begin at multiples of this; a disk may ask for larger blocks.
pub const STEP_BYTES: usize = 512;

const MAGIC: [u8; 4] = *b"kdg2";
const OLD_MAGIC: [u8; 4] = *b"kdgl";

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

/// Content of a record. New variants are added at the end: the form on the disk counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Head {
    /// Entries follow. Those that the log has from the first of them on count no more; if it ends before `prev`, all
    /// that it has is in the database and counts no more.
    Entries {
        /// The entry before the first.
        prev: Option<EntryId>,
        /// The last of them.
        last: EntryId,
    },
    /// Entries from `since` on count no more.
    Truncate {
        /// The first of them.
        since: u64,
    },
}

/// The body of a record.
pub fn body(head: &Head, entries: &[Frame]) -> Result<Vec<u8>, Error> {
    let mut out = Vec::new();
    let mut push = |part: &[u8]| -> Result<(), Error> {
        let bytes = u32::try_from(part.len()).map_err(Error::io("cannot append to the log"))?;
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(part);
        Ok(())
    };
    push(&encode(head)?)?;
    for entry in entries {
        push(&entry.bytes)?;
    }
    Ok(out)
}

/// The bytes that a record with such a body takes at least.
pub fn bytes(body_bytes: usize) -> usize {
    (HEADER_BYTES + body_bytes).div_ceil(SECTOR_BYTES) * STEP_BYTES
}

/// Makes a record of `body` in `out`, which is as long as the record is with its padding.
pub fn seal(out: &mut [u8], mark: Mark, body: &[u8]) -> Result<(), Error> {
    let too_long = || Error::io("cannot append to the log");
    let (length, span) =
        (u32::try_from(body.len()).map_err(too_long())?, u32::try_from(out.len()).map_err(too_long())?);
    let mut whole = vec![0; HEADER_BYTES + body.len()];
    whole[..4].copy_from_slice(&MAGIC);
    whole[8..12].copy_from_slice(&length.to_le_bytes());
    whole[12..16].copy_from_slice(&span.to_le_bytes());
    for (at, number) in [(16, mark.salt), (24, mark.segment), (32, mark.number)] {
        whole[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    whole[HEADER_BYTES..].copy_from_slice(body);
    // Of all but the two sums of the header, so that neither is in the other.
    let crc = sum(&whole);
    whole[4..8].copy_from_slice(&crc.to_le_bytes());
    let head_crc = crc32fast::hash(&whole[..40]);
    whole[40..44].copy_from_slice(&head_crc.to_le_bytes());
    out.fill(0);
    let mut parts = whole.chunks(SECTOR_BYTES);
    for (place, sector) in (0_u64..).zip(out.chunks_exact_mut(STEP_BYTES)) {
        let part = parts.next().unwrap_or_default();
        sector[..part.len()].copy_from_slice(part);
        sector[500..504].copy_from_slice(&crc.to_le_bytes());
        sector[504..].copy_from_slice(&tag(mark.salt, mark.segment, crc, place).to_le_bytes());
    }
    Ok(())
}

/// The sum of a record: header without its sums, and body.
fn sum(whole: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&whole[8..40]);
    hasher.update(&whole[HEADER_BYTES..]);
    hasher.finalize()
}

/// The tag that each sector of a record carries. Clients that write values do not know the salt.
fn tag(salt: u64, segment: u64, crc: u32, place: u64) -> u64 {
    // The finalizer of SplitMix64, once for each number.
    [segment, u64::from(crc), place].iter().fold(salt, |mixed, number| {
        let mut z = (mixed ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// A whole record.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// Where it belongs.
    pub mark: Mark,
    /// Its bytes with padding.
    pub span: usize,
    body: Cow<'a, [u8]>,
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes)
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
}

/// The record that starts at the first of these bytes; `None` if they hold no whole one.
pub fn read(bytes: &[u8]) -> Option<Record<'_>> {
    let magic = bytes.get(..4)?;
    let is_old = magic == OLD_MAGIC;
    if magic != MAGIC && !is_old {
        return None;
    }
    let (length, span) = (usize::try_from(word(bytes, 8)?).ok()?, usize::try_from(word(bytes, 12)?).ok()?);
    let mark = Mark { salt: long(bytes, 16)?, segment: long(bytes, 24)?, number: long(bytes, 32)? };
    if !span.is_multiple_of(STEP_BYTES) || span > bytes.len() {
        return None;
    }
    if is_old {
        let end = OLD_HEADER_BYTES.checked_add(length).filter(|end| *end <= span)?;
        let is_whole = crc32fast::hash(&bytes[8..end]) == word(bytes, 4)?;
        return is_whole.then(|| Record { mark, span, body: Cow::Borrowed(&bytes[OLD_HEADER_BYTES..end]) });
    }
    let end = HEADER_BYTES.checked_add(length).filter(|end| *end <= span / STEP_BYTES * SECTOR_BYTES)?;
    if crc32fast::hash(&bytes[..40]) != word(bytes, 40)? {
        return None;
    }
    let mut whole: Vec<u8> =
        bytes[..span].chunks_exact(STEP_BYTES).flat_map(|sector| &sector[..SECTOR_BYTES]).copied().take(end).collect();
    (sum(&whole) == word(bytes, 4)?).then(|| Record { mark, span, body: Cow::Owned(whole.split_off(HEADER_BYTES)) })
}

/// Whether these bytes, which hold no whole record, were one of this log: all of its sectors were written, and it is
/// damaged.
pub fn is_rotten(bytes: &[u8], salt: u64, segment: u64) -> bool {
    let is_of = |place: u64, sector: &[u8], crc: u32| long(sector, 504) == Some(tag(salt, segment, crc, place));
    let Some(first) = bytes.get(..STEP_BYTES) else { return false };
    // The sector says it itself, also if the header says nothing any more.
    let Some(crc) = word(first, 500).filter(|crc| is_of(0, first, *crc)) else { return false };
    let head_is_whole = first[..4] == MAGIC && word(first, 40) == Some(crc32fast::hash(&first[..40]));
    let span =
        word(first, 12).and_then(|span| usize::try_from(span).ok()).filter(|span| span.is_multiple_of(STEP_BYTES));
    match span.filter(|_| head_is_whole).and_then(|span| bytes.get(..span)) {
        Some(all) => (0_u64..).zip(all.chunks_exact(STEP_BYTES)).all(|(place, sector)| is_of(place, sector, crc)),
        None => true,
    }
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
    /// Decodes the record's content.
    ///
    /// Errors: `Io` if a newer kedge wrote it.
    pub fn head(&self) -> Result<Head, Error> {
        decode(part(&self.body).ok_or_else(cut_short)?.0)
    }

    /// Its entries.
    ///
    /// Errors: `Io` if a newer kedge wrote it.
    pub fn entries(&self) -> Result<Vec<Frame>, Error> {
        let mut rest = part(&self.body).ok_or_else(cut_short)?.1;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, behind) = part(rest).ok_or_else(cut_short)?;
            entries.push(Frame::read(entry)?);
            rest = behind;
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use base::rng::Rng;

    use super::*;
    use crate::mvcc::entry::{Entry, Payload};

    const MARK: Mark = Mark { salt: 77, segment: 3, number: 12 };

    fn log(index: u64) -> EntryId {
        EntryId::new(2, 1, index)
    }

    fn sealed(span: usize) -> Vec<u8> {
        let entry = Entry { log_id: log(7), payload: Payload::Blank }.frame().unwrap();
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
        assert_eq!(record.entries().unwrap().iter().map(|e| e.id).collect::<Vec<_>>(), [log(7)]);
        assert!(bytes[512..512 + SECTOR_BYTES].iter().all(|b| *b == 0));
        let takes = [0, SECTOR_BYTES - HEADER_BYTES, SECTOR_BYTES].map(super::bytes);
        assert_eq!(takes, [512, 512, 1024]);
    }

    /// security.md S3: a log that ends where a bit turned would take an acknowledged entry back.
    #[test]
    fn a_record_with_any_bit_turned_is_whole_or_rotten_and_never_an_end() {
        let whole = sealed(1024);
        let length = HEADER_BYTES + read(&whole).unwrap().body.len();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let is_read = read(&bytes).is_some();
            assert_eq!(is_read, bit / 8 >= length, "bit {bit}");
            assert!(is_read || is_rotten(&bytes, MARK.salt, MARK.segment), "bit {bit}");
        }
        assert!(!is_rotten(&whole, MARK.salt + 1, MARK.segment) && !is_rotten(&whole, MARK.salt, MARK.segment + 1));
    }

    #[test]
    fn a_record_of_which_a_sector_did_not_arrive_is_torn_also_over_one_that_was_torn_there_before() {
        let entry = |n: u8| {
            let put = crate::txn::Op::Put { key: "k".into(), value: vec![n; 1200].into(), lease: 0, prev_kv: false };
            let commands = vec![crate::command::Command::Txn(crate::txn::Txn {
                success: vec![put],
                ..crate::txn::Txn::default()
            })];
            let batch = crate::command::Batch { commands: commands.into(), ..Default::default() };
            Entry { log_id: log(7), payload: Payload::Normal(batch) }.frame().unwrap()
        };
        let sealed = |n| {
            let body = body(&Head::Entries { prev: Some(log(6)), last: log(7) }, &[entry(n)]).unwrap();
            let mut out = vec![0; bytes(body.len())];
            seal(&mut out, MARK, &body).unwrap();
            out
        };
        let (before, now) = (sealed(1), sealed(2));
        assert_eq!(now.len(), 3 * 512);
        for old in [vec![0; now.len()], before] {
            for arrived in 0..0b111_u8 {
                let mut torn = old.clone();
                for sector in (0..3).filter(|sector| arrived & (1 << sector) != 0) {
                    torn[sector * 512..][..512].copy_from_slice(&now[sector * 512..][..512]);
                }
                if arrived != 0 {
                    assert!(read(&torn).is_none() && !is_rotten(&torn, MARK.salt, MARK.segment), "{arrived:b}");
                }
            }
        }
    }

    /// A log of before is read on.
    #[test]
    fn a_record_of_the_form_before_is_read() {
        let body = body(&Head::Truncate { since: 3 }, &[]).unwrap();
        let mut out = vec![0; 512];
        out[..4].copy_from_slice(&OLD_MAGIC);
        out[8..12].copy_from_slice(&u32::try_from(body.len()).unwrap().to_le_bytes());
        out[12..16].copy_from_slice(&512_u32.to_le_bytes());
        out[24] = 3;
        out[OLD_HEADER_BYTES..OLD_HEADER_BYTES + body.len()].copy_from_slice(&body);
        let crc = crc32fast::hash(&out[8..OLD_HEADER_BYTES + body.len()]);
        out[4..8].copy_from_slice(&crc.to_le_bytes());
        let record = read(&out).unwrap();
        assert_eq!((record.mark.segment, record.head().unwrap()), (3, Head::Truncate { since: 3 }));
        out[60] ^= 1;
        assert!(!is_rotten(&out, 0, 3));
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
                let (crc, old) =
                    (sum(&bytes[..HEADER_BYTES + length]), crc32fast::hash(&bytes[8..OLD_HEADER_BYTES + length]));
                let is_old = rng.below(2) == 0;
                bytes[..4].copy_from_slice(if is_old { &OLD_MAGIC } else { &MAGIC });
                bytes[4..8].copy_from_slice(&if is_old { old } else { crc }.to_le_bytes());
                if !is_old {
                    let head = crc32fast::hash(&bytes[..40]);
                    bytes[40..44].copy_from_slice(&head.to_le_bytes());
                }
            }
            let _rotten_or_not = is_rotten(&bytes, MARK.salt, MARK.segment);
            if let Some(record) = read(&bytes) {
                let _whatever = (record.head(), record.entries());
            }
        }
    }
}
