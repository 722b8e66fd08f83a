//! Tests that say that they were skipped: a test that passes is silent, so one that needs what the machine lacks would
//! look like one that ran. `make test` prints what was said here at its end.

use std::io::Write as _;

/// The variable that names the file in which skips are gathered.
pub const FILE: &str = "KEDGE_SKIPS";

/// Says that something was not tried, and why: on standard output, and in the file that [`FILE`] names.
pub fn say(why: &str) {
    println!("skipped: {why}");
    let Some(path) = std::env::var_os(FILE) else { return };
    let thread = std::thread::current();
    let line = format!("{}: {why}\n", thread.name().unwrap_or("a test"));
    // One write each: tests of many processes say it into one file.
    let said = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(err) = said {
        println!("skipped, and it cannot be written down: {err}");
    }
}
