//! The page of the documentation that lists all settings, made of the table.

use std::fmt::Write as _;
use std::path::Path;

use super::row::{Row, Stand};
use super::table;

/// Words before the list.
const HEAD: &str = include_str!("page.md");

fn line(row: &Row) -> String {
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    let stand = match &row.stand {
        Stand::Done(_) => "done".to_owned(),
        Stand::Any { because } => format!("accepted, any value: {because}"),
        Stand::Fixed { also, because } => {
            let words: Vec<String> = [row.default].iter().chain(*also).map(|word| format!("`{word}`")).collect();
            format!("{} only: {because}", words.join(" or "))
        }
        Stand::Refused { because } => format!("refused: {because}"),
    };
    format!("| {} | {} | {} | {stand} |\n", code(row.field), code(row.flag), code(row.default))
}

fn page() -> String {
    let mut text = HEAD.to_owned();
    let is_field = |row: &&Row| !row.field.is_empty();
    let mut fields: Vec<&Row> = table::all().filter(is_field).collect();
    fields.sort_by_key(|row| row.field.to_lowercase());
    let mut flags: Vec<&Row> = table::all().filter(|row| !is_field(row)).collect();
    flags.sort_by_key(|row| row.flag);
    for (title, rows) in [("Fields of KubeletConfiguration", fields), ("Flags without a field", flags)] {
        let _infallible = write!(text, "\n## {title}\n\n| field | flag | default | here |\n|---|---|---|---|\n");
        text.extend(rows.into_iter().map(line));
    }
    text
}

#[test]
fn the_page_of_settings_is_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings-kubelet.md");
    let made = std::env::temp_dir().join("settings-kubelet.md");
    if std::fs::read_to_string(&path).unwrap_or_default() != page() {
        std::fs::write(&made, page()).unwrap();
        panic!("docs/settings-kubelet.md is not the table: copy {} over it", made.display());
    }
}
