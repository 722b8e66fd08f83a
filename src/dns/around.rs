//! Surroundings of a directive: the zones of its server block, files, the environment; and `fallthrough`, which many
//! plugins have.

use std::path::PathBuf;

use hickory_proto::rr::Name;

use crate::args::{Parsed, names};
use crate::corefile::Directive;
use crate::text_file;

/// For which names a plugin that has no answer lets the next one try.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fall(pub(crate) Vec<Name>);

impl Fall {
    #[cfg(test)]
    pub(crate) fn all() -> Fall {
        Fall(vec![Name::root()])
    }

    /// `fallthrough [ZONES...]`.
    pub(crate) fn parse(directive: &Directive) -> Parsed<Fall> {
        let zones = names(directive, &directive.args)?;
        Ok(Fall(if zones.is_empty() { vec![Name::root()] } else { zones }))
    }

    pub(crate) fn through(&self, name: &Name) -> bool {
        self.0.iter().any(|zone| zone.zone_of(name))
    }
}

/// Reads a text file of at most so many bytes.
pub(crate) type Read<'a> = &'a dyn Fn(&str, u64) -> std::io::Result<String>;

/// Surroundings of one directive.
pub(crate) struct Surroundings<'a> {
    /// The server block's.
    pub(crate) zones: Vec<Name>,
    /// Where relative file names begin.
    pub(crate) root: Option<PathBuf>,
    pub(crate) read: Read<'a>,
}

impl Surroundings<'_> {
    /// A file's whole name.
    pub(crate) fn path(&self, text: &str) -> PathBuf {
        self.root.as_ref().map_or_else(|| text.into(), |root| root.join(text))
    }

    /// The text of a small file.
    pub(crate) fn config(&self, directive: &Directive, text: &str) -> Parsed<String> {
        let path = self.path(text).display().to_string();
        (self.read)(&path, text_file::CONFIG_BYTES_MAX)
            .map_err(|err| directive.error(format!("cannot read {path}: {err}")))
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "a Corefile may name variables, and the pod's API server is given in two; cli.rs is not on this road"
)]
pub(crate) fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
