//! Crates that may be built into kedge, as deny.toml says it: licences, sources and banned crates, read off Cargo.lock
//! and what cargo knows of its packages. `cargo deny` says the same and more, where it is installed; this holds where
//! it is not.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::{none, read, root};

/// The only registry; cargo's own name for it.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The quoted words of the list that begins with this line of deny.toml.
fn list_in_deny(begins: &str) -> BTreeSet<String> {
    let text = read("deny.toml");
    let lines = text.lines().skip_while(|line| *line != begins).skip(1).take_while(|line| *line != "]");
    lines.filter_map(|line| line.split('"').nth(1).map(str::to_owned)).collect()
}

/// Name and source of each package of the lock file that is not ours.
fn locked() -> Vec<(String, String)> {
    let text = read("Cargo.lock");
    let field = |package: &str, name: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|value| value.trim_end_matches('"').to_owned())
    };
    let packages = text.split("[[package]]").skip(1);
    packages.filter_map(|package| Some((field(package, "name")?, field(package, "source")?))).collect()
}

#[test]
fn no_crate_is_banned_and_all_come_from_the_one_registry() {
    let banned = list_in_deny("deny = [");
    assert!(banned.contains("openssl"), "deny.toml is read wrongly: {banned:?}");
    let packages = locked();
    assert!(packages.len() > 100, "Cargo.lock is read wrongly");
    let found: Vec<String> =
        packages.iter().filter(|(name, _)| banned.contains(name)).map(|(name, _)| name.clone()).collect();
    none("crates that deny.toml bans", &found);
    let elsewhere: Vec<String> = packages
        .into_iter()
        .filter(|(_, source)| source != REGISTRY)
        .map(|(name, source)| format!("{name} from {source}"))
        .collect();
    none("crates from elsewhere", &elsewhere);
    let anything: Vec<String> =
        read("Cargo.toml").lines().filter(|line| line.contains("= \"*\"")).map(str::to_owned).collect();
    none("dependencies of any version", &anything);
}

/// Whether a licence expression is met by what is allowed: `OR` (or the old `/`) needs one side, `AND` both.
struct Expression<'a> {
    words: Vec<String>,
    at: usize,
    allowed: &'a BTreeSet<String>,
}

impl Expression<'_> {
    fn is_met(text: &str, allowed: &BTreeSet<String>) -> bool {
        let spaced = text.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
        let mut expression =
            Expression { words: spaced.split_whitespace().map(str::to_owned).collect(), at: 0, allowed };
        let met = expression.any();
        assert_eq!(expression.at, expression.words.len(), "a licence that cannot be read: {text}");
        met
    }

    fn takes(&mut self, word: &str) -> bool {
        let found = self.words.get(self.at).is_some_and(|next| next == word);
        self.at += usize::from(found);
        found
    }

    fn any(&mut self) -> bool {
        let mut met = self.all();
        while self.takes("OR") {
            met |= self.all();
        }
        met
    }

    fn all(&mut self) -> bool {
        let mut met = self.one();
        while self.takes("AND") {
            met &= self.one();
        }
        met
    }

    fn one(&mut self) -> bool {
        if self.takes("(") {
            let met = self.any();
            assert!(self.takes(")"), "a licence with an open bracket");
            return met;
        }
        let mut name = self.words[self.at].clone();
        self.at += 1;
        if self.takes("WITH") {
            name = format!("{name} WITH {}", self.words[self.at]);
            self.at += 1;
        }
        self.allowed.contains(&name)
    }
}

#[test]
fn every_crate_has_a_licence_that_is_allowed() {
    let allowed = list_in_deny("allow = [");
    for (text, met) in [
        ("MIT", true),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("GPL-3.0/MIT", true),
        ("(GPL-3.0 OR MIT) AND ISC", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("ISC AND (GPL-2.0 WITH LLVM-exception)", false),
    ] {
        assert_eq!(Expression::is_met(text, &allowed), met, "{text}");
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args([
        "metadata",
        "--offline",
        "--locked",
        "--format-version=1",
        "--filter-platform=x86_64-unknown-linux-musl",
    ]);
    let output = cargo.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    // What is built, not all that the lock file knows of other systems.
    let built: BTreeSet<&str> =
        metadata["resolve"]["nodes"].as_array().unwrap().iter().filter_map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().unwrap();
    let foreign = packages
        .iter()
        .filter(|package| !package["source"].is_null() && built.contains(package["id"].as_str().unwrap()));
    let mut found = Vec::new();
    for package in foreign {
        let licence = package["license"].as_str().unwrap_or_default();
        if licence.is_empty() || !Expression::is_met(licence, &allowed) {
            found.push(format!("{} {}: {licence:?}", package["name"], package["version"]));
        }
    }
    none("crates whose licence deny.toml does not allow", &found);
}
