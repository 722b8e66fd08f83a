//! Writes a bbolt database, the file format of etcd, from keys that come in order.
//!
//! A page is written once it is full, so memory holds one page of each level of the tree that is being written, however
//! large the file. Pages stand in the order in which they fill; the two meta pages and the list of free pages, which is
//! empty, are written last. Spec: <https://github.com/etcd-io/bbolt> (page.go, bucket.go, db.go); numbers are
//! little-endian, as on every machine kedge runs on.

use std::io::{self, Seek, SeekFrom, Write};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 16;
/// An element of a page, without its key and value.
const ELEMENT_BYTES: usize = 16;
/// The longest key that is taken. Two elements with the longest keys fit a page: a page that holds one alone makes a
/// page of its own above it at every level, and the tree would grow without end.
pub const KEY_BYTES_MAX: usize = (PAGE_BYTES - HEADER_BYTES) / 2 - ELEMENT_BYTES;
/// A bucket up to this size is kept in the page of its parent, as bbolt does.
const INLINE_BYTES_MAX: usize = PAGE_BYTES / 4;

const MAGIC: u32 = 0xED0C_DAED;
const VERSION: u32 = 2;
const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x04;
const FREELIST: u16 = 0x10;
/// Marks an element whose value is a bucket.
const IS_BUCKET: u32 = 0x01;

/// Pages 0 and 1 are meta, 2 is the list of free pages.
const FREELIST_PAGE: u64 = 2;
const FIRST_PAGE: u64 = 3;

/// The file being written.
#[derive(Debug)]
pub struct Bolt<W> {
    out: W,
    next: u64,
    buckets: Tree,
}

/// A tree being written: its last leaf, and above it the last page of each level.
#[derive(Debug, Default)]
struct Tree {
    leaf: Page,
    branches: Vec<Page>,
}

#[derive(Debug, Default)]
struct Page {
    items: Vec<Item>,
    n_bytes: usize,
}

#[derive(Debug)]
struct Item {
    flags: u32,
    key: Vec<u8>,
    value: Vec<u8>,
    child: u64,
}

/// Takes the pairs of one bucket.
#[derive(Debug)]
pub struct Bucket<'a, W> {
    bolt: &'a mut Bolt<W>,
    tree: Tree,
    last: Option<Vec<u8>>,
}

impl<W: Write + Seek> Bolt<W> {
    /// An empty database in `out`, which stands at its start.
    pub fn new(mut out: W) -> io::Result<Bolt<W>> {
        // Both meta pages and the list of free pages: written by `finish`.
        out.write_all(&[0; 3 * PAGE_BYTES])?;
        Ok(Bolt { out, next: FIRST_PAGE, buckets: Tree::default() })
    }

    /// Writes the bucket `name` with the pairs that `fill` gives it. Buckets come in the order of their names.
    pub fn bucket<E: From<io::Error>>(
        &mut self,
        name: &str,
        fill: impl FnOnce(&mut Bucket<'_, W>) -> Result<(), E>,
    ) -> Result<(), E> {
        debug_assert!(
            self.buckets.leaf.items.last().is_none_or(|last| last.key.as_slice() < name.as_bytes()),
            "buckets come in order"
        );
        let mut bucket = Bucket { bolt: self, tree: Tree::default(), last: None };
        fill(&mut bucket)?;
        let tree = bucket.tree;
        let value = if tree.branches.is_empty() && tree.leaf.size() <= INLINE_BYTES_MAX {
            [&bucket_header(0)[..], &tree.leaf.encode(0, LEAF)].concat()
        } else {
            bucket_header(tree.finish(self)?).to_vec()
        };
        let mut buckets = std::mem::take(&mut self.buckets);
        buckets.push(self, Item { flags: IS_BUCKET, key: name.as_bytes().to_vec(), value, child: 0 })?;
        self.buckets = buckets;
        Ok(())
    }

    /// Completes the file, and gives it back.
    pub fn finish(mut self) -> io::Result<W> {
        let root = std::mem::take(&mut self.buckets).finish(&mut self)?;
        self.out.seek(SeekFrom::Start(0))?;
        for id in 0..2 {
            self.out.write_all(&meta(id, root, self.next))?;
        }
        self.out.write_all(&padded(header(FREELIST_PAGE, FREELIST, 0, 0).to_vec()))?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes a page, and says which it became.
    fn write(&mut self, page: &Page, flags: u16) -> io::Result<u64> {
        let id = self.next;
        let bytes = padded(page.encode(id, flags));
        self.next += (bytes.len() / PAGE_BYTES) as u64;
        self.out.write_all(&bytes)?;
        Ok(id)
    }
}

impl<W: Write + Seek> Bucket<'_, W> {
    /// The next pair. Errors: `InvalidInput` if it does not come after the one before, or its key is longer than
    /// [`KEY_BYTES_MAX`].
    pub fn push(&mut self, key: &[u8], value: Vec<u8>) -> io::Result<()> {
        if key.len() > KEY_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a key of a bucket is too long for a page"));
        }
        if self.last.as_deref().is_some_and(|last| last >= key) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "keys of a bucket are not in order"));
        }
        self.last = Some(key.to_vec());
        self.tree.push(self.bolt, Item { flags: 0, key: key.to_vec(), value, child: 0 })
    }
}

impl Tree {
    fn push<W: Write + Seek>(&mut self, bolt: &mut Bolt<W>, item: Item) -> io::Result<()> {
        if let Some(full) = self.leaf.push(item) {
            self.child(bolt, 0, &full, LEAF)?;
        }
        Ok(())
    }

    /// Writes a page and notes it in the level above.
    fn child<W: Write + Seek>(&mut self, bolt: &mut Bolt<W>, level: usize, page: &Page, flags: u16) -> io::Result<()> {
        let key = page.items.first().map(|item| item.key.clone()).unwrap_or_default();
        let child = bolt.write(page, flags)?;
        if level == self.branches.len() {
            self.branches.push(Page::default());
        }
        match self.branches[level].push(Item { flags: 0, key, value: Vec::new(), child }) {
            Some(full) => self.child(bolt, level + 1, &full, BRANCH),
            None => Ok(()),
        }
    }

    /// Writes what is left, and says which page is the root.
    fn finish<W: Write + Seek>(mut self, bolt: &mut Bolt<W>) -> io::Result<u64> {
        if self.branches.is_empty() {
            return bolt.write(&self.leaf, LEAF);
        }
        let leaf = std::mem::take(&mut self.leaf);
        self.child(bolt, 0, &leaf, LEAF)?;
        let mut level = 0;
        // A level gets more entries while the one below it is written, so the number of levels may still grow.
        while level + 1 < self.branches.len() {
            let page = std::mem::take(&mut self.branches[level]);
            self.child(bolt, level + 1, &page, BRANCH)?;
            level += 1;
        }
        let top = std::mem::take(&mut self.branches[level]);
        bolt.write(&top, BRANCH)
    }
}

impl Page {
    fn size(&self) -> usize {
        HEADER_BYTES + self.n_bytes
    }

    /// Adds an item. A page with which it would not fit is given back whole, and the item begins a new one.
    fn push(&mut self, item: Item) -> Option<Page> {
        let n_bytes = ELEMENT_BYTES + item.key.len() + item.value.len();
        let full = (!self.items.is_empty() && self.size() + n_bytes > PAGE_BYTES).then(|| std::mem::take(self));
        self.n_bytes += n_bytes;
        self.items.push(item);
        full
    }

    /// The page's bytes. One item may be larger than a page: then they go on over the pages behind it.
    fn encode(&self, id: u64, flags: u16) -> Vec<u8> {
        let overflow = self.size().div_ceil(PAGE_BYTES) - 1;
        let mut bytes = Vec::with_capacity(self.size());
        bytes.extend(header(id, flags, self.items.len(), overflow));
        // Where an item's key stands is counted from the item's element.
        let mut pos = ELEMENT_BYTES * self.items.len();
        for item in &self.items {
            if flags == BRANCH {
                for number in [pos, item.key.len()] {
                    bytes.extend(short(number));
                }
                bytes.extend(item.child.to_le_bytes());
            } else {
                bytes.extend(item.flags.to_le_bytes());
                for number in [pos, item.key.len(), item.value.len()] {
                    bytes.extend(short(number));
                }
            }
            pos = pos + item.key.len() + item.value.len() - ELEMENT_BYTES;
        }
        for item in &self.items {
            bytes.extend(&item.key);
            bytes.extend(&item.value);
        }
        bytes
    }
}

fn short(number: usize) -> [u8; 4] {
    u32::try_from(number).expect("a page is at most one value of the store, which is below 2 MiB").to_le_bytes()
}

fn header(id: u64, flags: u16, count: usize, overflow: usize) -> [u8; HEADER_BYTES] {
    let count = u16::try_from(count).expect("a page of 4096 bytes holds at most 255 elements");
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(&id.to_le_bytes());
    bytes[8..10].copy_from_slice(&flags.to_le_bytes());
    bytes[10..12].copy_from_slice(&count.to_le_bytes());
    bytes[12..].copy_from_slice(&short(overflow));
    bytes
}

/// A bucket as its parent knows it: its root page (0: the page follows here) and a counter that nobody uses.
fn bucket_header(root: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&root.to_le_bytes());
    bytes
}

fn meta(id: u64, root: u64, n_pages: u64) -> Vec<u8> {
    let mut meta = Vec::with_capacity(64);
    for number in [MAGIC.to_le_bytes(), VERSION.to_le_bytes(), short(PAGE_BYTES), short(0)] {
        meta.extend(number);
    }
    meta.extend(bucket_header(root));
    // The page's number is its transaction's, too: the second one is the newer.
    for number in [FREELIST_PAGE, n_pages, id] {
        meta.extend(number.to_le_bytes());
    }
    let checksum = base::fnv::sum(&meta);
    meta.extend(checksum.to_le_bytes());
    padded([&header(id, META, 0, 0)[..], &meta].concat())
}

fn padded(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(PAGE_BYTES), 0);
    bytes
}

#[cfg(test)]
mod tests;
