//! `kedge token`: bootstrap tokens, with which agents join, as Secrets of the cluster.

use std::collections::BTreeMap;

use base::files::FileError;
use base::layout::ServerFolder;
use base::rng::Rng;
use base::time::{Clock, rfc3339_secs};
use clap::{Args, Subcommand, ValueEnum};
use cluster::credentials::{NODE_GROUP, Passwords};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use pki::error::PkiError;
use pki::token::{BootstrapToken, Credential as JoinCredential, JoinToken};
use serde_json::json;

use crate::commands::admin::{Admin, AdminError};
use crate::flags::shared::{AdminArgs, StateArgs};
use crate::process::life::{self, LifeError};
use crate::server::rotation::{self, Held, Rotated};

type HiddenText = base::secret::Secret<String>;

const NAMESPACE: &str = "kube-system";
const TYPE: &str = "bootstrap.kubernetes.io/token";

/// Flags of `kedge token`.
#[derive(Clone, Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    state: StateArgs,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Clone, Debug, Subcommand)]
enum Verb {
    /// Make a token with which agents can join, and print it.
    Create {
        /// The token, ID.SECRET (default: a random one).
        token: Option<String>,
        /// A description for people.
        #[arg(long, default_value = "")]
        description: String,
        /// Groups that it gives. May be repeated.
        #[arg(long, value_delimiter = ',', default_value = NODE_GROUP)]
        groups: Vec<String>,
        /// How long it is good for, e.g. 30m, 24h, 7d; 0 is for ever.
        #[arg(long, default_value = "24h", value_parser = parse_ttl)]
        ttl: SignedDuration,
        /// Uses that it is good for. May be repeated.
        #[arg(
            long, value_delimiter = ',', default_values = ["signing", "authentication"],
            value_parser = ["signing", "authentication"]
        )]
        usages: Vec<String>,
    },
    /// Delete tokens, named whole or by ID.
    Delete {
        /// ID or ID.SECRET.
        #[arg(required = true)]
        tokens: Vec<String>,
    },
    /// Print a random token, and store nothing.
    Generate,
    /// Set the tokens with which servers and agents join from now on, on all servers, and print the servers'. Machines
    /// that are in stay in. Runs on a server.
    Rotate {
        /// The token as it is now, to make sure that this is the cluster that is meant.
        #[arg(long, short)]
        token: Option<String>,
        /// The new one (default: a random one).
        #[arg(long, value_name = "TOKEN")]
        new_token: Option<String>,
        /// The new one with which agents join (default: a random one, in the servers' files server/node-token).
        #[arg(long, value_name = "TOKEN")]
        new_agent_token: Option<String>,
    },
    /// List the tokens.
    List {
        /// Form of the output.
        #[arg(short, long, default_value = "text")]
        output: Output,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
    Yaml,
}

/// Why a token command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Token(#[from] PkiError),
    #[error("the group {0} cannot be given: want system:bootstrappers:NAME")]
    Group(String),
    #[error("there is no token {id}")]
    Missing { id: String },
    #[error("a token {id} exists already: delete it first, or choose another")]
    Exists { id: String },
    #[error("the server refused")]
    Refused(#[source] kube::Error),
    #[error("--{flag}: {why}")]
    New { flag: &'static str, why: String },
    #[error("--token is not the cluster's token")]
    Old,
    #[error("only a server can set the tokens of all servers: run this on one, as root, with its --data-dir")]
    NoServer(#[source] FileError),
    #[error("the new tokens cannot be sealed")]
    Seal,
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// A life of a token that cannot be read; clap names the flag.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a duration such as 30m, 24h or 7d")]
struct BadTtl(String);

/// `24h`, `30m`, `90s`, `7d`, `1h30m`, `0`.
fn parse_ttl(text: &str) -> Result<SignedDuration, BadTtl> {
    let bad = || BadTtl(text.to_owned());
    if text == "0" {
        return Ok(SignedDuration::ZERO);
    }
    let (mut secs, mut digits) = (0_i64, String::new());
    for c in text.chars() {
        let unit = match c {
            '0'..='9' => {
                digits.push(c);
                continue;
            }
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return Err(bad()),
        };
        let n: i64 = digits.parse().map_err(|_| bad())?;
        digits.clear();
        secs = n.checked_mul(unit).and_then(|more| secs.checked_add(more)).ok_or_else(bad)?;
    }
    if digits.is_empty() && !text.is_empty() { Ok(SignedDuration::from_secs(secs)) } else { Err(bad()) }
}

/// Runs the command.
pub(crate) fn main(args: &TokenArgs) -> Result<(), TokenError> {
    if let Verb::Generate = args.verb {
        println!("{}", BootstrapToken::generate(&Rng::from_os()).expose());
        return Ok(());
    }
    life::ask(run(args))?
}

async fn run(args: &TokenArgs) -> Result<(), TokenError> {
    let admin = Admin::open(&args.admin.kubeconfig)?;
    let api: Api<Secret> = Api::namespaced(admin.client.clone(), NAMESPACE);
    let now = Clock::system().now();
    match &args.verb {
        Verb::Generate => Ok(()),
        Verb::Rotate { token, new_token, new_agent_token } => {
            let new = [new_token.as_deref(), new_agent_token.as_deref()];
            println!("{}", rotate(&api, &admin.ca, &args.state.layout.server(), token.as_deref(), new).await?);
            Ok(())
        }
        Verb::Create { token, description, groups, ttl, usages } => {
            let token = match token {
                Some(text) => BootstrapToken::parse(text)?,
                None => BootstrapToken::generate(&Rng::from_os()),
            };
            if let Some(bad) = groups.iter().find(|group| !group.starts_with("system:bootstrappers:")) {
                return Err(TokenError::Group(bad.clone()));
            }
            let expires = if ttl.is_zero() { None } else { now.checked_add(*ttl).ok() };
            let secret = secret_of(&token, description, groups, usages, expires);
            match api.create(&PostParams::default(), &secret).await {
                Err(kube::Error::Api(status)) if status.code == 409 => return Err(TokenError::Exists { id: token.id }),
                made => made.map_err(TokenError::Refused)?,
            };
            println!("K10{}::{}", pki::token::ca_hash(admin.ca.as_bytes())?, token.expose());
            Ok(())
        }
        Verb::Delete { tokens } => {
            for text in tokens {
                // What a person pastes may be the whole token, its prefix included.
                let short = text.rsplit_once("::").map_or(text.as_str(), |(_, short)| short);
                let id = short.split('.').next().unwrap_or_default().to_owned();
                match api.delete(&secret_name(&id), &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => return Err(TokenError::Missing { id }),
                    done => done.map_err(TokenError::Refused)?,
                };
                println!("token {id} deleted");
            }
            Ok(())
        }
        Verb::List { output } => {
            let params = ListParams::default().fields(&format!("type={TYPE}"));
            let secrets = api.list(&params).await.map_err(TokenError::Refused)?.items;
            print(&secrets.iter().map(|secret| Row::of(secret, now)).collect::<Vec<_>>(), *output);
            if *output == Output::Text {
                tell_of_passwords(&api, &args.state.layout.server()).await?;
            }
            Ok(())
        }
    }
}

/// Tells, beside the table, which other tokens let machines in, where they stand, and where they came from. Only a
/// server has them.
async fn tell_of_passwords(api: &Api<Secret>, server: &ServerFolder) -> Result<(), TokenError> {
    if !server.token().exists() {
        return Ok(());
    }
    let found = api.get_opt(rotation::NAME).await.map_err(TokenError::Refused)?;
    let from = match found {
        Some(_) => "the last 'kedge token rotate'",
        None => "--token and --agent-token, or the first start where they were not given",
    };
    eprintln!("Besides, servers join with the token in {}, and agents with that in", server.token().display());
    eprintln!("{}: both came from {from}.", server.node_token().display());
    Ok(())
}

/// A token by the flag that gives it.
#[derive(Clone, Copy)]
struct Given<'a> {
    flag: &'static str,
    text: &'a str,
}

/// The password in a join token that a person gives; it must not pin another cluster.
fn password(Given { flag, text }: Given<'_>, ca: &str) -> Result<HiddenText, TokenError> {
    let refused = |why: String| TokenError::New { flag, why };
    let token = JoinToken::parse(text).map_err(|err| refused(err.to_string()))?;
    if token
        .ca_hash
        .is_some_and(|pinned| pki::token::vouched_for(ca.as_bytes(), &pinned).is_ok_and(|own| own.is_empty()))
    {
        return Err(refused("it is for another cluster".to_owned()));
    }
    match token.credential {
        JoinCredential::Password { password, .. } => Ok(password),
        JoinCredential::Bootstrap(_) => {
            Err(refused("a bootstrap token is none for servers: see 'kedge token create'".to_owned()))
        }
    }
}

/// Writes new passwords where all servers look, sealed. Answers with the new full token. `new`: the servers' and the
/// agents'.
async fn rotate(
    api: &Api<Secret>,
    ca: &str,
    server: &ServerFolder,
    old: Option<&str>,
    new: [Option<&str>; 2],
) -> Result<String, TokenError> {
    let (seal, rng, now) =
        (rotation::seal(server).map_err(TokenError::NoServer)?, Rng::from_os(), Clock::system().now());
    if let Some(old) = old {
        // The server's file follows every rotation.
        let path = server.token();
        let text = std::fs::read_to_string(&path)
            .map_err(FileError::at("cannot read", &path))
            .map_err(TokenError::NoServer)?;
        let of = |text| password(Given { flag: "token", text }, ca);
        if of(old)? != of(&text)? {
            return Err(TokenError::Old);
        }
    }
    let given =
        |flag: &'static str, text: Option<&str>| text.map(|text| password(Given { flag, text }, ca)).transpose();
    let password = given("new-token", new[0])?.unwrap_or_else(|| pki::token::new_password(&rng));
    let agent = given("new-agent-token", new[1])?.unwrap_or_else(|| pki::token::new_password(&rng));
    let found = api.get_opt(rotation::NAME).await.map_err(TokenError::Refused)?;
    let last = found.as_ref().and_then(|found| match Held::of(found, &seal) {
        Some(Held::Sealed(last)) => Some(last.at_ms),
        _ => None,
    });
    // A clock that was set back makes no rotation older than the last.
    let at_ms = now.as_millisecond().max(last.map_or(i64::MIN, |last| last + 1));
    let token = JoinToken::full(ca.as_bytes(), "server", &password)?;
    let rotated = Rotated { passwords: Passwords { server: password, agent }, at_ms };
    let version = found.as_ref().and_then(|found| found.metadata.resource_version.clone());
    let secret = rotated.secret(version, &seal, &rng).ok_or(TokenError::Seal)?;
    let made = match found {
        Some(_) => api.replace(rotation::NAME, &PostParams::default(), &secret).await,
        None => api.create(&PostParams::default(), &secret).await,
    };
    made.map_err(TokenError::Refused)?;
    Ok(token)
}

fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

fn secret_of(
    token: &BootstrapToken,
    description: &str,
    groups: &[String],
    usages: &[String],
    expires: Option<Timestamp>,
) -> Secret {
    let mut data = BTreeMap::from([
        ("token-id".to_owned(), token.id.clone()),
        ("token-secret".to_owned(), token.secret.expose().clone()),
        ("auth-extra-groups".to_owned(), groups.join(",")),
    ]);
    data.extend(usages.iter().map(|usage| (format!("usage-bootstrap-{usage}"), "true".to_owned())));
    data.extend(expires.map(|at| ("expiration".to_owned(), rfc3339_secs(at))));
    if !description.is_empty() {
        data.insert("description".to_owned(), description.to_owned());
    }
    let data = data.into_iter().map(|(name, value)| (name, ByteString(value.into_bytes()))).collect();
    let metadata = ObjectMeta { name: Some(secret_name(&token.id)), ..ObjectMeta::default() };
    Secret { metadata, data: Some(data), type_: Some(TYPE.to_owned()), ..Secret::default() }
}

/// A token as it is listed: its secret half stays where it is.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    id: String,
    ttl: String,
    expires: String,
    usages: String,
    description: String,
    groups: String,
}

impl Row {
    fn of(secret: &Secret, now: Timestamp) -> Row {
        let field = |name: &str| model::secret::text(secret, name);
        let expires = field("expiration");
        let ttl = match expires.parse::<Timestamp>() {
            Ok(end) if end <= now => "<expired>".to_owned(),
            Ok(end) => {
                let secs = end.as_second() - now.as_second();
                format!("{}h{}m", secs / 3600, secs % 3600 / 60)
            }
            Err(_) => "<forever>".to_owned(),
        };
        let usages = ["authentication", "signing"]
            .into_iter()
            .filter(|usage| field(&format!("usage-bootstrap-{usage}")) == "true");
        Row {
            id: field("token-id"),
            ttl,
            expires,
            usages: usages.collect::<Vec<_>>().join(","),
            description: field("description"),
            groups: field("auth-extra-groups"),
        }
    }

    fn cells(&self) -> [&str; 6] {
        [&self.id, &self.ttl, &self.expires, &self.usages, &self.description, &self.groups]
            .map(|cell| if cell.is_empty() { "<none>" } else { cell })
    }
}

fn print(rows: &[Row], output: Output) {
    let as_json = |row: &Row| {
        json!({"id": row.id, "ttl": row.ttl, "expires": row.expires, "usages": row.usages,
        "description": row.description, "groups": row.groups})
    };
    match output {
        Output::Json => println!("{}", json!(rows.iter().map(as_json).collect::<Vec<_>>())),
        // One JSON object a line is YAML, too.
        Output::Yaml if rows.is_empty() => println!("[]"),
        Output::Yaml => rows.iter().for_each(|row| println!("- {}", as_json(row))),
        Output::Text => {
            let head = ["TOKEN", "TTL", "EXPIRES", "USAGES", "DESCRIPTION", "EXTRA GROUPS"];
            let lines: Vec<[&str; 6]> = std::iter::once(head).chain(rows.iter().map(Row::cells)).collect();
            let width = |n: usize| lines.iter().map(|line| line[n].chars().count()).max().unwrap_or(0);
            for line in &lines {
                let text: String = (0..6).map(|n| format!("{:<1$}", line[n], width(n) + 3)).collect();
                println!("{}", text.trim_end());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, secs) in [("0", 0), ("30m", 1800), ("24h", 86_400), ("1h30m", 5400), ("7d", 604_800)] {
            assert_eq!(parse_ttl(text).unwrap().as_secs(), secs, "{text}");
        }
        for bad in ["", "5", "h", "1x", "-1h"] {
            assert!(parse_ttl(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_listed_token_shows_its_life_and_not_its_secret() {
        let now: Timestamp = "2026-11-21T00:00:00Z".parse().unwrap();
        let token = BootstrapToken::parse("abc123.0123456789abcdef").unwrap();
        let end = now.checked_add(SignedDuration::from_secs(5400)).unwrap();
        let secret = secret_of(&token, "edge", &[NODE_GROUP.to_owned()], &["authentication".to_owned()], Some(end));
        let row = Row::of(&secret, now);
        assert_eq!(row.cells(), ["abc123", "1h30m", "2026-11-21T01:30:00Z", "authentication", "edge", NODE_GROUP]);
        assert_eq!(Row::of(&secret, end).ttl, "<expired>");
    }
}
