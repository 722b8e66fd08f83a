//! Credentials from programs of the operator (upstream's kubelet credential provider API, version 1), as cloud
//! registries need them.
//!
//! [`config`] says which program is asked for which images; here they are asked, and their answers kept for as long as
//! they are good.

pub mod config;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Debug};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use k8s_cri::v1 as cri;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::Instant;
use tracing::warn;

use self::config::{Provider, matches, repository};

/// A program that takes longer is ended, as upstream does.
const LIMIT: Duration = Duration::from_secs(60);
/// Longest answer.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// Answers that are kept; when full, what is past its time goes, else all.
const KEPT_MAX: usize = 256;

/// One program's answer: credentials by pattern.
type Answer = Arc<BTreeMap<String, Login>>;

#[derive(Clone, Deserialize)]
struct Login {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    kind: String,
    api_version: String,
    cache_key_type: String,
    cache_duration: Option<String>,
    auth: Option<BTreeMap<String, Login>>,
}

/// What an answer is good for: the program's number and the image, the registry, or nothing.
type CacheKey = (usize, String);

/// All programs, and their answers.
pub struct Providers {
    all: Vec<Provider>,
    kept: Mutex<HashMap<CacheKey, (Answer, Instant)>>,
    /// One question to a program at a time: others wait and find its answer kept.
    turns: Vec<tokio::sync::Mutex<()>>,
}

impl Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Providers({} programs)", self.all.len())
    }
}

impl Providers {
    /// Reads the file, or the files of a folder in order of their names.
    ///
    /// Errors: a sentence that says which file or program is wrong.
    pub fn read(path: &Path, bin_dir: &Path) -> Result<Providers, String> {
        let at = |path: &Path, why: &dyn fmt::Display| format!("{}: {why}", path.display());
        let mut files = vec![path.to_owned()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).map_err(|err| at(path, &err))?;
            let names = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<PathBuf>, _>>();
            files = names.map_err(|err| at(path, &err))?;
            files.retain(|file| file.extension().is_some_and(|ext| ext == "yaml" || ext == "yml" || ext == "json"));
            files.sort();
        }
        let mut all: Vec<Provider> = Vec::new();
        for file in files {
            let text = std::fs::read_to_string(&file).map_err(|err| at(&file, &err))?;
            for provider in config::parse(&text, bin_dir).map_err(|why| at(&file, &why))? {
                if all.iter().any(|other| other.path == provider.path) {
                    return Err(at(&file, &format!("provider {} is there twice", provider.path.display())));
                }
                let runs =
                    provider.path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
                if !runs {
                    return Err(at(&file, &format!("there is no program {}", provider.path.display())));
                }
                all.push(provider);
            }
        }
        let turns = all.iter().map(|_| tokio::sync::Mutex::default()).collect();
        Ok(Providers { all, kept: Mutex::default(), turns })
    }

    /// Credentials for an image, the most exact first. A program that fails is passed over, and told of in the log.
    pub(crate) async fn credentials(&self, image: &str) -> Vec<cri::AuthConfig> {
        let repository = repository(image);
        let mut found: Vec<(String, Login)> = Vec::new();
        for (idx, provider) in self.all.iter().enumerate() {
            if !provider.match_images.iter().any(|pattern| matches(pattern, &repository)) {
                continue;
            }
            match self.answer(idx, provider, &repository).await {
                Ok(answer) => {
                    let fitting = answer.iter().filter(|(pattern, _)| matches(pattern, &repository));
                    found.extend(fitting.map(|(pattern, login)| (pattern.clone(), login.clone())));
                }
                Err(why) => {
                    warn!(program = %provider.path.display(), image = %repository, why, "a credential provider gives no credentials")
                }
            }
        }
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        let auth =
            |login: Login| cri::AuthConfig { username: login.username, password: login.password, ..Default::default() };
        found.into_iter().map(|(_, login)| auth(login)).collect()
    }

    async fn answer(&self, idx: usize, provider: &Provider, repository: &str) -> Result<Answer, String> {
        let Some(turn) = self.turns.get(idx) else { return Err("it is gone".to_owned()) };
        let _turn = turn.lock().await;
        let registry = repository.split('/').next().unwrap_or_default();
        let keys = [repository, registry, ""].map(|key| (idx, key.to_owned()));
        let kept = {
            let (now, kept) = (Instant::now(), self.kept.lock());
            keys.iter()
                .find_map(|key| kept.get(key).filter(|(_, until)| *until > now).map(|(answer, _)| Arc::clone(answer)))
        };
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let response = ask(provider, repository).await?;
        let [image_key, registry_key, global_key] = keys;
        let key = match response.cache_key_type.as_str() {
            "Image" => image_key,
            "Registry" => registry_key,
            "Global" => global_key,
            other => return Err(format!("its cacheKeyType {other:?} is none of Image, Registry, Global")),
        };
        let life = match response.cache_duration.as_deref() {
            None => provider.cache_duration,
            Some(text) => {
                config::duration(text).ok_or_else(|| format!("its cacheDuration {text:?} is not a duration"))?
            }
        };
        let answer: Answer = Arc::new(response.auth.unwrap_or_default());
        if !life.is_zero() {
            let now = Instant::now();
            let mut kept = self.kept.lock();
            if kept.len() >= KEPT_MAX {
                kept.retain(|_, (_, until)| *until > now);
            }
            if kept.len() >= KEPT_MAX {
                kept.clear();
            }
            kept.insert(key, (Arc::clone(&answer), now + life));
        }
        Ok(answer)
    }
}

/// Runs a program and reads its answer. What it says is not repeated: it may hold credentials.
async fn ask(provider: &Provider, repository: &str) -> Result<Response, String> {
    let request = json!({"kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": repository})
        .to_string();
    let mut command = Command::new(&provider.path);
    command.args(&provider.args).envs(provider.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|err| format!("cannot run it: {err}"))?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err("it has no pipes".to_owned());
    };
    let talk = async {
        let write = async move {
            // A program that asks nothing of its input may be gone already; its answer counts.
            let _gone = stdin.write_all(request.as_bytes()).await;
        };
        let (mut out, mut said) = (Vec::new(), String::new());
        let (mut answers, mut complaints) = (stdout.take(ANSWER_BYTES_MAX), stderr.take(ANSWER_BYTES_MAX));
        let ((), read, _complaints) =
            tokio::join!(write, answers.read_to_end(&mut out), complaints.read_to_string(&mut said));
        read.map_err(|err| format!("cannot read its answer: {err}"))?;
        let status = child.wait().await.map_err(|err| format!("cannot wait for it: {err}"))?;
        if !status.success() {
            let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
            return Err(format!("it ended with {status}: {last}"));
        }
        Ok(out)
    };
    let late = |_| format!("it did not answer within {} s", LIMIT.as_secs());
    let out = tokio::time::timeout(LIMIT, talk).await.map_err(late)??;
    let value: Value = serde_json::from_slice(&out).map_err(|_| "its answer is not JSON".to_owned())?;
    let response: Response =
        client::typed::typed(&value).map_err(|_| "its answer lacks kind, apiVersion or cacheKeyType".to_owned())?;
    if response.kind != "CredentialProviderResponse" || response.api_version != provider.api_version {
        return Err(format!(
            "its answer is a {} of {}, not of {}",
            response.kind, response.api_version, provider.api_version
        ));
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that counts its calls in a file and answers with `answer`.
    fn providers(dir: &Path, answer: &str) -> Providers {
        let bin = dir.join("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let calls = dir.join("calls");
        let script = format!(
            "#!/bin/sh\ncat >>{calls}\necho >>{calls}\necho \"$1 $HELLO\" >&2\n{answer}\n",
            calls = calls.display()
        );
        // Written by another process: one that this process had open for writing at a fork of another test could not be
        // run.
        let path = bin.join("give");
        let written = std::process::Command::new("sh")
            .arg("-c")
            .arg("cat >\"$0\" && chmod 700 \"$0\"")
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn();
        let mut written = written.unwrap();
        std::io::Write::write_all(&mut written.stdin.take().unwrap(), script.as_bytes()).unwrap();
        assert!(written.wait().unwrap().success());
        let config = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\nproviders:\n- name: give\n  \
            apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: ['*.example.com']\n  defaultCacheDuration: 1h\n  args: [word]\n  \
            env: [{name: HELLO, value: hello}]\n";
        std::fs::write(dir.join("config.yaml"), config).unwrap();
        Providers::read(&dir.join("config.yaml"), &bin).unwrap()
    }

    fn calls(dir: &Path) -> usize {
        std::fs::read_to_string(dir.join("calls")).unwrap_or_default().lines().count()
    }

    fn says(cache: &str) -> String {
        let auth = r#"{"*.example.com":{"username":"u","password":"p"},"*.example.com/team":{"username":"t","password":"q"},"other.io":{"username":"x","password":"x"}}"#;
        format!(
            r#"echo '{{"kind":"CredentialProviderResponse","apiVersion":"credentialprovider.kubelet.k8s.io/v1","cacheKeyType":"{cache}","auth":{auth}}}'"#
        )
    }

    #[tokio::test]
    async fn a_program_is_asked_once_for_what_its_answer_is_good_for() {
        let dir = tempfile::tempdir().unwrap();
        let providers = providers(dir.path(), &says("Registry"));
        let names = |auths: Vec<cri::AuthConfig>| auths.into_iter().map(|auth| auth.username).collect::<Vec<_>>();
        assert_eq!(names(providers.credentials("r.example.com/team/a:1").await), ["t", "u"]);
        assert_eq!(names(providers.credentials("r.example.com/b").await), ["u"]);
        assert_eq!(calls(dir.path()), 1);
        providers.credentials("s.example.com/b").await;
        assert_eq!(calls(dir.path()), 2);
        assert!(providers.credentials("busybox").await.is_empty());
        assert_eq!(calls(dir.path()), 2);
        let asked = std::fs::read_to_string(dir.path().join("calls")).unwrap();
        let asked: Value = serde_json::from_str(asked.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&asked["kind"], &asked["image"]),
            (&json!("CredentialProviderRequest"), &json!("r.example.com/team/a"))
        );
    }

    #[tokio::test]
    async fn a_program_that_fails_is_passed_over_with_its_last_words() {
        let dir = tempfile::tempdir().unwrap();
        let providers = providers(dir.path(), "exit 3");
        assert!(providers.credentials("r.example.com/a").await.is_empty());
        let Err(why) = ask(&providers.all[0], "r.example.com/a").await else { panic!() };
        assert_eq!(why, "it ended with exit status: 3: word hello");
    }

    #[test]
    fn a_program_that_is_not_there_is_told_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        drop(providers(dir.path(), ""));
        let why = Providers::read(&dir.path().join("config.yaml"), Path::new("/no/such")).unwrap_err();
        assert!(why.contains("there is no program /no/such/give"), "{why}");
    }
}
