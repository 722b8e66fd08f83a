//! Pods that attack the node through the folders they share with the kubelet.

use crate::Chapter;

pub(crate) const CHAPTERS: &[Chapter] = &[];
