//! The head of a program: for which processor it is, and whether it asks for a dynamic linker. Spec: elf(5).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::manifest::Arch;

/// Bytes of an ELF header of 64 bits.
const HEADER: usize = 64;
/// Program headers of one file.
const SEGMENTS_MAX: usize = 128;
/// Bytes of a dynamic linker's path.
const PATH_MAX: usize = 256;
const PT_INTERP: u32 = 3;

/// The facts of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Elf {
    /// `None`: a processor that has no bundles.
    pub(super) arch: Option<Arch>,
    pub(super) interpreter: Option<String>,
}

/// Reads the head of a file; `None` if it is no program of Linux.
pub(super) fn read(file: &File) -> io::Result<Option<Elf>> {
    let mut head = [0; HEADER];
    if read_at(file, &mut head, 0)? < HEADER || head[..4] != *b"\x7fELF" || head[5] != 1 {
        return Ok(None);
    }
    let wide = match head[4] {
        1 => false,
        2 => true,
        _ => return Ok(None),
    };
    let u16_at = |at: usize| usize::from(u16::from_le_bytes([head[at], head[at + 1]]));
    let arch = match (u16_at(18), wide) {
        (62, true) => Some(Arch::Amd64),
        (183, true) => Some(Arch::Arm64),
        (243, true) => Some(Arch::Riscv64),
        (40, false) => Some(Arch::Arm),
        _ => None,
    };
    let (at, each, n) = match wide {
        true => (number(&head[32..40]), u16_at(54), u16_at(56)),
        false => (number(&head[28..32]), u16_at(42), u16_at(44)),
    };
    let mut interpreter = None;
    for segment_idx in 0..n.min(SEGMENTS_MAX) {
        let mut segment = [0; 56];
        let segment_at = at.saturating_add((segment_idx * each) as u64);
        if read_at(file, &mut segment, segment_at)? < if wide { 56 } else { 32 } {
            break;
        }
        if number(&segment[..4]) != u64::from(PT_INTERP) {
            continue;
        }
        let (offset, size) = match wide {
            true => (number(&segment[8..16]), number(&segment[32..40])),
            false => (number(&segment[4..8]), number(&segment[16..20])),
        };
        let mut path = vec![0; usize::try_from(size).unwrap_or(PATH_MAX).min(PATH_MAX)];
        let read = read_at(file, &mut path, offset)?;
        path.truncate(read);
        interpreter = Some(String::from_utf8_lossy(&path).trim_end_matches('\0').to_owned());
    }
    Ok(Some(Elf { arch, interpreter }))
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// As many bytes as there are, up to all that are asked for.
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<usize> {
    let mut n = 0;
    while n < bytes.len() {
        match file.read_at(&mut bytes[n..], at.saturating_add(n as u64)) {
            Ok(0) => break,
            // No file reaches so far.
            Err(err) if err.kind() == io::ErrorKind::InvalidInput => break,
            Ok(more) => n += more,
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_a_program_of_this_processor() {
        let elf = read(&File::open("/proc/self/exe").unwrap()).unwrap().unwrap();
        assert_eq!(elf.arch, Arch::own());
        assert_eq!(elf.interpreter.is_some(), cfg!(target_env = "gnu"));
    }

    #[test]
    fn other_files_are_no_programs_and_lies_in_a_head_are_survived() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let of = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            read(&File::open(&path).unwrap()).unwrap()
        };
        assert_eq!(of(b""), None);
        assert_eq!(of(b"#!/bin/sh\n"), None);
        assert_eq!(of(b"\x7fELF"), None);
        let mut head = [0xff; 200];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert_eq!(of(&head), Some(Elf { arch: None, interpreter: None }));
        let own = std::fs::read("/proc/self/exe").unwrap();
        for n in [64, 65, 100, 200, 500] {
            of(&own[..n]);
        }
    }
}
