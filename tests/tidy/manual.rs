//! The manual's commands are run: a block of a page below docs/ is one that `tests/node/manual.rs` runs, or names the
//! test that does the same elsewhere.

use super::{files_below, none, read, root};

/// The runner, whose list of pages is read here.
const RUNNER: &str = "tests/node/manual.rs";

#[test]
fn every_command_of_the_manual_is_run_by_a_test() {
    let runner = read(RUNNER);
    let listed = runner.split("const PAGES").nth(1).and_then(|rest| rest.split("];").next()).unwrap_or_default();
    let listed: Vec<&str> = listed.split('"').skip(1).step_by(2).collect();
    assert!(!listed.is_empty(), "{RUNNER} lists no page");
    let mut found: Vec<String> = listed
        .iter()
        .filter(|page| !root().join(format!("docs/{page}.md")).exists())
        .map(|page| format!("{RUNNER}: docs/{page}.md is not there"))
        .collect();
    let pages = files_below("docs").into_iter().filter(|path| path.ends_with(".md"));
    for path in pages.filter(|path| !path.starts_with("docs/recipes/")) {
        let runs = listed.iter().any(|page| path == format!("docs/{page}.md"));
        for (at, line) in read(&path).lines().enumerate().filter(|(_, line)| line.starts_with("```sh")) {
            let held = line.strip_prefix("```sh held=");
            let fine = match held {
                Some(test) => root().join(test).exists(),
                None => line == "```sh" && runs,
            };
            found.extend((!fine).then(|| format!("{path}:{}: {line}", at + 1)));
        }
    }
    none(
        "commands of the manual that no test runs: list the page in tests/node/manual.rs, or say sh held=TEST",
        &found,
    );
}
