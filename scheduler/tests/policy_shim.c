// SPDX-License-Identifier: GPL-2.0-only
/*
 * The policy headers as linkable functions, for the tests.
 */
#include "policy/asym.h"
#include "policy/bandwidth.h"
#include "policy/burst.h"
#include "policy/deadline.h"
#include "policy/debts.h"
#include "policy/heap.h"
#include "policy/hweight.h"
#include "policy/idle.h"
#include "policy/lag.h"
#include "policy/preempt.h"
#include "policy/resched.h"
#include "policy/ring.h"
#include "policy/spread.h"
#include "policy/vtime.h"
#include "policy/wakeq.h"
#include "policy/weight.h"

#define EXPORT(ret, name, params, args) \
	ret shim_##name params          \
	{                               \
		return name args;       \
	}

EXPORT(u32, nice_index, (int prio), (prio))
EXPORT(u64, weight_from_cgroup, (u64 weight), (weight))
EXPORT(u64, weight_inv, (u64 weight), (weight))
EXPORT(bool, vt_before, (u64 a, u64 b), (a, b))
EXPORT(u64, vt_max, (u64 a, u64 b), (a, b))
EXPORT(u64, vt_min, (u64 a, u64 b), (a, b))
EXPORT(u64, mul_shr_sat, (u64 a, u64 b, u32 shift), (a, b, shift))
EXPORT(u64, vt_delta, (u64 delta, u64 inv), (delta, inv))
EXPORT(u64, vt_key, (u64 vt, u32 cpu), (vt, cpu))
EXPORT(u64, vt_of_key, (u64 key), (key))
EXPORT(u32, cpu_of_key, (u64 key), (key))
EXPORT(u64, lag_clamp, (u64 vt, u64 clock, u64 credit_vt, u64 slice_vt),
       (vt, clock, credit_vt, slice_vt))
EXPORT(u64, lag_bound, (u64 vt, u64 clock, u64 slice_vt, u64 lightest_vt),
       (vt, clock, slice_vt, lightest_vt))
EXPORT(u64, lag_credit, (u64 vt, u64 clock, u64 most), (vt, clock, most))
EXPORT(u64, lag_among, (u64 vt, u64 others, u64 credit), (vt, others, credit))
EXPORT(u32, burst_place, (u32 pid), (pid))
EXPORT(void, burst_begin, (struct burst * burst, u32 pid, u64 exec_ns),
       (burst, pid, exec_ns))
EXPORT(void, burst_end, (struct burst * burst, u32 pid, u64 exec_ns),
       (burst, pid, exec_ns))
EXPORT(bool, burst_is_hog,
       (const struct burst *burst, u32 pid, u64 exec_ns, u64 gran_ns),
       (burst, pid, exec_ns, gran_ns))
EXPORT(u64, lag_reweigh, (u64 vt, u64 clock, u64 before, u64 inv),
       (vt, clock, before, inv))
EXPORT(u64, lag_of_idle, (u64 vt, u64 clock, u64 slice_vt, u64 own_slice_vt),
       (vt, clock, slice_vt, own_slice_vt))
EXPORT(u64, bandwidth_ns, (u64 us), (us))
EXPORT(u64, bandwidth_periods, (u64 now, u64 due, u64 period),
       (now, due, period))
EXPORT(s64, bandwidth_kernel_debt, (u64 quota, u64 period, u32 times),
       (quota, period, times))
EXPORT(s64, bandwidth_refill,
       (s64 left, u64 quota, u64 burst, u64 period, u64 periods),
       (left, quota, burst, period, periods))
EXPORT(u64, group_scale, (u64 parent_scale, u64 load, u64 weight),
       (parent_scale, load, weight))
EXPORT(u64, hot_scale, (u64 scale), (scale))
EXPORT(u64, hot_inv, (u64 inv, u64 scale, u64 inv_max), (inv, scale, inv_max))
EXPORT(u64, load_average, (u64 average, u64 sum), (average, sum))
EXPORT(u64, group_credit_inv, (u64 weight, u32 cpus), (weight, cpus))
EXPORT(u64, lightest_inv, (u64 total, u32 cpus), (total, cpus))
EXPORT(u64, frame_offset, (u64 clock, u64 offset, u64 other, u64 drift),
       (clock, offset, other, drift))
EXPORT(bool, keeps_running, (u64 prev, u64 head), (prev, head))
EXPORT(bool, worth_exchanging, (u64 prev, u64 waiter, u64 threshold),
       (prev, waiter, threshold))
EXPORT(bool, left_to_finish,
       (const struct contender *wakee, const struct contender *curr),
       (wakee, curr))
EXPORT(bool, wakeup_preempts,
       (const struct contender *wakee, const struct contender *curr, u64 gran),
       (wakee, curr, gran))
EXPORT(u64, starts_left, (u64 recent, u64 ns), (recent, ns))
EXPORT(s64, node_room, (u32 idle_cores, u64 starts), (idle_cores, starts))
EXPORT(s64, node_margin, (u32 cpus), (cpus))
EXPORT(u32, bit_from, (u64 cpus, u32 start), (cpus, start))
EXPORT(u64, bits_below, (u32 n), (n))
EXPORT(u64, whole_cores, (u64 idle, u64 starts, u64 ends), (idle, starts, ends))
EXPORT(u64, asym_helped, (enum asym_rule rule, const struct asym_view *view),
       (rule, view))
EXPORT(u64, wake_ref, (u32 pid, u64 key), (pid, key))
EXPORT(u32, pid_of_ref, (u64 ref), (ref))
EXPORT(u32, cpu_of_ref, (u64 ref), (ref))
EXPORT(bool, beyond_ref, (u64 key, u64 ref), (key, ref))
EXPORT(enum offer_verdict, may_offer, (u32 nr_allowed, u32 cpu, u32 last_cpu),
       (nr_allowed, cpu, last_cpu))
EXPORT(bool, ring_is_full, (struct ring * ring), (ring))
EXPORT(enum ring_result, ring_put, (struct ring * ring, struct ring_item item),
       (ring, item))
EXPORT(enum ring_result, ring_get, (struct ring * ring, struct ring_item *item),
       (ring, item))
EXPORT(bool, ring_oldest, (struct ring * ring, u64 *since), (ring, since))
EXPORT(u64, debt_load, (u32 id, u64 weight), (id, weight))
EXPORT(u32, debt_group, (u64 load), (load))
EXPORT(u64, debt_weight, (u64 load), (load))
EXPORT(bool, debts_any, (const struct debts *debts), (debts))
EXPORT(bool, debts_due, (const struct debts *debts, u64 clock), (debts, clock))
EXPORT(u64, debt_keep, (struct debts * debts, u32 pid, u64 load, u64 until),
       (debts, pid, load, until))
EXPORT(bool, debt_take, (struct debts * debts, u32 pid, u64 load),
       (debts, pid, load))
EXPORT(u64, debt_end, (struct debts * debts, u32 place, u64 clock, bool all),
       (debts, place, clock, all))
EXPORT(u64, deadline_ns, (u64 rr_ns, u32 nice, bool idle), (rr_ns, nice, idle))
EXPORT(u64, deadline_key, (u64 ns, u32 node), (ns, node))
EXPORT(u32, node_of_key, (u64 key), (key))
EXPORT(u64, kept_key, (u64 key, u64 fresh), (key, fresh))
EXPORT(bool, deadline_preempts,
       (u64 key, bool lowly, u64 curr_key, bool curr_idle),
       (key, lowly, curr_key, curr_idle))
EXPORT(u32, heap_first, (struct heap_node * nodes, u32 head), (nodes, head))
EXPORT(u64, heap_coins, (u64 coins), (coins))
EXPORT(bool, resched_best_idle,
       (enum resched_rule rule, const struct resched_view *view), (rule, view))

void shim_debts_begin(struct debts *debts, u64 clock)
{
	debts_begin(debts, clock);
}

void shim_heap_push(struct heap_node *nodes, u32 head, u32 n, u64 coins)
{
	heap_push(nodes, head, n, coins);
}

void shim_heap_remove(struct heap_node *nodes, u32 n, u64 coins)
{
	heap_remove(nodes, n, coins);
}

u64 shim_nice_weight(u32 index)
{
	return nice_weight[index];
}

u64 shim_nice_inv(u32 index)
{
	return nice_inv[index];
}
