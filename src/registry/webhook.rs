//! Calling others over HTTPS while a request waits: admission, conversion, authentication, authorization and audit
//! webhooks.

pub mod call;
pub mod client;
pub mod kubeconfig;
