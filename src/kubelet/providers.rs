//! Credentials from programs of the operator (upstream's kubelet credential provider API, version 1), as cloud
//! registries need them.
//!
//! [`config`] says which program is asked for which images; here they are asked, and their answers kept for as long as
//! they are good.

pub mod config;

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Debug};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::sync::Mutex;
use k8s_cri::v1 as cri;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;
use tokio::time::Instant;
use tracing::warn;

use self::config::{Pattern, Provider, ProviderConfigError, repository};

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

/// The scope of an answer: the program's number and the image, the registry, or nothing.
type CacheKey = (usize, String);

/// All programs, and their answers.
pub struct Providers {
    all: Vec<Provider>,
    kept: Mutex<HashMap<CacheKey, (Answer, Instant)>>,
    /// One question to a program at a time: others wait and find its answer kept.
    turns: Vec<tokio::sync::Mutex<()>>,
}

/// A file, or a program that it names, that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}", path = path.display())]
pub struct ReadError {
    path: PathBuf,
    source: FileFault,
}

#[derive(Debug, thiserror::Error)]
enum FileFault {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Parse(#[from] ProviderConfigError),
    #[error("provider {program} is there twice", program = program.display())]
    Twice { program: PathBuf },
    #[error("there is no program {program}", program = program.display())]
    NoProgram { program: PathBuf },
}

/// A program that gives no credentials.
#[derive(Debug, thiserror::Error)]
enum AskError {
    #[error("it is gone")]
    Gone,
    #[error("cannot run it")]
    Spawn(#[source] io::Error),
    #[error("it has no pipes")]
    NoPipes,
    #[error("cannot read its answer")]
    Read(#[source] io::Error),
    #[error("cannot wait for it")]
    Wait(#[source] io::Error),
    #[error("it ended with {status}: {last_words}")]
    Failed { status: ExitStatus, last_words: String },
    #[error("it did not answer within {} s", LIMIT.as_secs())]
    Late,
    #[error("its answer is not JSON")]
    NoJson,
    #[error("its answer lacks kind, apiVersion or cacheKeyType")]
    Incomplete,
    #[error("its answer is a {kind} of {api_version}, not of {wanted}")]
    OtherKind { kind: String, api_version: String, wanted: String },
    #[error("its cacheKeyType {name:?} is none of Image, Registry, Global")]
    CacheKeyType { name: String },
    #[error("its cacheDuration {text:?} is not a duration")]
    CacheDuration { text: String },
}

impl Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Providers({} programs)", self.all.len())
    }
}

impl Providers {
    /// Reads the file, or the files of a folder in order of their names.
    ///
    /// Errors: which file or program is wrong.
    pub fn read(path: &Path, bin_dir: &Path) -> Result<Providers, ReadError> {
        let mut all: Vec<Provider> = Vec::new();
        for file in files(path).map_err(|err| ReadError { path: path.to_owned(), source: err.into() })? {
            let added = add(&mut all, &file, bin_dir);
            added.map_err(|source| ReadError { path: file, source })?;
        }
        let turns = all.iter().map(|_| tokio::sync::Mutex::default()).collect();
        Ok(Providers { all, kept: Mutex::default(), turns })
    }

    /// Credentials for an image, the most exact first. A program that fails is passed over, and told of in the log.
    pub(crate) async fn credentials(&self, image: &str) -> Vec<cri::AuthConfig> {
        let repository = repository(image);
        let mut found: Vec<(String, Login)> = Vec::new();
        for (idx, provider) in self.all.iter().enumerate() {
            if !provider.match_images.iter().any(|pattern| Pattern(pattern).matches(&repository)) {
                continue;
            }
            match self.answer(idx, provider, &repository).await {
                Ok(answer) => {
                    let fitting = answer.iter().filter(|(pattern, _)| Pattern(pattern).matches(&repository));
                    found.extend(fitting.map(|(pattern, login)| (pattern.clone(), login.clone())));
                }
                Err(err) => {
                    let (program, err) = (provider.path.display(), Chain(&err));
                    warn!(%program, image = %repository, %err, "a credential provider gives no credentials");
                }
            }
        }
        found.sort_by(|(a, _), (b, _)| b.cmp(a));
        let auth =
            |login: Login| cri::AuthConfig { username: login.username, password: login.password, ..Default::default() };
        found.into_iter().map(|(_, login)| auth(login)).collect()
    }

    async fn answer(&self, idx: usize, provider: &Provider, repository: &str) -> Result<Answer, AskError> {
        let turn = self.turns.get(idx).ok_or(AskError::Gone)?;
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
            other => return Err(AskError::CacheKeyType { name: other.to_owned() }),
        };
        let life = match response.cache_duration.as_deref() {
            None => provider.cache_duration,
            Some(text) => config::duration(text).ok_or_else(|| AskError::CacheDuration { text: text.to_owned() })?,
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

/// The file, or those of a folder in order of their names.
fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
    files.retain(|file| file.extension().is_some_and(|ext| ext == "yaml" || ext == "yml" || ext == "json"));
    files.sort();
    Ok(files)
}

/// Adds the programs of one file to those of others.
fn add(all: &mut Vec<Provider>, file: &Path, bin_dir: &Path) -> Result<(), FileFault> {
    for provider in config::parse(&std::fs::read_to_string(file)?, bin_dir)? {
        if all.iter().any(|other| other.path == provider.path) {
            return Err(FileFault::Twice { program: provider.path });
        }
        let runs = provider.path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0);
        if !runs {
            return Err(FileFault::NoProgram { program: provider.path });
        }
        all.push(provider);
    }
    Ok(())
}

/// Runs a program and reads its answer. What it says is not repeated: it may hold credentials.
async fn ask(provider: &Provider, repository: &str) -> Result<Response, AskError> {
    let request = json!({"kind": "CredentialProviderRequest", "apiVersion": provider.api_version, "image": repository})
        .to_string();
    let mut command = Command::new(&provider.path);
    command.args(&provider.args).envs(provider.env.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(AskError::Spawn)?;
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let (Some(mut stdin), Some(stdout), Some(stderr)) = (stdin, stdout, stderr) else {
        return Err(AskError::NoPipes);
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
        read.map_err(AskError::Read)?;
        let status = child.wait().await.map_err(AskError::Wait)?;
        if !status.success() {
            let last = said.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
            return Err(AskError::Failed { status, last_words: last.to_owned() });
        }
        Ok(out)
    };
    let out = tokio::time::timeout(LIMIT, talk).await.map_err(|_| AskError::Late)??;
    judged(&out, &provider.api_version)
}

/// Reads an answer that must be of one version.
fn judged(answer: &[u8], api_version: &str) -> Result<Response, AskError> {
    // The parser's words are not repeated, either.
    let value: Value = serde_json::from_slice(answer).map_err(|_| AskError::NoJson)?;
    let response: Response = client::typed::typed(&value).map_err(|_| AskError::Incomplete)?;
    if response.kind != "CredentialProviderResponse" || response.api_version != api_version {
        let (kind, wanted) = (response.kind, api_version.to_owned());
        return Err(AskError::OtherKind { kind, api_version: response.api_version, wanted });
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
        let config = "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n\
            providers:\n- name: give\n  \
            apiVersion: credentialprovider.kubelet.k8s.io/v1\n  matchImages: ['*.example.com']\n  \
            defaultCacheDuration: 1h\n  args: [word]\n  env: [{name: HELLO, value: hello}]\n";
        std::fs::write(dir.join("config.yaml"), config).unwrap();
        Providers::read(&dir.join("config.yaml"), &bin).unwrap()
    }

    fn calls(dir: &Path) -> usize {
        std::fs::read_to_string(dir.join("calls")).unwrap_or_default().lines().count()
    }

    fn says(cache: &str) -> String {
        let auth = json!({"*.example.com": {"username": "u", "password": "p"},
            "*.example.com/team": {"username": "t", "password": "q"}, "other.io": {"username": "x", "password": "x"}});
        let answer = json!({"kind": "CredentialProviderResponse", "auth": auth, "cacheKeyType": cache,
            "apiVersion": "credentialprovider.kubelet.k8s.io/v1"});
        format!("echo '{answer}'")
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
        assert_eq!(why.to_string(), "it ended with exit status: 3: word hello");
    }

    #[test]
    fn a_program_that_is_not_there_is_told_at_the_start() {
        let dir = tempfile::tempdir().unwrap();
        drop(providers(dir.path(), ""));
        let config = dir.path().join("config.yaml");
        let err = Providers::read(&config, Path::new("/no/such")).unwrap_err();
        let text = format!("{}: there is no program /no/such/give", config.display());
        assert_eq!(Chain(&err).to_string(), text);
    }

    #[test]
    fn the_files_of_a_folder_are_read_in_order_and_name_no_program_twice() {
        let dir = tempfile::tempdir().unwrap();
        drop(providers(dir.path(), ""));
        let (config, folder) = (dir.path().join("config.yaml"), dir.path().join("folder"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::copy(&config, folder.join("a.yaml")).unwrap();
        std::fs::write(folder.join("notes.txt"), "no file of ours").unwrap();
        assert_eq!(Providers::read(&folder, &dir.path().join("bin")).unwrap().all.len(), 1);
        std::fs::copy(&config, folder.join("b.json")).unwrap();
        let err = Providers::read(&folder, &dir.path().join("bin")).unwrap_err();
        let program = dir.path().join("bin/give");
        let text = format!("{}: provider {} is there twice", folder.join("b.json").display(), program.display());
        assert_eq!(Chain(&err).to_string(), text);
        let missing = Providers::read(&dir.path().join("none"), dir.path()).unwrap_err();
        let text = format!("{}: No such file or directory (os error 2)", dir.path().join("none").display());
        assert_eq!(Chain(&missing).to_string(), text);
    }

    #[test]
    fn an_answer_that_is_none_is_told_without_its_words() {
        let why = |answer: &str| judged(answer.as_bytes(), "v1").map(drop).unwrap_err().to_string();
        assert_eq!(why("secret"), "its answer is not JSON");
        assert_eq!(why("{\"kind\": \"secret\"}"), "its answer lacks kind, apiVersion or cacheKeyType");
        let other = json!({"kind": "CredentialProviderResponse", "apiVersion": "v2", "cacheKeyType": "Image"});
        assert_eq!(why(&other.to_string()), "its answer is a CredentialProviderResponse of v2, not of v1");
    }

    #[tokio::test]
    async fn an_answer_of_no_known_scope_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let asked = providers(dir.path(), &says("Planet"));
        let why = asked.answer(0, &asked.all[0], "r.example.com/a").await.map(drop).unwrap_err();
        assert_eq!(why.to_string(), "its cacheKeyType \"Planet\" is none of Image, Registry, Global");
        let why = asked.answer(1, &asked.all[0], "r.example.com/a").await.map(drop).unwrap_err();
        assert_eq!(why.to_string(), "it is gone");
    }
}
