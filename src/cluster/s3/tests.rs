//! Against a small S3 that checks signatures: put, list, get, delete, parts, failures.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use base::files::FileError;
use base::rng::Rng;
use base::secret::Secret;
use base::task::Group;
use base::time::Clock;

use super::bucket::{Bucket, S3Error};
use super::fake::{FakeS3, SECRET};
use super::settings::settings;

fn bucket(fake: &FakeS3, more: &[(&str, &str)]) -> Bucket {
    let (group, _reports) = Group::root("test");
    let base = [
        ("endpoint", fake.address.as_str()),
        ("insecure", "true"),
        ("bucket", "b"),
        ("access-key", "A"),
        ("secret-key", SECRET),
    ];
    let values = base.iter().chain(more).map(|(name, value)| ((*name).to_owned(), Secret::new((*value).to_owned())));
    let no_files = |path: &Path| Err(FileError::at("cannot read", path)(io::ErrorKind::NotFound.into()));
    let settings = settings(&values.collect::<BTreeMap<_, _>>(), &no_files).unwrap();
    Bucket::new(settings, Clock::system(), Rng::from_os(), &group).unwrap()
}

fn file(dir: &Path, content: &[u8]) -> std::path::PathBuf {
    let path = dir.join("archive");
    std::fs::write(&path, content).unwrap();
    path
}

#[tokio::test]
async fn what_is_put_is_listed_over_pages_got_and_deleted() {
    let (fake, dir) = (FakeS3::start(), tempfile::tempdir().unwrap());
    let bucket = bucket(&fake, &[("folder", "a b"), ("session-token", "lent")]);
    let content = vec![7; 300_000];
    for name in ["s-1", "s-2", "s-3"] {
        bucket.put(name, &file(dir.path(), &content)).await.unwrap();
    }
    fake.kept.lock().objects.insert("other/x".to_owned(), Vec::new());
    assert_eq!(fake.kept.lock().log[0], "PUT /b/a%20b/s-1");
    // The small S3 lists keys as they were sent.
    let kept: Vec<_> = fake.kept.lock().objects.keys().cloned().collect();
    assert_eq!(kept, ["a%20b/s-1", "a%20b/s-2", "a%20b/s-3", "other/x"]);
    let to = dir.path().join("got");
    assert_eq!(bucket.get("s-2", &to).await.unwrap(), 300_000);
    assert!(std::fs::read(&to).unwrap() == content);
    assert_eq!(std::fs::metadata(&to).unwrap().permissions().mode() & 0o777, 0o600);
    bucket.delete("s-1").await.unwrap();
    assert!(bucket.get("s-1", &dir.path().join("none")).await.unwrap_err().is_not_found());
}

#[tokio::test]
async fn a_long_list_is_read_to_its_end_and_holds_the_folder_alone() {
    let fake = FakeS3::start();
    for key in ["f/1", "f/2", "f/3", "f/4", "f/5", "g/6"] {
        fake.kept.lock().objects.insert(key.to_owned(), vec![0; 3]);
    }
    let names: Vec<_> = bucket(&fake, &[("folder", "f")])
        .list()
        .await
        .unwrap()
        .into_iter()
        .map(|entry| (entry.key, entry.size))
        .collect();
    assert_eq!(names, ["1", "2", "3", "4", "5"].map(|name| (name.to_owned(), 3)));
}

#[tokio::test]
async fn a_large_file_goes_in_parts_and_parts_of_a_failure_are_taken_back() {
    let (fake, dir) = (FakeS3::start(), tempfile::tempdir().unwrap());
    let content: Vec<u8> = (0..2500_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    bucket(&fake, &[]).in_parts_of(1000).put("big", &file(dir.path(), &content)).await.unwrap();
    assert!(fake.kept.lock().objects["big"] == content);
    let log = fake.kept.lock().log.clone();
    assert_eq!(log[3], "PUT /b/big?partNumber=3&uploadId=up%2F1");
    let wrong = bucket(&fake, &[("secret-key", "wrong")]).in_parts_of(1000);
    let Err(S3Error::Refused { status: 403, code, .. }) = wrong.put("big", &file(dir.path(), &content)).await else {
        panic!()
    };
    assert_eq!(code, "SignatureDoesNotMatch");
    // The upload begins, its first part is refused.
    fake.kept.lock().log.clear();
    fake.kept.lock().failures = vec![0, 400];
    assert!(bucket(&fake, &[]).in_parts_of(1000).put("other", &file(dir.path(), &content)).await.is_err());
    let log = fake.kept.lock().log.clone();
    assert_eq!(log[1..], ["PUT /b/other?partNumber=1&uploadId=up%2F1", "DELETE /b/other?uploadId=up%2F1"]);
}

#[tokio::test]
async fn a_passing_failure_is_tried_again_and_a_refusal_is_told_at_once() {
    let (fake, dir) = (FakeS3::start(), tempfile::tempdir().unwrap());
    let archive = file(dir.path(), b"x");
    fake.kept.lock().failures = vec![503, 500];
    bucket(&fake, &[]).put("s", &archive).await.unwrap();
    assert_eq!(fake.kept.lock().log.len(), 3);
    let err = bucket(&fake, &[("secret-key", "wrong")]).put("s", &archive).await.unwrap_err();
    let text = err.to_string();
    assert!(
        text.ends_with("refused to take s3://b/s: 403 SignatureDoesNotMatch: Because.") && !text.contains("wrong"),
        "{text}"
    );
    assert_eq!(fake.kept.lock().log.len(), 4);
}

#[tokio::test]
async fn a_plain_proxy_is_told_the_whole_address() {
    let fake = FakeS3::start();
    let proxy = format!("http://u:p@{}", fake.address);
    let through = bucket(&fake, &[("endpoint", "s3.example.com"), ("proxy", &proxy)]);
    // The small S3 is no proxy: what it was sent is what counts.
    assert!(through.list().await.is_err());
    assert_eq!(fake.kept.lock().log[0], "GET http://s3.example.com/b/?list-type=2&prefix=");
}
