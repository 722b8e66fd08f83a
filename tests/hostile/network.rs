//! Pods that attack the network of the node: policies, ports, names.

use crate::Chapter;

pub(crate) const CHAPTERS: &[Chapter] = &[];
