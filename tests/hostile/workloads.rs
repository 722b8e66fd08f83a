//! Workloads whose objects make the controllers or the scheduler do harm.
