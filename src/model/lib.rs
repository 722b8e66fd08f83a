//! This room knows what Kubernetes objects mean: quantities, names, labels, selectors; over typed objects and over JSON
//! alike.

pub mod budget;
pub mod grace;
pub mod labels;
pub mod meta;
pub mod names;
pub mod node;
pub mod owners;
pub mod phase;
pub mod pod;
pub mod qos;
pub mod quantity;
pub mod reference;
pub mod requests;
pub mod secret;
pub mod selectors;
pub mod sysctls;
pub mod taints;
