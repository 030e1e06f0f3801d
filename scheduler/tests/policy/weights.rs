// SPDX-License-Identifier: GPL-2.0-only

//! `policy/weight.h`: nice levels and cgroup weights.

use super::*;

#[test]
fn nice_levels_weigh_what_the_kernel_says() {
    for (i, weight) in KERNEL_WEIGHTS.iter().enumerate() {
        assert_eq!(shim_nice_weight(i as u32), weight << 10);
        assert_eq!(shim_nice_index(100 + i as i32), i as u32);
    }
}

#[test]
fn nice_levels_are_strictly_ordered() {
    for i in 1..NICE_LEVELS as u32 {
        assert!(shim_nice_weight(i - 1) > shim_nice_weight(i));
        assert!(shim_nice_inv(i - 1) < shim_nice_inv(i));
    }
}

#[test]
fn inverse_of_every_nice_level_is_exact_to_1e_4() {
    for i in 0..NICE_LEVELS as u32 {
        let product = u128::from(shim_nice_weight(i)) * u128::from(shim_nice_inv(i));
        let error = product.abs_diff(1 << INV_SHIFT);
        assert!(error * 10_000 < 1 << INV_SHIFT, "nice index {i}");
        assert_eq!(shim_nice_inv(i), shim_weight_inv(shim_nice_weight(i)));
    }
}

#[test]
fn cgroup_weights_are_never_zero_and_strictly_ordered() {
    let mut last = 0;
    for weight in 1..=10_000 {
        let scaled = shim_weight_from_cgroup(weight);
        assert!(scaled > last);
        last = scaled;
    }
    assert_eq!(shim_weight_from_cgroup(100), NICE_0);
    assert_ne!(shim_weight_from_cgroup(0), 0);
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn any_static_priority_has_an_index(prio in any::<i32>()) {
        prop_assert!(shim_nice_index(prio) < NICE_LEVELS as u32);
    }

    #[test]
    fn inverse_is_never_zero(weight in any::<u64>()) {
        prop_assert!(shim_weight_inv(weight) > 0);
    }

    #[test]
    fn heavier_never_has_the_larger_inverse(a in any_weight(), b in any_weight()) {
        let (light, heavy) = (a.min(b), a.max(b));
        prop_assert!(shim_weight_inv(light) >= shim_weight_inv(heavy));
    }
}
