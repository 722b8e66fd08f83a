//! The life of a process: its log, its start and end, the folder that it works in.

pub(crate) mod http1;
pub(crate) mod life;
pub(crate) mod logging;
pub(crate) mod version;
pub(crate) mod work_dir;
