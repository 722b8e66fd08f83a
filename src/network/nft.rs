//! Handing scripts to the `nft` program. One call is one transaction: all of it is in force, or nothing changed.

use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::NetworkError;

/// A script of ten thousand services takes seconds; one that takes longer hangs.
const NFT_TIMEOUT: Duration = Duration::from_secs(60);

/// Applies a script; an empty one costs nothing.
pub(crate) async fn apply(script: &str) -> Result<(), NetworkError> {
    if script.is_empty() {
        return Ok(());
    }
    run(&["-f", "-"], script).await.map(drop)
}

/// Whether `nft` is there and may speak to the kernel.
pub(crate) async fn check() -> Result<(), NetworkError> {
    run(&["list", "tables"], "").await.map(drop)
}

pub(crate) async fn run(args: &[&str], stdin: &str) -> Result<String, NetworkError> {
    let spawned =
        Command::new("nft").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn();
    let mut child = spawned.map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => NetworkError::NoNft,
        _ => NetworkError::Io { doing: "cannot run nft", source },
    })?;
    let pipe = child.stdin.take();
    let feed = async {
        if let Some(mut pipe) = pipe {
            // nft that ends early closes the pipe; its own words say why.
            let _nft_says_why = pipe.write_all(stdin.as_bytes()).await;
        }
    };
    let both = async { tokio::join!(feed, child.wait_with_output()).1 };
    let output = tokio::time::timeout(NFT_TIMEOUT, both).await.map_err(|_| NetworkError::NftHangs)?;
    let output = output.map_err(|source| NetworkError::Io { doing: "cannot read from nft", source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    text.truncate(text.char_indices().nth(2000).map_or(text.len(), |(at, _)| at));
    Err(NetworkError::NftRefused { text })
}
