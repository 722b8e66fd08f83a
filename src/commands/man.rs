//! `kedge man DIR`: the manual's pages, for packages: `kedge(8)` and one for each command.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use base::files::{self, FileError};
use clap::{Arg, Command, CommandFactory as _};

use crate::commands::Cli;
use crate::process::version::VERSION;

/// Writes all pages into a folder, which is made if it is not there. Answers with how many they are.
pub(crate) fn write(folder: &Path) -> Result<usize, FileError> {
    std::fs::create_dir_all(folder).map_err(FileError::at("cannot create directory", folder))?;
    let all = pages();
    for (name, text) in &all {
        files::write_atomic(&folder.join(name), text.as_bytes(), 0o644)?;
    }
    Ok(all.len())
}

/// Names of files and their texts.
fn pages() -> Vec<(PathBuf, String)> {
    let mut cli = Cli::command();
    cli.build();
    let mut all = Vec::new();
    collect(&cli, "kedge", &mut all);
    all
}

fn collect(command: &Command, name: &str, all: &mut Vec<(PathBuf, String)>) {
    if command.is_hide_set() {
        return;
    }
    all.push((PathBuf::from(format!("{}.8", name.replace(' ', "-"))), page(command, name)));
    for sub in subcommands(command) {
        collect(sub, &format!("{name} {}", sub.get_name()), all);
    }
}

fn subcommands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
}

/// Text as roff takes it: a line that begins with a point or a quote is no request, and a dash is a dash.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    let lines = text.lines().map(|line| if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line.into() });
    lines.collect::<Vec<String>>().join("\n")
}

fn page(command: &Command, name: &str) -> String {
    let dashed = name.replace(' ', "-");
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut out = format!(
        ".TH {} 8 \"\" \"kedge {}\" \"Kedge\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B {}\n[options]",
        plain(&dashed.to_uppercase()),
        plain(VERSION),
        plain(&dashed),
        plain(about.trim().lines().next().unwrap_or_default()),
        plain(name)
    );
    let positionals = command.get_positionals().map(|arg| format!(" [{}]", arg.get_id().as_str().to_uppercase()));
    out.extend(positionals.map(|text| plain(&text)));
    if subcommands(command).next().is_some() {
        out.push_str(" command");
    }
    let _in_memory = write!(out, "\n.SH DESCRIPTION\n{}\n", plain(about.trim()));
    let options: String = command.get_arguments().filter_map(option).collect();
    if !options.is_empty() {
        let _in_memory = write!(out, ".SH OPTIONS\n{options}");
    }
    if subcommands(command).next().is_some() {
        out.push_str(".SH COMMANDS\n");
        for sub in subcommands(command) {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            let _in_memory = write!(out, ".TP\n.B {}\n{}\n", plain(sub.get_name()), plain(about.trim()));
        }
    }
    out.push_str(
        ".SH FILES\n.TP\n.I /etc/kedge/config.yaml\nFlags of kedge server and kedge agent, which are its keys.\n",
    );
    out
}

fn option(arg: &Arg) -> Option<String> {
    let long = arg.get_long().filter(|_| !arg.is_hide_set())?;
    let letter = arg.get_short().map(|short| format!("-{short}, ")).unwrap_or_default();
    let value = if arg.get_action().takes_values() {
        arg.get_value_names().unwrap_or_default().iter().map(|name| format!(" {name}")).collect()
    } else {
        String::new()
    };
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = match default.join(",") {
        default if default.is_empty() || !arg.get_action().takes_values() => String::new(),
        default => format!(" Default: {default}."),
    };
    Some(format!(
        ".TP\n.B {}\n{}\n",
        plain(&format!("{letter}--{long}{value}")),
        plain(&format!("{}{default}", help.trim()))
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_page_for_each_command_and_no_line_of_text_is_a_request() {
        let all = pages();
        let names: Vec<String> = all.iter().map(|(name, _)| name.display().to_string()).collect();
        for name in ["kedge.8", "kedge-server.8", "kedge-kubeconfig-create.8", "kedge-token-rotate.8"] {
            assert!(names.contains(&name.to_owned()), "{names:?}");
        }
        let requests = [".TH", ".SH", ".TP", ".B", ".I"];
        for (name, text) in &all {
            let odd = text
                .lines()
                .filter(|line| line.starts_with(['.', '\'']))
                .find(|line| !requests.iter().any(|request| line.split(' ').next() == Some(request)));
            assert_eq!(odd, None, "{}", name.display());
        }
        let (_, server) = all.iter().find(|(name, _)| name == Path::new("kedge-server.8")).unwrap();
        assert!(server.contains(".B \\-\\-cluster\\-cidr CIDR\n"), "{server}");
    }

    #[test]
    fn text_that_looks_like_a_request_is_text() {
        assert_eq!(plain(".so /etc/shadow\n'x\\fB -"), "\\&.so /etc/shadow\n\\&'x\\efB \\-");
    }
}
