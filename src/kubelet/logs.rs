//! Container logs: the CRI's format read, filtered and followed.

pub(crate) mod watch;

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::Pin;

use base::confined::Dir;
use base::task::Group;
use base::time::Clock;
use bytes::{Bytes, BytesMut};
use futures_util::Stream;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Semaphore;

use self::watch::{Follower, Watches};

/// A log as it is read.
pub type LogStream = Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>;

/// Bytes read from the file at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes of the last lines of a log that are read at once.
const TAIL_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// Bytes of one line; the runtime cuts lines at 16 KiB. A longer one is no line of the runtime's, and is left out.
const LINE_BYTES_MAX: usize = 1024 * 1024;
/// Bytes read in one go outside of the async threads. A filter may leave nothing of a log of gigabytes.
const READ_BYTES_MAX: usize = 1024 * 1024;
/// Bytes searched in one go for the beginning of the last lines.
const SEARCH_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Between looks whether a container that writes nothing has ended.
const END_CHECK: std::time::Duration = std::time::Duration::from_secs(1);

/// Logs that are read at once: each takes a thread that others need, too. Who waits goes on after one piece of
/// another's log.
static READS: Semaphore = Semaphore::const_new(4);

/// The part of a log that is wanted, as `PodLogOptions`.
#[derive(Clone, Debug, Default)]
pub struct LogOptions {
    /// Go on as the container writes.
    pub follow: bool,
    /// The container before the current one.
    pub previous: bool,
    /// Put the time before each line.
    pub timestamps: bool,
    /// Only this many last lines.
    pub tail_lines: Option<u64>,
    /// Nothing older than this many seconds.
    pub since_seconds: Option<i64>,
    /// Nothing older than this.
    pub since_time: Option<Timestamp>,
    /// End after this many bytes.
    pub limit_bytes: Option<u64>,
    /// Only `Stdout` or `Stderr`; both when `None`.
    pub stream: Option<String>,
}

/// One line of a CRI log: `2026-11-21T04:12:00.123456789Z stdout F text`.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    time: &'a str,
    stream: &'a str,
    /// The line ends here; a partial one (`P`) goes on in the next.
    full: bool,
    text: &'a [u8],
}

fn parse(line: &[u8]) -> Option<Line<'_>> {
    let mut parts = line.splitn(4, |b| *b == b' ');
    let time = std::str::from_utf8(parts.next()?).ok()?;
    let stream = std::str::from_utf8(parts.next()?).ok()?;
    let tags = parts.next()?;
    Some(Line {
        time,
        stream,
        full: tags.split(|b| *b == b':').next()? == b"F",
        text: parts.next().unwrap_or_default(),
    })
}

/// Opens a log, `<folder of logs>/<pod>/<container>/<n>.log`. Whoever sees the folder of logs may plant links and FIFOs
/// in it: below it, only regular files are opened, and no link is followed.
fn open(path: &Path) -> io::Result<File> {
    let (top, below) = door(path)?;
    top.open_file(below)
}

/// Removes a log through the same door: where its folder was replaced by a link, nothing is.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let (top, below) = door(path)?;
    top.remove_file(below)
}

/// The folder of logs, and where below it a log lies.
fn door(path: &Path) -> io::Result<(Dir, &Path)> {
    let top = path.ancestors().nth(3).filter(|top| !top.as_os_str().is_empty()).ok_or(io::ErrorKind::InvalidInput)?;
    let below = path.strip_prefix(top).map_err(io::Error::other)?;
    Ok((Dir::open(top)?, below))
}

/// The last lines of a log as bare text, for termination messages.
pub(crate) fn last_lines(path: &Path, lines: usize) -> io::Result<Vec<u8>> {
    let mut file = open(path)?;
    // A line may be as long as its writer likes.
    let floor = file.metadata()?.len().saturating_sub(TAIL_BYTES_MAX);
    let mut tail = Tail::new(&mut file, u64::try_from(lines).unwrap_or(u64::MAX), floor)?;
    while !tail.search(&mut file)? {}
    file.seek(SeekFrom::Start(tail.start))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES_MAX).read_to_end(&mut bytes)?;
    let mut out = Vec::new();
    for line in bytes.split(|b| *b == b'\n').filter_map(parse) {
        out.extend_from_slice(line.text);
        if line.full {
            out.push(b'\n');
        }
    }
    Ok(out)
}

/// The search for where the last lines begin, from the end, so that a large log costs nothing.
struct Tail {
    /// Lines wanted, and lines found.
    lines: u64,
    found: u64,
    /// Nothing before this is looked at.
    floor: u64,
    /// The lines begin here, as far as the search has come.
    start: u64,
    /// Whether the newline that ends the file may still come: it does not begin a line.
    last: bool,
}

impl Tail {
    fn new(file: &mut File, lines: u64, floor: u64) -> io::Result<Tail> {
        Ok(Tail { lines, found: 0, floor, start: file.seek(SeekFrom::End(0))?, last: true })
    }

    /// Searches some more; says whether that was all.
    fn search(&mut self, file: &mut File) -> io::Result<bool> {
        if self.lines == 0 {
            return Ok(true);
        }
        let stop = self.start.saturating_sub(SEARCH_BYTES_MAX).max(self.floor);
        while self.start > stop {
            let start = self.start.saturating_sub(CHUNK_BYTES as u64).max(stop);
            let mut chunk = vec![0; usize::try_from(self.start - start).unwrap_or(CHUNK_BYTES)];
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(&mut chunk)?;
            for (i, byte) in chunk.iter().enumerate().rev() {
                if *byte != b'\n' {
                    self.last = false;
                    continue;
                }
                if std::mem::replace(&mut self.last, false) {
                    continue;
                }
                self.found += 1;
                if self.found == self.lines {
                    self.start = start + i as u64 + 1;
                    return Ok(true);
                }
            }
            self.start = start;
        }
        Ok(self.start == self.floor)
    }
}

/// Whether a container may still write: asked when its log has been quiet.
pub(crate) type StillRuns = Box<dyn Fn() -> bool + Send + Sync>;

struct Reader {
    file: File,
    path: PathBuf,
    options: LogOptions,
    since: Option<Timestamp>,
    left: Option<u64>,
    pending: BytesMut,
    at_line_start: bool,
    still_runs: StillRuns,
    follower: Option<Follower>,
    done: bool,
}

/// Reads some of a log outside of the async threads, in turn with others.
pub(crate) async fn in_turn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    let turn = READS.acquire().await.map_err(io::Error::other)?;
    // The turn goes with the work, which goes on when its caller leaves.
    let work = move || {
        let _turn = turn;
        work()
    };
    Group::blocking(work).await.map_err(io::Error::other)
}

/// Opens a log and finds where its last `lines` begin: all of it when `None`.
async fn open_at(path: PathBuf, lines: Option<u64>) -> io::Result<File> {
    let begin = move || {
        let mut file = open(&path)?;
        let tail = lines.map(|lines| Tail::new(&mut file, lines, 0)).transpose()?;
        io::Result::Ok((file, tail))
    };
    let (mut file, tail) = in_turn(begin).await??;
    let Some(mut tail) = tail else { return Ok(file) };
    loop {
        let search = move || {
            let ended = tail.search(&mut file)?;
            if ended {
                file.seek(SeekFrom::Start(tail.start))?;
            }
            io::Result::Ok((file, tail, ended))
        };
        match in_turn(search).await?? {
            (file, _, true) => return Ok(file),
            (same, further, false) => (file, tail) = (same, further),
        }
    }
}

/// Streams a log file. A followed stream ends when the container does.
pub(crate) async fn stream(
    path: &Path,
    options: LogOptions,
    clock: &Clock,
    watches: &Watches,
    still_runs: StillRuns,
) -> io::Result<LogStream> {
    let file = open_at(path.to_owned(), options.tail_lines).await?;
    let ago = options.since_seconds.and_then(|secs| clock.now().checked_sub(SignedDuration::from_secs(secs)).ok());
    let reader = Reader {
        since: options.since_time.or(ago),
        left: options.limit_bytes,
        follower: path.parent().filter(|_| options.follow).and_then(|dir| watches.follow(dir)),
        path: path.to_owned(),
        file,
        options,
        pending: BytesMut::new(),
        at_line_start: true,
        still_runs,
        done: false,
    };
    Ok(Box::pin(futures_util::stream::unfold(Some(reader), |reader| async move { reader?.next().await })))
}

impl Reader {
    /// The next piece, and the reader unless that was all.
    async fn next(mut self) -> Option<(io::Result<Bytes>, Option<Reader>)> {
        let mut ended = false;
        while !self.done {
            let read = in_turn(move || {
                let read = self.read_much();
                (self, read)
            });
            let read = match read.await {
                Ok((reader, read)) => {
                    self = reader;
                    read
                }
                Err(err) => return Some((Err(err), None)),
            };
            match read {
                Ok(Some(bytes)) if !bytes.is_empty() => return Some((Ok(bytes), Some(self))),
                Ok(Some(_)) => continue,
                Ok(None) => {}
                Err(err) => return Some((Err(err), None)),
            }
            if !self.options.follow || ended {
                return None;
            }
            if self.rotated() {
                continue;
            }
            if !self.wait().await {
                // One last read: it may have written between our read and its end.
                ended = !(self.still_runs)();
            }
        }
        None
    }

    /// As [`Reader::read_some`], but reads on over what is filtered away.
    fn read_much(&mut self) -> io::Result<Option<Bytes>> {
        for _ in 0..READ_BYTES_MAX / CHUNK_BYTES {
            match self.read_some()? {
                Some(bytes) if bytes.is_empty() && !self.done => {}
                read => return Ok(read),
            }
        }
        Ok(Some(Bytes::new()))
    }

    /// `None` at the end of the file; an empty chunk when all that was read is filtered away.
    fn read_some(&mut self) -> io::Result<Option<Bytes>> {
        let mut chunk = vec![0; CHUNK_BYTES];
        let n = self.file.read(&mut chunk)?;
        if n == 0 {
            return Ok(None);
        }
        self.pending.extend_from_slice(&chunk[..n]);
        let mut out = Vec::with_capacity(n);
        while let Some(end) = self.pending.iter().position(|b| *b == b'\n') {
            let line = self.pending.split_to(end + 1);
            if let Some(line) = parse(&line[..end]) {
                self.render(&line, &mut out);
            }
        }
        if self.pending.len() > LINE_BYTES_MAX {
            self.pending.clear();
        }
        if let Some(left) = &mut self.left {
            let max = usize::try_from(*left).unwrap_or(usize::MAX);
            out.truncate(max);
            *left -= out.len() as u64;
            self.done = *left == 0;
        }
        Ok(Some(Bytes::from(out)))
    }

    fn render(&mut self, line: &Line<'_>, out: &mut Vec<u8>) {
        let wanted = match self.options.stream.as_deref() {
            Some("Stdout") => line.stream == "stdout",
            Some("Stderr") => line.stream == "stderr",
            _ => true,
        };
        let recent = self.since.is_none_or(|since| line.time.parse::<Timestamp>().is_ok_and(|at| at >= since));
        if !wanted || !recent {
            return;
        }
        if self.options.timestamps && self.at_line_start {
            out.extend_from_slice(line.time.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(line.text);
        if line.full {
            out.push(b'\n');
        }
        self.at_line_start = line.full;
    }

    /// A rotated log goes on in a new file of the same name.
    fn rotated(&mut self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let (Ok(have), Ok(now)) = (self.file.metadata(), std::fs::symlink_metadata(&self.path)) else { return false };
        if have.ino() == now.ino() {
            return false;
        }
        match open(&self.path) {
            Ok(file) => {
                self.file = file;
                true
            }
            Err(_) => false,
        }
    }

    /// Whether something was written; after a quiet second, not.
    async fn wait(&mut self) -> bool {
        match &mut self.follower {
            Some(follower) => tokio::time::timeout(END_CHECK, follower.changed()).await.is_ok(),
            None => {
                tokio::time::sleep(END_CHECK).await;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    const LOG: &str = "2026-01-01T00:00:00.0Z stdout F one\n2026-01-01T00:00:01.0Z stderr P tw\n\
                       2026-01-01T00:00:01.0Z stderr F o\n2026-01-01T00:00:02.0Z stdout F three\n";

    async fn read(options: LogOptions) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod/c/0.log");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, LOG).unwrap();
        let ended: StillRuns = Box::new(|| false);
        let chunks: Vec<_> =
            stream(&path, options, &Clock::system(), &Watches::default(), ended).await.unwrap().collect().await;
        chunks.into_iter().map(|c| String::from_utf8(c.unwrap().to_vec()).unwrap()).collect()
    }

    // A pod that sees the folder of logs turned its own log into a link to a file of the host, or into a FIFO.
    #[test]
    fn a_log_that_is_no_file_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("pod/c");
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(dir.path().join("secret"), LOG).unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), logs.join("0.log")).unwrap();
        assert!(last_lines(&logs.join("0.log"), 1).is_err());
        std::os::unix::fs::symlink(dir.path(), dir.path().join("pod/d")).unwrap();
        assert!(last_lines(&dir.path().join("pod/d/secret"), 1).is_err());
        // Nor is it removed: any `n.log` of the host could be.
        std::fs::write(dir.path().join("0.log"), LOG).unwrap();
        std::os::unix::fs::symlink(dir.path(), dir.path().join("pod/e")).unwrap();
        assert!(remove(&dir.path().join("pod/e/0.log")).is_err() && dir.path().join("0.log").exists());
        let fifo = logs.join("1.log");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        assert!(last_lines(&fifo, 1).is_err());
        std::fs::File::create(logs.join("2.log")).unwrap().set_len(1 << 30).unwrap();
        assert_eq!(last_lines(&logs.join("2.log"), 80).unwrap(), b"", "a gigabyte without a line is not held");
    }

    #[tokio::test]
    async fn partial_lines_are_joined() {
        assert_eq!(read(LogOptions::default()).await, "one\ntwo\nthree\n");
    }

    #[tokio::test]
    async fn options_cut_the_log() {
        assert_eq!(read(LogOptions { tail_lines: Some(1), ..Default::default() }).await, "three\n");
        assert_eq!(read(LogOptions { tail_lines: Some(0), ..Default::default() }).await, "");
        assert_eq!(read(LogOptions { limit_bytes: Some(6), ..Default::default() }).await, "one\ntw");
        assert_eq!(
            read(LogOptions { since_time: Some("2026-01-01T00:00:02Z".parse().unwrap()), ..Default::default() }).await,
            "three\n"
        );
        assert_eq!(
            read(LogOptions { stream: Some("Stderr".to_owned()), timestamps: true, ..Default::default() }).await,
            "2026-01-01T00:00:01.0Z two\n"
        );
        assert_eq!(read(LogOptions { follow: true, ..Default::default() }).await, "one\ntwo\nthree\n");
    }

    // A log of gigabytes of which nothing was wanted was read to its end on one of the few threads that serve
    // everybody.
    #[tokio::test]
    async fn a_large_log_keeps_nobody_from_being_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod/c/0.log");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, LOG.repeat(200_000)).unwrap();
        let open = async |options: LogOptions| {
            stream(&path, options, &Clock::system(), &Watches::default(), Box::new(|| false)).await.unwrap()
        };
        for options in [
            LogOptions { since_time: Some("2100-01-01T00:00:00Z".parse().unwrap()), ..Default::default() },
            LogOptions { tail_lines: Some(100_000_000), limit_bytes: Some(1), ..Default::default() },
        ] {
            let mut read = std::pin::pin!(async { open(options).await.collect::<Vec<_>>().await });
            let mut polls = 0;
            let chunks = std::future::poll_fn(|context| {
                polls += 1;
                read.as_mut().poll(context)
            });
            let n: usize = chunks.await.into_iter().map(|chunk| chunk.unwrap().len()).sum();
            assert!(n <= 1 && polls > 5, "{n} bytes after {polls} polls");
        }
    }

    #[tokio::test]
    async fn the_last_lines_are_found_however_far_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pod/c/0.log");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let line = format!("2026-01-01T00:00:00.0Z stdout F {}\n", "x".repeat(90_000));
        std::fs::write(&path, line.repeat(120)).unwrap();
        for (lines, found) in [(0, 0), (1, 1), (60, 60), (119, 119), (120, 120), (121, 120)] {
            let options = LogOptions { tail_lines: Some(lines), ..Default::default() };
            let log = stream(&path, options, &Clock::system(), &Watches::default(), Box::new(|| false)).await.unwrap();
            let n: usize = log.collect::<Vec<_>>().await.into_iter().map(|chunk| chunk.unwrap().len()).sum();
            assert_eq!(n, found * 90_001, "{lines} lines");
        }
    }
}
