// SPDX-License-Identifier: GPL-2.0-only

//! `policy/preempt.h`: which task runs next.

use super::*;

proptest! {
    #![proptest_config(config())]

    #[test]
    fn idle_policy_always_gives_way(mut wakee in contender(), mut curr in contender()) {
        curr.idle = true;
        wakee.idle = false;
        prop_assert!(shim_wakeup_preempts(&wakee, &curr, MS));
    }

    #[test]
    fn idle_and_batch_never_take(mut wakee in contender(), curr in contender(), idle in any::<bool>()) {
        wakee.idle = idle;
        wakee.batch = !idle;
        prop_assume!(!curr.idle || wakee.idle);
        prop_assert!(!shim_wakeup_preempts(&wakee, &curr, MS));
    }

    #[test]
    fn nobody_preempts_who_is_behind(mut wakee in contender(), mut curr in contender(),
                                     d in 0..1u64 << 61) {
        wakee.idle = false;
        curr.idle = false;
        wakee.vt = curr.vt.wrapping_add(d);
        prop_assert!(!shim_wakeup_preempts(&wakee, &curr, MS));
    }

    #[test]
    fn preemption_is_not_mutual(a in contender(), mut b in contender(),
                                apart in -(1i64 << 61)..1 << 61, gran in 0..100 * MS) {
        b.vt = a.vt.wrapping_add_signed(apart);
        prop_assert!(!(shim_wakeup_preempts(&a, &b, gran) && shim_wakeup_preempts(&b, &a, gran)));
    }

    #[test]
    fn a_heavier_wakee_preempts_no_later(
        vt in any_vt(), gap in 0..1u64 << 50, a in any_weight(), b in any_weight()
    ) {
        let curr = Contender { vt: vt.wrapping_add(gap), inv: shim_nice_inv(20), idle: false, batch: false };
        let wakes = |weight| {
            let wakee = Contender { vt, inv: shim_weight_inv(weight), idle: false, batch: false };
            shim_wakeup_preempts(&wakee, &curr, MS)
        };
        prop_assert!(wakes(a.max(b)) || !wakes(a.min(b)));
    }

    #[test]
    fn only_who_weighs_more_or_yields_less_may_cut_an_ending_run_short(wakee in contender(), curr in contender()) {
        let differs = wakee.idle != curr.idle;
        prop_assert_eq!(shim_left_to_finish(&wakee, &curr), !differs && wakee.inv >= curr.inv);
    }

    #[test]
    fn keeping_and_exchanging_follow_the_order(prev in any_vt(), d in 1..1u64 << 61, gap in 0..1u64 << 61) {
        prop_assert!(shim_keeps_running(prev, prev.wrapping_add(d)));
        prop_assert!(!shim_keeps_running(prev.wrapping_add(d), prev));
        prop_assert!(!shim_keeps_running(prev, prev));
        prop_assert_eq!(shim_worth_exchanging(prev.wrapping_add(d), prev, gap), d > gap);
        prop_assert!(!shim_worth_exchanging(prev, prev.wrapping_add(d), gap));
    }
}
