//! This room carries bytes: HTTP/1.1 and 2 over TLS, unix and plain sockets, in both directions, and the streams that
//! ride on an upgraded connection (WebSocket, SPDY/3.1).
//!
//! In: sockets, TLS configurations from `pki`. Out: requests for a [`Handler`], responses for a caller. It never knows
//! what a kind is.

pub mod authority;
pub mod body;

pub mod seats;

pub mod held;

pub mod serve;

pub mod dial;

pub mod keep;

pub mod upgrade;

pub mod proxy;

pub mod tunnel;

pub mod websocket;

pub mod spdy;

pub mod gzip;

use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use tokio_util::sync::CancellationToken;

pub use body::Body;

/// Facts of a connection before its first request.
pub struct ConnInfo {
    /// The other end.
    pub peer: SocketAddr,
    /// Our end.
    pub local: SocketAddr,
    /// The client's certificate chain, verified against the server's client CAs; empty without one.
    pub client_certs: Vec<CertificateDer<'static>>,
    /// The caller, when it is a part of this process. The apiserver knows its type.
    pub identity: Option<Arc<dyn Any + Send + Sync>>,
    /// Its place among the listener's connections; without one nobody counts it.
    pub seat: Option<Arc<seats::Seat>>,
    /// Cancelled, it ends the connection at once, with all that runs on it: an upgrade's streams, too.
    pub end: Arc<End>,
}

/// The end of a connection, which somebody else than its client may bring.
#[derive(Debug, Default)]
pub struct End(CancellationToken);

impl End {
    /// Ends it.
    pub fn now(&self) {
        self.0.cancel();
    }
}

impl ConnInfo {
    /// A caller over TCP. With a certificate, which the server has verified, it is no stranger.
    pub fn tcp(peer: SocketAddr, local: SocketAddr, client_certs: Vec<CertificateDer<'static>>) -> ConnInfo {
        ConnInfo { peer, local, client_certs, identity: None, seat: None, end: Arc::default() }
    }

    /// A handler has found out who the caller is: the connection is no stranger's any more, so it may stay.
    pub fn vouch(&self) {
        if let Some(seat) = &self.seat {
            seat.vouch();
        }
    }

    /// A caller in the same process.
    pub fn in_process(identity: Arc<dyn Any + Send + Sync>) -> ConnInfo {
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        ConnInfo { identity: Some(identity), ..ConnInfo::tcp(nowhere, nowhere, Vec::new()) }
    }
}

/// Answers requests. One value serves all connections.
#[async_trait::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. Errors are answers too: there is no way to fail.
    ///
    /// Cancel safety: dropped when the client goes away.
    async fn handle(&self, req: http::Request<Body>, conn: Arc<ConnInfo>) -> http::Response<Body>;
}

#[cfg(test)]
mod fuzz_tests;
