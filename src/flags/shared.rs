//! Flags that several commands share: the data folder, the administrator's kubeconfig.

use std::path::PathBuf;

use base::layout::{self, Layout};
use clap::Args;

use crate::flags::value::ValueError;

/// Where the state of this machine is: of every command that looks at it.
#[derive(Clone, Debug, Args)]
pub(crate) struct StateArgs {
    /// Folder that holds state.
    #[arg(
        id = "data_dir", short = 'd', long = "data-dir", global = true, default_value = layout::DEFAULT,
        value_name = "DIR", value_parser = parse_folder
    )]
    pub(crate) layout: Layout,
}

/// A folder by its absolute path: programs that are started elsewhere are told of it, and the kernel's table of mounts
/// names no other.
fn parse_folder(text: &str) -> Result<Layout, ValueError> {
    let path = std::path::absolute(text)?;
    if path.components().any(|part| part == std::path::Component::ParentDir) {
        return Err(ValueError::ParentFolder);
    }
    // Spelt in one way: with no `.` and no slash at its end.
    Ok(Layout::new(path.components().collect::<PathBuf>()))
}

/// Credentials of every command that asks the API.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminArgs {
    /// Kubeconfig of an administrator.
    #[arg(long, global = true, value_name = "FILE", default_value = layout::KUBECONFIG)]
    pub(crate) kubeconfig: PathBuf,
}
