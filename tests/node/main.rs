//! A whole node with real containers. Needs root, containerd and the static program that KEDGE_BIN names.
