// SPDX-License-Identifier: GPL-2.0-only

//! What the tests of the policy headers share.

use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;

/// The same cases on every run: a test that fails one time in a thousand tells
/// of the run before the change as often as of the change. To look further,
/// set `PROPTEST_CASES` and `PROPTEST_RNG_SEED`.
pub fn config() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig {
        cases: asked.cases.max(2048),
        rng_seed: match asked.rng_seed {
            RngSeed::Random => RngSeed::Fixed(1),
            fixed => fixed,
        },
        failure_persistence: None,
        ..asked
    }
}
