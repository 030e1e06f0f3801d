// SPDX-License-Identifier: GPL-2.0-only

fn main() {
    scx_cargo::BpfBuilder::new()
        .unwrap()
        .enable_skel("src/bpf/main.bpf.c", "bpf")
        .build()
        .unwrap();

    // The policy headers as host code, for the tests.
    cc::Build::new()
        .file("tests/policy_shim.c")
        .include("src/bpf")
        .warnings_into_errors(true)
        .compile("policy_shim");
    println!("cargo:rerun-if-changed=tests/policy_shim.c");
    println!("cargo:rerun-if-changed=src/bpf/policy");
}
