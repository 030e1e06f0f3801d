// SPDX-License-Identifier: GPL-2.0-only

//! The BPF program and its maps, as libbpf-cargo generates them.

include!(concat!(env!("OUT_DIR"), "/bpf_skel.rs"));
