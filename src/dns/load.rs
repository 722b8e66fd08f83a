//! Loading a Corefile. An imported file with which it cannot be used is left out, and said: one bad line of
//! `coredns-custom` must not take the cluster's names away.

use std::path::{Path, PathBuf};

use base::chain::Chain;

use crate::around::env;
use crate::config::{self, Block, Context};
use crate::corefile::{self, Directive, ServerBlock};
use crate::error::DnsError;
use crate::text_file;

/// The Corefile and what it stands in.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    /// Port of zones without one.
    pub(crate) port: u16,
}

/// A Corefile that can be used.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) blocks: Vec<ServerBlock>,
    /// Imported files that are left out.
    pub(crate) faults: Vec<Fault>,
}

/// A file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    pub(crate) file: PathBuf,
    /// File, line and fault.
    pub(crate) why: String,
}

impl Fault {
    pub(crate) fn new(file: &Path, err: &DnsError) -> Fault {
        Fault { file: file.to_owned(), why: Chain(err).to_string() }
    }
}

/// Reads the Corefile, with as many of its imported files as can be used.
///
/// Errors: the Corefile cannot be used without any of them.
pub(crate) fn usable(source: &Source) -> Result<Loaded, DnsError> {
    usable_without(source, &[])
}

/// The same without these files.
pub(crate) fn usable_without(source: &Source, excluded: &[PathBuf]) -> Result<Loaded, DnsError> {
    let text = read(&source.path)?;
    let try_with = |wanted: &dyn Fn(&Path) -> bool| {
        let wanted = |path: &Path| !excluded.iter().any(|excluded| excluded == path) && wanted(path);
        let (parsed, imports) = corefile::parse_part(&source.path, &text, &env, &wanted);
        let usable = parsed.map_err(DnsError::from).and_then(|blocks| understand(&blocks, source).map(|_| blocks));
        (usable, imports)
    };
    let (whole, imports) = try_with(&|_| true);
    let err = match whole {
        Ok(blocks) => return Ok(Loaded { blocks, faults: Vec::new() }),
        Err(err) => err,
    };
    if imports.is_empty() {
        return Err(err);
    }
    let (mut good, mut faults): (Vec<PathBuf>, _) = (Vec::new(), Vec::new());
    for file in &imports {
        match try_with(&|path| path == file || good.iter().any(|good| good == path)).0 {
            Ok(_) => good.push(file.clone()),
            Err(err) => faults.push(Fault::new(file, &err)),
        }
    }
    Ok(Loaded { blocks: try_with(&|path| good.iter().any(|good| good == path)).0?, faults })
}

/// The imported file for which these blocks cannot be started: it names the port that is taken, or the API server that
/// cannot be asked. `None`: it is the Corefile's own fault.
pub(crate) fn culprit(source: &Source, blocks: &[ServerBlock], err: &DnsError) -> Option<PathBuf> {
    let main = source.path.display().to_string();
    let of_block = |block: &ServerBlock, port: u16| {
        let names_port = |key: &String| match key.rsplit_once(':') {
            Some((_, text)) if text.parse::<u16>().is_ok() => text.parse() == Ok(port),
            _ => port == source.port,
        };
        let own = block.keys.iter().any(names_port).then(|| block.file.clone()).flatten();
        let listens = |directive: &&Directive| {
            let usual = match directive.name.as_str() {
                "health" => ":8080",
                "ready" => ":8181",
                "prometheus" => ":9153",
                _ => return false,
            };
            directive.args.first().map_or(usual, String::as_str).ends_with(&format!(":{port}"))
        };
        let of_page = block.directives.iter().filter(listens);
        let found: Vec<String> = of_page.map(|d| d.file.clone()).chain(own).collect();
        found.into_iter().find(|file| *file != main)
    };
    let file = match err {
        DnsError::Listen { addr, .. } => blocks.iter().find_map(|block| of_block(block, addr.port())),
        _ => {
            let directives = blocks.iter().flat_map(|block| &block.directives);
            directives.filter(|d| d.name == "kubernetes" && d.file != main).map(|d| d.file.clone()).next()
        }
    };
    file.map(PathBuf::from)
}

/// The words of the Corefile and all its imported files, if they are words of a Corefile at all.
pub(crate) fn words(source: &Source) -> Option<Vec<ServerBlock>> {
    corefile::parse(&source.path, &read(&source.path).ok()?, &env).ok()
}

pub(crate) fn understand(blocks: &[ServerBlock], source: &Source) -> Result<Vec<Block>, DnsError> {
    let file = source.path.display().to_string();
    let read = |path: &str, bytes_max: u64| text_file::read(Path::new(path), bytes_max);
    Ok(config::understand(blocks, &Context { file: &file, port: source.port, read: &read })?)
}

fn read(path: &Path) -> Result<String, DnsError> {
    text_file::read(path, text_file::CONFIG_BYTES_MAX)
        .map_err(|source| DnsError::Read { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_that_names_a_port_which_is_taken_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("Corefile", ".:5053 {\n health :8080\n import *.override\n}\nimport *.server\n");
        write("a.override", "prometheus :9153\n");
        write("b.server", "a.test:54 {\n whoami\n}\n");
        write("c.server", "b.test {\n whoami\n}\n");
        let source = Source { path: dir.path().join("Corefile"), port: 53 };
        let blocks = usable(&source).unwrap().blocks;
        let found = |port: u16| {
            let addr = std::net::SocketAddr::from(([0, 0, 0, 0], port));
            let err = DnsError::Listen { addr, source: std::io::ErrorKind::AddrInUse.into() };
            culprit(&source, &blocks, &err).map(|path| path.file_name().unwrap().display().to_string())
        };
        let of = |name: &str| Some(name.to_owned());
        assert_eq!((found(9153), found(54), found(53)), (of("a.override"), of("b.server"), of("c.server")));
        assert_eq!((found(5053), found(8080)), (None, None), "the Corefile's own");
        let without = usable_without(&source, &[dir.path().join("b.server")]).unwrap();
        assert_eq!((without.blocks.len(), without.faults.len()), (2, 0));
    }

    #[test]
    fn a_bad_imported_file_is_left_out_and_the_good_ones_stay() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("Corefile", ".:53 {\n errors\n import *.override\n}\nimport *.server\n");
        write("a.override", "log\n");
        write("b.override", "rewritten name a b\n");
        write("c.override", "}\n");
        write("d.server", "example.org {\n cache 5\n}\n");
        write("e.server", "quic://example.net {\n log\n}\n");
        write("f.server", "example.com {\n log\n");
        write("g.server", "example.net {\n file /nothing\n}\n");
        write("h.server", "example.net {\n forward . 192.0.2.1 {\n  health_check soon\n }\n}\n");
        let source = Source { path: dir.path().join("Corefile"), port: 53 };
        let loaded = usable(&source).unwrap();
        let blocks = loaded.blocks;
        let names: Vec<&str> = blocks[0].directives.iter().map(|directive| directive.name.as_str()).collect();
        assert_eq!(
            (names, blocks.len(), blocks[1].keys.as_slice()),
            (vec!["errors", "log"], 2, &["example.org".to_owned()][..])
        );
        let faults: Vec<String> = loaded
            .faults
            .iter()
            .map(|fault| format!("{}: {}", fault.file.file_name().unwrap().display(), fault.why))
            .collect();
        let place = |name: &str, line: usize| {
            format!("{name}: {}:{line} - Error during parsing: ", dir.path().join(name).display())
        };
        for (name, line) in
            [("b.override", 1), ("c.override", 2), ("e.server", 1), ("f.server", 1), ("g.server", 2), ("h.server", 3)]
        {
            // A brace too many shows where the Corefile goes on, in its own file.
            let found = faults.iter().any(|fault| fault.starts_with(&place(name, line)))
                || name == "c.override" && faults.iter().any(|fault| fault.starts_with(name));
            assert!(found, "{name}: {faults:#?}");
        }
        assert_eq!(faults.len(), 6);
        write("Corefile", ".:53 {\n nonsense\n import *.override\n}\n");
        assert!(usable(&source).is_err(), "the Corefile itself is wrong");
    }
}
