//! Quantities: parse, compare, canonical text.
