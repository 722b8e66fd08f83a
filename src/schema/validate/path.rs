//! Paths of fields in errors.

use std::fmt;

/// The path of a field, `spec.containers[0].name`; empty for the object itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path<'a>(pub(crate) &'a str);

impl Path<'_> {
    /// The path of a field inside: `path.field`, or the field alone at the top.
    pub(crate) fn child(self, field: &str) -> String {
        if self.0.is_empty() { field.to_owned() } else { format!("{self}.{field}") }
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> String {
        path.0.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::Path;

    #[test]
    fn a_child_of_the_object_itself_has_no_dot() {
        assert_eq!(Path("").child("spec"), "spec");
        assert_eq!(Path("spec.ports[0]").child("name"), "spec.ports[0].name");
        assert_eq!(String::from(Path("spec")), Path("spec").to_string());
    }
}
