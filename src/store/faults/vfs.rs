//! SQLite's way to a [`FaultyDisk`]: a VFS that asks the disk, and has SQLite's own do the work. In tests alone.
#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    reason = "SQLite's interface is C; the contract stands at each block"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::ffi::{self, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

use super::FaultyDisk;

/// A file as SQLite holds it: its methods first, then what is ours; the file of SQLite's own VFS lies behind it.
#[repr(C)]
struct Shim {
    base: sqlite3_file,
    /// Lives as long as the process, as the VFS does.
    about: *mut About,
}

/// A file's state, on the heap.
struct About {
    disk: Arc<FaultyDisk>,
    path: PathBuf,
}

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// A name that no other VFS has.
pub(super) fn name() -> String {
    format!("faulty-{}", NUMBER.fetch_add(1, Ordering::Relaxed))
}

/// Makes the disk's VFS known to SQLite. It stays for as long as the process lives.
pub(super) fn register(disk: &Arc<FaultyDisk>) {
    // SAFETY: the default VFS is static and never unregistered; it is copied by value.
    let real = unsafe { *ffi::sqlite3_vfs_find(std::ptr::null()) };
    let name = CString::new(disk.vfs.clone()).unwrap();
    let vfs = sqlite3_vfs {
        szOsFile: c_int::try_from(size_of::<Shim>()).unwrap() + real.szOsFile,
        pNext: std::ptr::null_mut(),
        zName: name.into_raw(),
        pAppData: Box::into_raw(Box::new(Arc::clone(disk))).cast(),
        xOpen: Some(open),
        xDelete: Some(delete),
        ..real
    };
    // SAFETY: the structure, its name and its data are leaked, so they live for ever; the functions are those of
    // SQLite's own VFS, which look at `pAppData` in `xOpen` alone, and that is given the real one.
    let registered = unsafe { ffi::sqlite3_vfs_register(Box::leak(Box::new(vfs)), 0) };
    assert_eq!(registered, ffi::SQLITE_OK);
}

fn real_vfs() -> *mut sqlite3_vfs {
    // SAFETY: finds the default one, which is always there.
    unsafe { ffi::sqlite3_vfs_find(std::ptr::null()) }
}

/// The file behind a shim.
unsafe fn inner(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: `szOsFile` leaves room for both, SQLite aligns both to eight bytes, of which the shim is a multiple.
    unsafe { file.cast::<u8>().add(size_of::<Shim>()).cast() }
}

unsafe fn about<'a>(file: *mut sqlite3_file) -> &'a About {
    // SAFETY: `open` set it before SQLite could call a method, `close` frees it as the last one.
    unsafe { &*(*file.cast::<Shim>()).about }
}

/// Calls the same method of the file behind.
macro_rules! real {
    ($file:expr, $method:ident $(, $arg:expr)*) => {{
        // SAFETY: SQLite's own `xOpen` succeeded for this file, so its methods are there.
        unsafe {
            let inner = inner($file);
            ((*(*inner).pMethods).$method.unwrap_unchecked())(inner $(, $arg)*)
        }
    }};
}

fn code(err: &io::Error, else_code: c_int) -> c_int {
    if err.raw_os_error() == Some(libc::ENOSPC) { ffi::SQLITE_FULL } else { else_code }
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    // SAFETY: `file` has room for shim and file; `name` is null or ends with zero and outlives the file.
    unsafe {
        if name.is_null() {
            // A temporary file: nobody needs it after a power cut. It is opened in the place of the shim.
            return (*real_vfs()).xOpen.unwrap()(real_vfs(), name, file, flags, out);
        }
        let opened = (*real_vfs()).xOpen.unwrap()(real_vfs(), name, inner(file), flags, out);
        (*file).pMethods = if opened == ffi::SQLITE_OK { &raw const METHODS } else { std::ptr::null() };
        if opened != ffi::SQLITE_OK {
            return opened;
        }
        let path = Path::new(std::ffi::OsStr::from_bytes(CStr::from_ptr(name).to_bytes())).to_owned();
        let disk = Arc::clone(&*(*vfs).pAppData.cast::<Arc<FaultyDisk>>());
        (*file.cast::<Shim>()).about = Box::into_raw(Box::new(About { disk, path }));
        opened
    }
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    // SAFETY: `name` ends with zero, `pAppData` is ours.
    unsafe {
        let disk = &*(*vfs).pAppData.cast::<Arc<FaultyDisk>>();
        let path = Path::new(std::ffi::OsStr::from_bytes(CStr::from_ptr(name).to_bytes()));
        if path.exists() && disk.note_remove(path).is_err() {
            return ffi::SQLITE_IOERR_DELETE;
        }
        let done = (*real_vfs()).xDelete.unwrap()(real_vfs(), name, 0);
        if done == ffi::SQLITE_OK && sync != 0 && path.parent().is_some_and(|dir| disk.note_sync_dir(dir).is_err()) {
            return ffi::SQLITE_IOERR_DIR_FSYNC;
        }
        done
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: made by `open`, and SQLite calls nothing of this file after this.
    unsafe {
        drop(Box::from_raw((*file.cast::<Shim>()).about));
    }
    real!(file, xClose)
}

unsafe extern "C" fn read(file: *mut sqlite3_file, to: *mut c_void, n: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: see `about`.
    if unsafe { about(file) }.disk.note_read().is_err() {
        return ffi::SQLITE_IOERR_READ;
    }
    real!(file, xRead, to, n, at)
}

unsafe extern "C" fn write(file: *mut sqlite3_file, from: *const c_void, n: c_int, at: sqlite3_int64) -> c_int {
    // SAFETY: SQLite gives `n` bytes at `from`; see `about`.
    let (about, bytes) =
        unsafe { (about(file), std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(n).unwrap_or(0))) };
    match about.disk.note_write(&about.path, bytes, u64::try_from(at).unwrap_or(0)) {
        Ok(()) => real!(file, xWrite, from, n, at),
        Err(err) => code(&err, ffi::SQLITE_IOERR_WRITE),
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, n: sqlite3_int64) -> c_int {
    // SAFETY: see `about`.
    let about = unsafe { about(file) };
    match about.disk.note_truncate(&about.path, u64::try_from(n).unwrap_or(0)) {
        Ok(()) => real!(file, xTruncate, n),
        Err(_) => ffi::SQLITE_IOERR_TRUNCATE,
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, _flags: c_int) -> c_int {
    // SAFETY: see `about`.
    let about = unsafe { about(file) };
    match about.disk.note_sync(&about.path) {
        // What is behind is a page cache that never meets a platter.
        Ok(()) => ffi::SQLITE_OK,
        Err(_) => ffi::SQLITE_IOERR_FSYNC,
    }
}

unsafe extern "C" fn size(file: *mut sqlite3_file, out: *mut sqlite3_int64) -> c_int {
    real!(file, xFileSize, out)
}

unsafe extern "C" fn lock(file: *mut sqlite3_file, level: c_int) -> c_int {
    real!(file, xLock, level)
}

unsafe extern "C" fn unlock(file: *mut sqlite3_file, level: c_int) -> c_int {
    real!(file, xUnlock, level)
}

unsafe extern "C" fn reserved(file: *mut sqlite3_file, out: *mut c_int) -> c_int {
    real!(file, xCheckReservedLock, out)
}

unsafe extern "C" fn control(file: *mut sqlite3_file, op: c_int, arg: *mut c_void) -> c_int {
    real!(file, xFileControl, op, arg)
}

unsafe extern "C" fn sector(file: *mut sqlite3_file) -> c_int {
    real!(file, xSectorSize)
}

unsafe extern "C" fn traits(file: *mut sqlite3_file) -> c_int {
    real!(file, xDeviceCharacteristics)
}

unsafe extern "C" fn shm_map(
    file: *mut sqlite3_file,
    page: c_int,
    n: c_int,
    extend: c_int,
    out: *mut *mut c_void,
) -> c_int {
    real!(file, xShmMap, page, n, extend, out)
}

unsafe extern "C" fn shm_lock(file: *mut sqlite3_file, from: c_int, n: c_int, flags: c_int) -> c_int {
    real!(file, xShmLock, from, n, flags)
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    real!(file, xShmBarrier);
}

unsafe extern "C" fn shm_unmap(file: *mut sqlite3_file, remove: c_int) -> c_int {
    real!(file, xShmUnmap, remove)
}

/// Version 2: no memory mapped reads, which would pass the disk by.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(reserved),
    xFileControl: Some(control),
    xSectorSize: Some(sector),
    xDeviceCharacteristics: Some(traits),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};
