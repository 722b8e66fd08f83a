//! The log backend: one JSON line an event, in a file that is rotated as upstream's (lumberjack's names).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base::sync::Mutex;
use jiff::Timestamp;

/// How a log is kept.
#[derive(Clone, Debug)]
pub struct Keeping {
    /// Bytes after which a new file is begun; 0 is never.
    pub max_bytes: u64,
    /// Old files to keep; 0 is all.
    pub max_backups: usize,
    /// Days after which old files go; 0 is never.
    pub max_age_days: u64,
}

struct Open {
    file: File,
    bytes: u64,
}

/// A log file, or standard output.
pub struct Log {
    path: Option<PathBuf>,
    keeping: Keeping,
    open: Mutex<Option<Open>>,
}

impl Log {
    /// Opens or makes the file, readable by its owner only; `-` is standard output.
    ///
    /// Errors: the file cannot be opened.
    pub fn open(path: &Path, keeping: Keeping) -> io::Result<Log> {
        if path == Path::new("-") {
            return Ok(Log { path: None, keeping, open: Mutex::new(None) });
        }
        let open = append(path)?;
        Ok(Log { path: Some(path.to_owned()), keeping, open: Mutex::new(Some(open)) })
    }

    /// Writes one line.
    ///
    /// Errors: the disk's.
    pub fn line(&self, text: &str, now: Timestamp) -> io::Result<()> {
        let mut line = Vec::with_capacity(text.len() + 1);
        line.extend_from_slice(text.as_bytes());
        line.push(b'\n');
        let Some(path) = &self.path else { return io::stdout().lock().write_all(&line) };
        let mut open = self.open.lock();
        let size = u64::try_from(line.len()).unwrap_or(u64::MAX);
        let full = self.keeping.max_bytes > 0
            && open.as_ref().is_some_and(|o| o.bytes > 0 && o.bytes + size > self.keeping.max_bytes);
        if full {
            *open = None;
            fs::rename(path, backup(path, now))?;
            self.tidy(path, now)?;
        }
        if open.is_none() {
            *open = Some(append(path)?);
        }
        if let Some(open) = open.as_mut() {
            open.file.write_all(&line)?;
            open.bytes += size;
        }
        Ok(())
    }

    /// Removes old files that are too many or too old.
    fn tidy(&self, path: &Path, now: Timestamp) -> io::Result<()> {
        let (stem, extension) = parts(path);
        let prefix = format!("{stem}-");
        let mut old: Vec<PathBuf> = Vec::new();
        for entry in fs::read_dir(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&prefix) && name.ends_with(&extension) {
                old.push(entry.path());
            }
        }
        // The time in the name sorts.
        old.sort();
        old.reverse();
        let oldest = now.as_second() - i64::try_from(self.keeping.max_age_days).unwrap_or(0) * 86_400;
        for (at, path) in old.iter().enumerate() {
            let too_many = self.keeping.max_backups > 0 && at >= self.keeping.max_backups;
            let modified = fs::metadata(path).and_then(|m| m.modified()).ok().and_then(|t| Timestamp::try_from(t).ok());
            let too_old = self.keeping.max_age_days > 0 && modified.is_some_and(|t| t.as_second() < oldest);
            if too_many || too_old {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<Open> {
    if let Some(dir) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(dir)?;
    }
    let file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    Ok(Open { file, bytes })
}

fn parts(path: &Path) -> (String, String) {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    (stem, extension)
}

/// `audit-2026-11-21T08-00-00.000.log`
fn backup(path: &Path, now: Timestamp) -> PathBuf {
    let (stem, extension) = parts(path);
    let text = base::time::rfc3339_micros(now).replace(':', "-");
    let time = text.trim_end_matches('Z').get(..23).unwrap_or(&text).to_owned();
    path.with_file_name(format!("{stem}-{time}{extension}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_makes_room_and_old_ones_go() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit.log");
        let log = Log::open(&path, Keeping { max_bytes: 10, max_backups: 2, max_age_days: 0 }).unwrap();
        let at: Timestamp = "2026-11-21T08:00:00Z".parse().unwrap();
        for n in 0..5 {
            log.line("12345678", at + jiff::SignedDuration::from_secs(n)).unwrap();
        }
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        assert_eq!(names, ["audit-2026-11-21T08-00-03.000.log", "audit-2026-11-21T08-00-04.000.log", "audit.log"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "12345678\n");
        use std::os::unix::fs::PermissionsExt as _;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
