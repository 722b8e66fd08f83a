//! `kedge why OBJECT`: on one screen what an object is waiting for, and what to do about it.
//!
//! `look` asks the API, `reasons` judges what it said, purely.

mod look;
mod nodes;
mod reasons;

use clap::Args;

use self::look::Asked;
use self::reasons::Finding;
use crate::commands::admin::AdminError;
use crate::flags::shared::AdminArgs;
use crate::process::life::{self, LifeError};

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

/// Why `kedge why` does not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WhyError {
    #[error("want KIND/NAME or KIND NAME, such as pod/web-0")]
    Object,
    #[error("{kind}/{name} waits")]
    Waits { kind: String, name: String },
    #[error("the server has no kind of object named '{0}'")]
    Kind(String),
    #[error("{0}")]
    Refused(String),
    #[error(transparent)]
    Api(kube::Error),
    #[error("an object of the server cannot be read")]
    Unreadable(#[from] serde_json::Error),
    #[error(transparent)]
    Admin(#[from] AdminError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

impl From<kube::Error> for WhyError {
    /// A refusal speaks for itself: its code and reason tell people nothing more.
    fn from(err: kube::Error) -> WhyError {
        match err {
            kube::Error::Api(status) => WhyError::Refused(status.message),
            err => WhyError::Api(err),
        }
    }
}

/// Looks and prints; fails if the object waits for something, so that scripts can ask.
pub(crate) fn main(args: &WhyArgs) -> Result<(), WhyError> {
    let wrong = || WhyError::Object;
    let (kind, name) = match args.object.as_slice() {
        [both] => both.split_once('/').ok_or_else(wrong)?,
        [kind, name] => (kind.as_str(), name.as_str()),
        _ => return Err(wrong()),
    };
    let asked = Asked { kind, name, namespace: &args.namespace };
    let findings = life::ask(look::findings(&args.admin.kubeconfig, asked))??;
    print!("{}", to_text(&format!("{kind}/{name}"), &findings));
    if findings.is_empty() { Ok(()) } else { Err(WhyError::Waits { kind: kind.to_owned(), name: name.to_owned() }) }
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
