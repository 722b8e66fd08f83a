//! The kinds of internal.apiserver.k8s.io.

pub(crate) mod storage_version;
