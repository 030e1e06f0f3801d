//! What the agent and the load generator share.

pub mod cgroup;
pub mod cpulist;
