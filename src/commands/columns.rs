//! Tables for people: columns as wide as their widest cell.

/// Rows as columns, two spaces between them.
pub(crate) fn columns<const N: usize>(rows: impl IntoIterator<Item = [String; N]>) -> String {
    let rows: Vec<[String; N]> = rows.into_iter().collect();
    let width = |idx: usize| rows.iter().map(|row| row[idx].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        let line: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        out += line.trim_end();
        out.push('\n');
    }
    out
}
