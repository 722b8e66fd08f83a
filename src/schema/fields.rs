//! Field selectors: parse, match.
