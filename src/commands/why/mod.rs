//! `kedge why OBJECT`: on one screen what an object is waiting for, and what to do about it.
//!
//! `look` asks the API, `reasons` judges what it said, purely.

mod look;
mod nodes;
mod reasons;

use clap::Args;

use self::reasons::Finding;
use crate::flags::shared::AdminArgs;

/// Flags of `kedge why`.
#[derive(Clone, Debug, Args)]
pub(crate) struct WhyArgs {
    /// KIND/NAME or KIND NAME, as kubectl takes them: pod/web-0, deploy web, pvc data-db-0, svc web, ns old.
    #[arg(required = true, num_args = 1..=2, value_name = "KIND/NAME")]
    object: Vec<String>,
    /// Its namespace.
    #[arg(short, long, default_value = "default", value_name = "NAME")]
    namespace: String,
    #[command(flatten)]
    admin: AdminArgs,
}

/// Looks and prints; fails if the object waits for something, so that scripts can ask.
pub(crate) fn main(args: &WhyArgs) -> Result<(), String> {
    let wrong = || "want KIND/NAME or KIND NAME, such as pod/web-0".to_owned();
    let (kind, name) = match args.object.as_slice() {
        [both] => both.split_once('/').ok_or_else(wrong)?,
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => return Err(wrong()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|err| err.to_string())?;
    let findings = runtime.block_on(look::findings(&args.admin.kubeconfig, kind, name, &args.namespace))?;
    print!("{}", to_text(&format!("{kind}/{name}"), &findings));
    if findings.is_empty() { Ok(()) } else { Err(format!("{kind}/{name} waits")) }
}

fn to_text(object: &str, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return format!("{object} waits for nothing.\n");
    }
    let mut out = String::new();
    for Finding { about, what, remedy } in findings {
        out += &format!("{about}\n  why  {}\n", what.trim().replace('\n', "\n       "));
        if !remedy.is_empty() {
            out += &format!("  do   {remedy}\n");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_finding_says_about_what_why_and_what_to_do() {
        let one = Finding { about: "pod web".to_owned(), what: "it\nfails".to_owned(), remedy: "mend it".to_owned() };
        assert_eq!(to_text("pod/web", &[one]), "pod web\n  why  it\n       fails\n  do   mend it\n");
        assert_eq!(to_text("pod/web", &[]), "pod/web waits for nothing.\n");
    }
}
