//! Handing scripts to the `nft` program. One call is one transaction: all of it is in force, or nothing changed.

use std::collections::{BTreeSet, VecDeque};
use std::process::Stdio;
use std::time::Duration;

use base::sync::Mutex;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use crate::error::NetworkError;
use crate::table::Table;

/// A script of ten thousand services takes seconds; one that takes longer hangs.
const NFT_TIMEOUT: Duration = Duration::from_secs(60);

/// Applies a script; an empty one costs nothing.
pub(crate) async fn apply(script: &str) -> Result<(), NetworkError> {
    if script.is_empty() {
        return Ok(());
    }
    run(&["-f", "-"], script).await.map(drop)
}

/// Whether the kernel would take a script. Nothing is changed.
pub(crate) async fn would_take(script: &str) -> Result<(), NetworkError> {
    run(&["-c", "-f", "-"], script).await.map(drop)
}

/// The tables that are there, of those that we look after.
pub(crate) async fn tables() -> Result<BTreeSet<Table>, NetworkError> {
    let text = run(&["list", "tables"], "").await?;
    let table = |line: &str| {
        let mut words = line.split_whitespace();
        match (words.next()?, words.next()?, words.next()?) {
            ("table", family, name) => Table::known(family, name),
            _ => None,
        }
    };
    Ok(text.lines().filter_map(table).collect())
}

/// The processes of ours that ran last. Each ends before the number is given to another.
static OURS: Mutex<VecDeque<u32>> = Mutex::new(VecDeque::new());
const OURS_MAX: usize = 64;

fn remember(pid: Option<u32>) {
    let mut ours = OURS.lock();
    ours.extend(pid);
    while ours.len() > OURS_MAX {
        ours.pop_front();
    }
}

/// Whether this netlink port was, a moment ago, one of our own processes': the kernel numbers a process's first socket
/// as the process.
pub(crate) fn is_ours(port: u32) -> bool {
    OURS.lock().contains(&port)
}

/// Whether `nft` is there and may speak to the kernel.
pub(crate) async fn check() -> Result<(), NetworkError> {
    run(&["list", "tables"], "").await.map(drop)
}

pub(crate) async fn run(args: &[&str], stdin: &str) -> Result<String, NetworkError> {
    let spawned = Command::new("nft")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = spawned.map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => NetworkError::NoNft,
        _ => NetworkError::Io { doing: "cannot run nft", source },
    })?;
    // Known before it gets its script: what it changes is no news.
    remember(child.id());
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
