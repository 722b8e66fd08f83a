//! This room names things: a DNS server that reads CoreDNS's Corefile, run in a pod of its own as `coredns -conf
//! Corefile`.
//!
//! In: a Corefile, a hosts file, Services, EndpointSlices and Namespaces over `client`. Out: answers over UDP and TCP,
//! health, readiness and metrics over HTTP. It never knows a kubelet or a node's network.

mod apiserver;
mod args;
mod around;
mod cache;
mod config;
pub mod corefile;
pub mod error;
mod events;
mod forward;
mod hosts;
mod instance;
mod kube_plugin;
mod load;
mod metrics;
mod pages;
mod plugin;
mod question;
mod roots;
mod server;
mod text_file;
mod zone;

#[cfg(test)]
mod fuzz_tests;

use base::chain::Chain;

use crate::error::DnsError;
use crate::instance::Options;

/// Runs the server with the arguments behind the program's name and returns the exit code. Logging is set up by the
/// caller.
pub fn main(args: &[String]) -> i32 {
    let outcome = Options::parse(args).and_then(|options| match options {
        Options::Say(text) => {
            println!("{text}");
            Ok(())
        }
        Options::Run(options) => {
            // One thread: a pod of a few megabytes, and answers from memory.
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(DnsError::Runtime)?;
            runtime.block_on(instance::run(options))
        }
    });
    match outcome {
        Ok(()) => 0,
        Err(err) => {
            eprintln!("{}", Chain(&err));
            1
        }
    }
}
