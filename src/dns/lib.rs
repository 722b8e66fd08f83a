//! This room names things: a DNS server that reads CoreDNS's Corefile, run in a pod of its own as `coredns -conf
//! Corefile`.
//!
//! In: a Corefile, a hosts file, Services, EndpointSlices and Namespaces over `client`. Out: answers over UDP and TCP,
//! health, readiness and metrics over HTTP. It never knows a kubelet or a node's network.

mod apiserver;
mod args;
mod cache;
mod config;
pub mod corefile;
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

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use base::chain::Chain;

use crate::corefile::CorefileError;
use crate::instance::Options;

/// Why the server cannot run.
#[derive(Debug, thiserror::Error)]
pub enum DnsError {
    /// The Corefile is wrong.
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// A file cannot be read.
    #[error("cannot read {path}", path = path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A port is taken or forbidden.
    #[error("cannot listen on {addr}")]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Not in a pod, and no `endpoint` in the Corefile.
    #[error(
        "the kubernetes plugin needs an API server: run in a pod with a service account, or give `endpoint` and `tls`"
    )]
    NoApiServer,
    /// The trust or identity for the API server.
    #[error("cannot use the credentials for the API server: {0}")]
    Credentials(String),
    /// An argument.
    #[error("{0}\nusage: coredns [-conf FILE] [-dns.port PORT] [-version] [-plugins]")]
    Usage(String),
    /// A resolver sends our questions back to us.
    #[error("{0}")]
    Loop(String),
    /// The runtime.
    #[error("cannot start the event loop")]
    Runtime(#[source] io::Error),
}

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
