//! decode/mod
