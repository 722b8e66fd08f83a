//! A written file is read back as bbolt reads it, every page used once; genuine etcd reads it in `etcd_tests`.

use std::collections::BTreeSet;
use std::io::Cursor;

use super::*;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads a file as bbolt does, and checks that every page is used once.
struct File {
    bytes: Vec<u8>,
    seen: BTreeSet<u64>,
}

fn number(bytes: &[u8], at: usize, n: usize) -> u64 {
    bytes[at..at + n].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn place(bytes: &[u8], at: usize, n: usize) -> usize {
    usize::try_from(number(bytes, at, n)).unwrap()
}

impl File {
    fn of(buckets: &[(&str, Pairs)]) -> File {
        let mut bolt = Bolt::new(Cursor::new(Vec::new())).unwrap();
        for (name, pairs) in buckets {
            let fill = |bucket: &mut Bucket<'_, Cursor<Vec<u8>>>| {
                pairs.iter().try_for_each(|(key, value)| bucket.push(key, value.clone()))
            };
            bolt.bucket::<io::Error>(name, fill).unwrap();
        }
        File { bytes: bolt.finish().unwrap().into_inner(), seen: BTreeSet::from([0, 1, FREELIST_PAGE]) }
    }

    /// The buckets with their pairs.
    fn read(&mut self) -> Vec<(String, Pairs)> {
        let meta = &self.bytes[PAGE_BYTES + HEADER_BYTES..PAGE_BYTES + HEADER_BYTES + 64];
        assert_eq!((number(meta, 0, 4), number(meta, 4, 4), number(meta, 8, 4)), (0xED0C_DAED, 2, 4096));
        let (root, n_pages) = (number(meta, 16, 8), number(meta, 40, 8));
        assert_eq!(n_pages as usize * PAGE_BYTES, self.bytes.len());
        let mut found = Vec::new();
        self.walk(root, &mut found);
        let buckets = found.into_iter().map(|(key, value)| {
            let mut pairs = Vec::new();
            match number(&value, 0, 8) {
                0 => self.elements(&value[16..], &mut pairs),
                root => self.walk(root, &mut pairs),
            }
            (String::from_utf8(key).unwrap(), pairs)
        });
        let buckets = buckets.collect();
        assert_eq!(self.seen, (0..n_pages).collect(), "every page is used once");
        buckets
    }

    fn walk(&mut self, id: u64, found: &mut Pairs) {
        let start = usize::try_from(id).unwrap() * PAGE_BYTES;
        let overflow = number(&self.bytes, start + 12, 4);
        assert_eq!(number(&self.bytes, start, 8), id);
        for page in id..=id + overflow {
            assert!(self.seen.insert(page), "page {page} is used twice");
        }
        let page = self.bytes[start..start + PAGE_BYTES * (1 + usize::try_from(overflow).unwrap())].to_vec();
        if number(&page, 8, 2) == u64::from(LEAF) {
            return self.elements(&page, found);
        }
        assert_eq!(number(&page, 8, 2), u64::from(BRANCH));
        for idx in 0..place(&page, 10, 2) {
            let at = HEADER_BYTES + idx * ELEMENT_BYTES;
            let key = at + place(&page, at, 4);
            let key = page[key..key + place(&page, at + 4, 4)].to_vec();
            let before = found.len();
            self.walk(number(&page, at + 8, 8), found);
            assert_eq!(found[before].0, key, "a branch names the first key of its child");
        }
    }

    fn elements(&self, page: &[u8], found: &mut Pairs) {
        for idx in 0..place(page, 10, 2) {
            let at = HEADER_BYTES + idx * ELEMENT_BYTES;
            let (key, n_key, n_value) = (at + place(page, at + 4, 4), place(page, at + 8, 4), place(page, at + 12, 4));
            found.push((page[key..key + n_key].to_vec(), page[key + n_key..key + n_key + n_value].to_vec()));
        }
    }
}

fn pairs(n: u64, value_bytes: impl Fn(u64) -> usize) -> Pairs {
    (0..n).map(|i| (i.to_be_bytes().to_vec(), vec![u8::try_from(i % 251).unwrap(); value_bytes(i)])).collect()
}

#[test]
fn what_is_written_is_read_back() {
    let all = [
        ("alarm", Vec::new()),
        ("key", pairs(60_000, |i| usize::try_from(i % 97).unwrap())),
        ("large", pairs(40, |i| if i % 3 == 0 { 100_000 } else { 4_000 })),
        ("lease", pairs(3, |_| 8)),
        ("meta", pairs(60, |_| 17)),
    ];
    let expected: Vec<(String, Pairs)> = all.iter().map(|(name, pairs)| ((*name).to_owned(), pairs.clone())).collect();
    assert!(File::of(&all).read() == expected);
}

#[test]
fn any_number_of_pairs_makes_a_whole_tree() {
    for n in (0..300).chain([20_000]) {
        let all = [("key", pairs(n, |_| 40))];
        assert_eq!(File::of(&all).read()[0].1.len() as u64, n, "{n}");
    }
}

#[test]
fn pairs_out_of_order_are_refused() {
    let mut bolt = Bolt::new(Cursor::new(Vec::new())).unwrap();
    let refused = bolt.bucket::<io::Error>("key", |bucket| {
        bucket.push(b"b", Vec::new())?;
        bucket.push(b"a", Vec::new())
    });
    assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidInput);
}

/// A file that holds so much and no more: what grows without end is seen to grow.
struct Small(Cursor<Vec<u8>>);

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.position() > 16 << 20 { Err(io::ErrorKind::StorageFull.into()) } else { self.0.write(bytes) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Small {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

#[test]
fn a_key_that_fits_no_page_is_refused_and_the_longest_that_is_taken_makes_a_tree() {
    let key = |n: u8, bytes: usize| [&[n][..], &vec![b'k'; bytes - 1]].concat();
    for (bytes, refused) in [(PAGE_BYTES, true), (KEY_BYTES_MAX + 1, true), (KEY_BYTES_MAX, false)] {
        let mut bolt = Bolt::new(Small(Cursor::new(Vec::new()))).unwrap();
        let made = bolt.bucket("key", |bucket| (0..200).try_for_each(|n| bucket.push(&key(n, bytes), vec![n])));
        let made = made.and_then(|()| bolt.finish());
        match made {
            Ok(_) => assert!(!refused, "{bytes}"),
            Err(err) => assert!(refused && err.kind() == io::ErrorKind::InvalidInput, "{bytes}: {err}"),
        }
    }
    let pairs: Pairs = (0..200).map(|n| (key(n, KEY_BYTES_MAX), vec![n])).collect();
    let buckets = [("key", pairs)];
    assert_eq!(File::of(&buckets).read(), buckets.clone().map(|(name, pairs)| (name.to_owned(), pairs)));
}
