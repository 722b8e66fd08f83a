//! This room knows what a Kubernetes object is. One table (types, fields, resources) and one engine over it: decode, prune,
//! default, validate, patch, apply, convert, print, discovery and OpenAPI. A CRD's schema compiles into the same form.
//! In: bytes and `serde_json::Value`s. Out: the same, plus texts for people. It never knows time, sockets or storage.

pub mod table;
pub mod catalog;
pub mod rows;
pub mod custom;
pub mod quantity;
pub mod labels;
pub mod fields;
pub mod meta;
pub mod read;
pub mod decode;
pub mod protobuf;
pub mod defaults;
pub mod strategy;
pub mod convert;
pub mod validate;
pub mod patch;
pub mod apply;
pub mod print;
pub mod discovery;
pub mod openapi;
