//! The pages `docs/flags.md` and `docs/refused-flags.md`: made of the program's own tables, and held to them by a test.
//! `UPDATE_EXPECT=1 cargo test pages_` writes them anew.

use std::fmt::Write as _;
use std::path::PathBuf;

use base::flags::{Fate, Known};
use clap::{Arg, Command, CommandFactory as _};

use crate::commands::Cli;
use crate::flags::refused;

const PROGRAMS: [(&str, &str, &[Known]); 4] = [
    ("kube-apiserver", "--kube-apiserver-arg", apiserver::arguments::table::TABLE),
    ("kube-controller-manager", "--kube-controller-manager-arg", controllers::settings::table::TABLE),
    ("kube-scheduler", "--kube-scheduler-arg", scheduler::settings::table::TABLE),
    ("kube-proxy", "--kube-proxy-arg", network::settings::table::TABLE),
];

/// A text as a cell of a table: on one line, and no end of the cell in it.
fn cell(text: &str) -> String {
    text.replace('\n', " ").replace('|', "\\|").replace('<', "&lt;")
}

fn row(arg: &Arg) -> Option<String> {
    let long = arg.get_long().filter(|long| *long != "help" && *long != "version" && !arg.is_hide_set())?;
    let letter = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let takes = arg.get_action().takes_values();
    let names = arg.get_value_names().unwrap_or_default();
    let value = if takes { names.iter().map(|name| format!(" {name}")).collect() } else { String::new() };
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = if takes { default.join(",") } else { String::new() };
    let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let choices: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    let choices = if takes && choices.len() > 1 { format!(" One of {}.", choices.join(", ")) } else { String::new() };
    Some(format!("| `{letter}--{long}{value}` | {} | {}{choices} |\n", cell(&default), cell(help.trim())))
}

/// The flags of a command that is not hidden, and of those below it.
fn command(page: &mut String, command: &Command, name: &str) {
    if command.is_hide_set() {
        return;
    }
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let rows: String = command.get_arguments().filter_map(row).collect();
    // A sentence a line, as prose has it.
    let about = about.trim().replace(". ", ".\n").replace(": ", ":\n");
    let _in_memory = writeln!(page, "## {name}\n\n{about}\n");
    if !rows.is_empty() {
        page.push_str("| flag | default | meaning |\n|---|---|---|\n");
        page.push_str(&rows);
        page.push('\n');
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        self::command(page, sub, &format!("{name} {}", sub.get_name()));
    }
}

fn fates(page: &mut String, table: &[Known], wanted: impl Fn(&Fate) -> Option<String>) {
    for known in table {
        if let Some(text) = wanted(&known.fate) {
            let _in_memory = writeln!(page, "| `{}` | {} |", known.name, cell(&text));
        }
    }
    page.push('\n');
}

fn flags_page() -> String {
    let mut page = "\
# Flags

Made from the program by a test; do not edit. Each flag of `kedge server` and `kedge agent` is a key of
`/etc/kedge/config.yaml`, too, and `KEDGE_` with its name in upper case is its variable. What is refused, and why, is in
[refused-flags.md](refused-flags.md).

"
    .to_owned();
    let mut cli = Cli::command();
    cli.build();
    for sub in cli.get_subcommands().filter(|sub| sub.get_name() != "help") {
        command(&mut page, sub, &format!("kedge {}", sub.get_name()));
    }
    for (program, flag, table) in PROGRAMS {
        let _in_memory = writeln!(page, "## `{flag}`: flags of {program} v1.36 that are taken\n");
        page.push_str("| flag | what becomes of it |\n|---|---|\n");
        fates(&mut page, table, |fate| match fate {
            Fate::Acts => Some("acts".to_owned()),
            Fate::Holds { values, why } => {
                let values: Vec<String> = values.iter().map(|value| format!("`{value}`")).collect();
                Some(format!("only {}, which is so: {why}", values.join(" or ")))
            }
            Fate::Moot { why, .. } => Some(format!("taken with a line in the log, and has nothing to tune: {why}")),
            Fate::Refused(_) => None,
        });
    }
    page
}

fn refused_page() -> String {
    let mut page = "\
# Refused flags

Made from the program by a test; do not edit. Kedge takes no flag that it would ignore: these are refused by name, on
the command line, in the environment and in files.

## Flags of k3s

| flag | why, and what to do instead |
|---|---|
"
    .to_owned();
    for (name, why) in refused::all() {
        let _in_memory = writeln!(page, "| `--{name}` | {} |", cell(why));
    }
    page.push('\n');
    for (program, flag, table) in PROGRAMS {
        let _in_memory = writeln!(page, "## `{flag}`: flags of {program} v1.36\n");
        page.push_str("| flag | why |\n|---|---|\n");
        fates(&mut page, table, |fate| match fate {
            Fate::Refused(why) => Some((*why).to_owned()),
            Fate::Holds { values, why } => Some(format!("with another value than {}: {why}", values.join(" or "))),
            _ => None,
        });
    }
    page
}

/// The page as it is on the disk must be the one that the program makes.
fn check(name: &str, page: String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    let page = format!("{}\n", page.trim_end());
    if crate::flags::environment::environment("UPDATE_EXPECT").is_some() {
        base::files::write_atomic(&path, page.as_bytes(), 0o644).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let line = found.lines().zip(page.lines()).position(|(found, made)| found != made).map(|idx| idx + 1);
    assert!(
        found == page,
        "docs/{name} is not what the program says (line {line:?}): UPDATE_EXPECT=1 cargo test pages_"
    );
}

#[test]
fn pages_of_flags_are_what_the_program_says() {
    check("flags.md", flags_page());
}

#[test]
fn pages_of_refused_flags_are_what_the_program_says() {
    check("refused-flags.md", refused_page());
}
