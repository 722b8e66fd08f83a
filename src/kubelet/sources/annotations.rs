//! Annotations by which the pods of a file, of the API and their mirrors are told apart.

use k8s_openapi::api::core::v1::Pod;

pub(super) const SOURCE: &str = "kubernetes.io/config.source";

/// Its value for pods of the API.
pub(super) const API: &str = "api";

pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";

pub(super) const HASH: &str = "kubernetes.io/config.hash";

/// Whether a pod comes from a file.
pub(crate) fn is_static(pod: &Pod) -> bool {
    annotation(pod, SOURCE).is_some_and(|source| source != API) && annotation(pod, MIRROR).is_none()
}

pub(crate) fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_pod_of_a_file_that_is_no_mirror_is_static() {
        for (notes, expected) in [
            (&[][..], false),
            (&[(SOURCE, "file")], true),
            (&[(SOURCE, API)], false),
            (&[(SOURCE, "file"), (MIRROR, "h")], false),
            (&[(MIRROR, "h")], false),
        ] {
            let mut pod = Pod::default();
            pod.metadata.annotations =
                Some(notes.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect());
            assert_eq!(is_static(&pod), expected, "{notes:?}");
        }
    }
}
