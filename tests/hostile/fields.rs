//! Clients that write fields which are not theirs to write.
