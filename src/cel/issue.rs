//! Issues of an expression, in the form in which cel-go prints them.

/// Issues of one expression that are shown, as cel-go's default.
const ISSUES_MAX: usize = 100;

/// One thing that is wrong with a text, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issue {
    /// Place, in characters.
    pub at: usize,
    /// In cel-go's words.
    pub text: String,
}

/// Issues as cel-go prints them, by their places.
pub(super) fn show_all(issues: &[Issue], text: &str) -> String {
    let mut issues: Vec<&Issue> = issues.iter().collect();
    issues.sort_by_key(|issue| issue.at);
    let mut lines: Vec<String> = issues.iter().take(ISSUES_MAX).map(|issue| show(issue, text)).collect();
    if issues.len() > ISSUES_MAX {
        lines.push(format!("{} more errors were truncated", issues.len() - ISSUES_MAX));
    }
    lines.join("\n")
}

/// The place where a message stands, as cel-go prints an issue.
fn show(issue: &Issue, text: &str) -> String {
    let before: String = text.chars().take(issue.at).collect();
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let shown = text.lines().nth(line).unwrap_or_default();
    format!("ERROR: <input>:{}:{}: {}\n | {shown}\n | {}^", line + 1, column + 1, issue.text, ".".repeat(column))
}
