//! Validation with upstream's texts.
