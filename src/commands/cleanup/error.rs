//! Why a machine is not clean: the command cannot work at all, or a step failed.

use std::io;
use std::path::PathBuf;

use kubelet::runtime::attachments::EndError;
use kubelet::runtime::cri::CriError;
use nix::errno::Errno;

/// Why a cleanup did not begin, or did not do all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CleanupError {
    #[error("kedge killall and uninstall must run as root: run them with sudo")]
    NotRoot,
    #[error("cannot look at the machine's {what}")]
    Look { what: &'static str, source: io::Error },
    #[error("cannot start the async runtime")]
    Runtime(#[source] io::Error),
    #[error(
        "{} is no folder of kedge's: nothing was done. Name the data folder of this machine's kedge with --data-dir",
        path.display()
    )]
    NotOurs { path: PathBuf },
    #[error("{n} steps failed; the lines above say which and why")]
    Steps { n: usize },
}

/// Why one step failed. It is printed below the step with its causes; the next step is done all the same.
#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    File(#[from] io::Error),
    #[error(transparent)]
    System(#[from] Errno),
    #[error(transparent)]
    Sandbox(#[from] CriError),
    #[error(transparent)]
    Network(#[from] EndError),
    #[error(transparent)]
    Machine(#[from] network::NetworkError),
    /// A program of the machine does not run, or not to its end.
    #[error("{name}")]
    NotRun { name: String, source: io::Error },
    /// A program refused with these words.
    #[error("{said}")]
    Program { said: String },
    #[error("it does not end")]
    StillRuns,
    #[error("{}", path.display())]
    ControlGroup { path: PathBuf, source: io::Error },
    /// Some of a tree is still there, each path with the reason.
    #[error("{}", listed(.0))]
    Left(Vec<(PathBuf, String)>),
}

fn listed(left: &[(PathBuf, String)]) -> String {
    left.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    #[test]
    fn a_failed_step_names_the_program_or_the_paths_that_stay() {
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let left = vec![("/a".into(), "it is a mount".to_owned()), ("/b/c".into(), "it is busy".to_owned())];
        for (err, text) in [
            (StepError::NotRun { name: "ip".to_owned(), source: denied() }, "ip: permission denied"),
            (StepError::ControlGroup { path: "/cgroup/x".into(), source: denied() }, "/cgroup/x: permission denied"),
            (StepError::Left(left), "/a: it is a mount; /b/c: it is busy"),
            (StepError::System(Errno::EBUSY), "EBUSY: Device or resource busy"),
        ] {
            assert_eq!(Chain(&err).to_string(), text);
        }
    }
}
