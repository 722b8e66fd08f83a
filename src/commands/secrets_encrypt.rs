//! `kedge secrets-encrypt`: asks the running server about the encryption of Secrets at rest, and to change it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::task::Group;
use clap::{Args, Subcommand, ValueEnum};
use http::{Method, Request, Uri};
use pki::bundle::Bundle;
use pki::certstore::CertStore;
use pki::error::PkiError;
use pki::folder;
use pki::leaf::{Ca, Leaf};
use pki::tls::ClientSetup;
use serde_json::Value;
use wire::body::CollectError;
use wire::dial::DialError;

use crate::flags::shared::StateArgs;
use crate::process::life::{self, LifeError};

/// Bytes of an answer.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Flags of `kedge secrets-encrypt`.
#[derive(Clone, Debug, Args)]
pub(crate) struct SecretsEncryptArgs {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    state: StateArgs,
    /// The server to ask.
    #[arg(short = 's', long, global = true, default_value = "https://127.0.0.1:6443", value_name = "URL")]
    server: String,
    /// How to print.
    #[arg(short, long, global = true, default_value = "text")]
    output: Form,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Args)]
struct StepArgs {
    /// Do it whatever step came before.
    #[arg(short, long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum What {
    /// Print whether Secrets are encrypted, and with which keys.
    Status,
    /// Encrypt Secrets from now on, and those that are there.
    Enable,
    /// Stop encrypting, and decrypt those that are there.
    Disable,
    /// Make a new key, encrypt every Secret with it, and forget the old one. Servers keep running, and need no restart.
    RotateKeys,
    /// The first of three steps: make a new key and give it to all servers.
    Prepare(StepArgs),
    /// The second: encrypt with the new key from now on.
    Rotate(StepArgs),
    /// The third: encrypt every Secret with it, and forget the old one.
    Reencrypt(StepArgs),
}

/// Why `kedge secrets-encrypt` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EncryptError {
    #[error("cannot read {path}: {why}; is this a server, and are you root?", path = path.display())]
    Unread { path: PathBuf, why: io::Error },
    #[error("--server {text}")]
    Server { text: String, source: http::uri::InvalidUri },
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error(transparent)]
    Dial(#[from] DialError),
    #[error(transparent)]
    Request(#[from] http::Error),
    #[error(transparent)]
    Answer(#[from] CollectError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// Asks, and prints the answer.
pub(crate) fn main(args: &SecretsEncryptArgs) -> Result<(), EncryptError> {
    let (method, path) = match args.what {
        What::Status => (Method::GET, "status"),
        What::Enable => (Method::PUT, "enable"),
        What::Disable => (Method::PUT, "disable"),
        What::RotateKeys => (Method::PUT, "rotate-keys"),
        What::Prepare(_) => (Method::PUT, "prepare"),
        What::Rotate(_) => (Method::PUT, "rotate"),
        What::Reencrypt(_) => (Method::PUT, "reencrypt"),
    };
    let forced = matches!(args.what, What::Prepare(step) | What::Rotate(step) | What::Reencrypt(step) if step.force);
    let query = if forced { "?force=true" } else { "" };
    let answer = life::ask(ask(args, method, &format!("/kedge/secrets-encrypt/{path}{query}")))??;
    match args.output {
        Form::Json => println!("{answer}"),
        Form::Text => print!("{}", shown(&answer)),
    }
    Ok(())
}

async fn ask(args: &SecretsEncryptArgs, method: Method, path: &str) -> Result<Value, EncryptError> {
    let tls = args.state.layout.server().tls();
    let read =
        |path: &Path| std::fs::read_to_string(path).map_err(|why| EncryptError::Unread { path: path.to_owned(), why });
    let bundle = Bundle::from_pem(&read(&folder::certificate(&tls, Ca::Server.stem()))?)?;
    let stem = Leaf::ClientAdmin.stem();
    let admin = CertStore::load(&folder::certificate(&tls, stem), &folder::key(&tls, stem))?;
    let setup = ClientSetup::http1(Some(&bundle), Some(Arc::clone(&admin)))?;
    let server: Uri =
        args.server.parse().map_err(|source| EncryptError::Server { text: args.server.clone(), source })?;
    let (host, port) = (server.host().unwrap_or("127.0.0.1"), server.port_u16().unwrap_or(base::ports::API));
    let (group, _fatal) = Group::root("secrets-encrypt");
    let stream = wire::dial::tcp(host, port, host, Some(setup.config())).await?;
    let request = Request::builder().method(method).uri(path).header("host", host).header("accept", "application/json");
    let request = request.body(wire::body::empty())?;
    let answer = wire::dial::request(stream, &args.server, request, &group).await?;
    let ok = answer.status().is_success();
    let bytes = wire::body::collect(answer.into_body(), ANSWER_BYTES_MAX).await?;
    let answer: Value = serde_json::from_slice(&bytes)
        .map_err(|_| EncryptError::Refused(String::from_utf8_lossy(&bytes).into_owned()))?;
    if ok {
        Ok(answer)
    } else {
        Err(EncryptError::Refused(answer["message"].as_str().unwrap_or("the server refused").to_owned()))
    }
}

/// Whether all servers have the same keys, and else which do not.
fn matching(answer: &Value) -> String {
    if answer["hashesMatch"] == true {
        return "All hashes match".to_owned();
    }
    let other = |(_, hash): &(&String, &Value)| **hash != answer["hash"];
    let others = answer["hashes"].as_object().into_iter().flatten().filter(other).map(|(server, _)| server.as_str());
    format!("hash does not match on {}", others.collect::<Vec<_>>().join(", "))
}

/// As k3s prints it.
fn shown(answer: &Value) -> String {
    let mut out = format!("Encryption Status: {}\n", if answer["enabled"] == true { "Enabled" } else { "Disabled" });
    if let Some(stage) = answer["stage"].as_str() {
        out.push_str(&format!("Current Rotation Stage: {stage}\nServer Encryption Hashes: {}\n", matching(answer)));
    }
    if let Some(n) = answer["reencrypted"].as_u64() {
        out.push_str(&format!("Objects written anew: {n}\n"));
    }
    let keys = answer["keys"].as_array().cloned().unwrap_or_default();
    if !keys.is_empty() {
        out.push_str("\nActive  Key Type           Name\n------  --------           ----\n");
    }
    for key in keys {
        let active = if key["active"] == true { " *" } else { "" };
        out.push_str(&format!(
            "{active:<8}{:<19}{}\n",
            key["type"].as_str().unwrap_or_default(),
            key["name"].as_str().unwrap_or_default()
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn servers_with_other_keys_are_named() {
        let hashes = json!({ "10.0.0.1": "start-a", "10.0.0.2": "start-b" });
        let text = shown(
            &json!({ "enabled": true, "stage": "start", "hash": "start-a", "hashes": hashes, "hashesMatch": false }),
        );
        assert!(
            text.contains("Current Rotation Stage: start\nServer Encryption Hashes: hash does not match on 10.0.0.2\n"),
            "{text}"
        );
    }

    #[test]
    fn the_active_key_has_a_star() {
        let text =
            shown(&json!({ "enabled": true, "keys": [{ "active": true, "type": "XSalsa20-POLY1305", "name": "k" }] }));
        assert_eq!(
            text,
            "Encryption Status: Enabled\n\nActive  Key Type           Name\n------  --------           ----\n *      \
             XSalsa20-POLY1305  k\n"
        );
    }
}
