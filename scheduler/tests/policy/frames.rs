// SPDX-License-Identifier: GPL-2.0-only

//! `policy/lag.h`: clocks of different CPUs in the frame that they share.

use super::*;

/// A distance between clocks that leaves room for sums.
const FAR: i64 = 1 << 60;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn drift_is_bounded(
        clock in any_vt(), offset in any_vt(), apart in -FAR..FAR, drift in 0u64..1 << 50
    ) {
        let other = clock.wrapping_sub(offset).wrapping_add_signed(apart);
        let new = shim_frame_offset(clock, offset, other, drift);
        let now_apart = ahead(clock.wrapping_sub(new), other);
        prop_assert!(now_apart.unsigned_abs() <= drift);
    }

    #[test]
    fn small_drift_is_left_alone(
        clock in any_vt(), offset in any_vt(), drift in 1u64..1 << 50, part in -1000i64..=1000
    ) {
        let apart = (i128::from(part) * i128::from(drift) / 1000) as i64;
        let other = clock.wrapping_sub(offset).wrapping_add_signed(apart);
        prop_assert_eq!(shim_frame_offset(clock, offset, other, drift), offset);
    }

    #[test]
    fn correction_is_the_smallest_there_is(
        clock in any_vt(), offset in any_vt(), apart in -FAR..FAR, drift in 0u64..1 << 50
    ) {
        let other = clock.wrapping_sub(offset).wrapping_add_signed(apart);
        let new = shim_frame_offset(clock, offset, other, drift);
        let excess = apart.unsigned_abs().saturating_sub(drift);
        prop_assert_eq!(ahead(new, offset).unsigned_abs(), excess);
    }
}
