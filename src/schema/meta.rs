//! Object metadata read and written in place.
