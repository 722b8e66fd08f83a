//! Per-group facts that no schema tells.
