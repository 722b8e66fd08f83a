//! Label selectors: parse, match, print.
