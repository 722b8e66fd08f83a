//! This room knows what a Kubernetes object is. One table (types, fields, resources) and one engine over it: decode,
//! prune, default, validate, patch, apply, convert, print, discovery and OpenAPI. A CRD's schema compiles into the same
//! form. In: bytes and `serde_json::Value`s. Out: the same, plus texts for people. It never knows time, sockets or
//! storage.

pub mod apply;
pub mod behaviour;
pub mod catalog;
pub mod convert;
pub mod custom;
pub mod declared;
pub mod decode;
pub mod defaults;
pub mod discovery;
pub mod fields;
pub mod gates;
mod kinds;
pub mod openapi;
pub mod patch;
pub mod print;
pub mod protobuf;
pub mod quota;
pub mod read;
pub mod rows;
pub mod strategy;
pub mod table;
pub mod validate;
pub mod versions;

#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod fuzz_tests;
