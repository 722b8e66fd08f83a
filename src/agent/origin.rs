//! The place that the container runtime comes from: the bundle's programs, or those of the machine.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tracing::info;

use crate::flags::runtime::Origin;

/// No place that was named has containerd.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OriginError {
    #[error(
        "--runtime-from=bundle: {dir} has no containerd; 'kedge bundle apply FILE' lays it there, and \
         --runtime-from=bundle,path takes the machine's where there is none",
        dir = dir.display()
    )]
    NoBundle { dir: PathBuf },
}

/// Where programs are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    /// The folder of the bundle's programs.
    pub(crate) bundle: &'a Path,
    /// The PATH of this process.
    pub(crate) search_path: &'a OsStr,
}

/// The choice, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    /// PATH of containerd: its children (runc, shims) come from the same place first.
    pub(crate) search_path: OsString,
    /// For people: `bundle (/var/lib/…/containerd)`.
    pub(crate) told: String,
}

/// Takes the first place in this order that has containerd. Where none has, the PATH: the kubelet says what is missing.
///
/// Errors: the bundle alone was named, and has none.
pub(crate) fn choose(order: &[Origin], places: Places<'_>) -> Result<Chosen, OriginError> {
    let has = |dir: &Path| {
        let program = dir.join("containerd");
        let is_program = |meta: std::fs::Metadata| meta.is_file() && meta.permissions().mode() & 0o111 != 0;
        program.metadata().is_ok_and(is_program).then_some(program)
    };
    let found = order.iter().find_map(|origin| {
        let program = match origin {
            Origin::Bundle => has(places.bundle),
            Origin::Path => std::env::split_paths(places.search_path).find_map(|dir| has(&dir)),
        };
        Some((*origin, program?))
    });
    if found.is_none() && !order.contains(&Origin::Path) {
        return Err(OriginError::NoBundle { dir: places.bundle.to_owned() });
    }
    let machine = std::env::split_paths(places.search_path);
    // The machine's own programs (mount, modprobe) are needed in any case.
    let search_path = match found {
        Some((Origin::Bundle, _)) => std::env::join_paths([places.bundle.to_owned()].into_iter().chain(machine)),
        _ => std::env::join_paths(machine),
    };
    let told = match &found {
        Some((origin, program)) => format!("{} ({})", origin.name(), program.display()),
        None => Origin::Path.name().to_owned(),
    };
    // A folder whose name has a colon cannot stand in a PATH: then there is no bundle there either.
    Ok(Chosen { search_path: search_path.unwrap_or_else(|_| places.search_path.to_owned()), told })
}

/// Says the choice, once at the start.
pub(crate) fn tell(chosen: &Chosen) {
    info!(from = %chosen.told, "the container runtime is chosen; --runtime-from sets the order");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_place_that_has_a_runtime_is_taken_and_its_children_come_from_there() {
        let dir = tempfile::tempdir().unwrap();
        let (bundle, machine) = (dir.path().join("bundle"), dir.path().join("usr"));
        let search_path = machine.as_os_str().to_owned();
        let choose = |order: &[Origin]| choose(order, Places { bundle: &bundle, search_path: &search_path });
        let make = |at: &Path| {
            std::fs::create_dir_all(at).unwrap();
            std::fs::write(at.join("containerd"), "").unwrap();
            std::fs::set_permissions(at.join("containerd"), std::fs::Permissions::from_mode(0o755)).unwrap();
        };
        let both = [Origin::Bundle, Origin::Path];
        assert_eq!(choose(&both).unwrap().told, "PATH", "the kubelet says what is missing");
        assert!(choose(&[Origin::Bundle]).unwrap_err().to_string().contains("kedge bundle apply"));
        make(&machine);
        assert_eq!(choose(&both).unwrap().told, format!("PATH ({}/containerd)", machine.display()));
        assert_eq!(choose(&both).unwrap().search_path, search_path);
        make(&bundle);
        let chosen = choose(&both).unwrap();
        assert_eq!(chosen.told, format!("bundle ({}/containerd)", bundle.display()));
        let first = std::env::split_paths(&chosen.search_path).next().unwrap();
        assert_eq!((first, std::env::split_paths(&chosen.search_path).count()), (bundle.clone(), 2));
        assert!(choose(&[Origin::Path, Origin::Bundle]).unwrap().told.starts_with("PATH"));
    }
}
