//! Nodes: a pod network for each (`ipam`), and what happens when one falls silent (`lifecycle`).

pub(crate) mod ipam;
pub(crate) mod lifecycle;
mod plan;
#[cfg(test)]
mod tests;
