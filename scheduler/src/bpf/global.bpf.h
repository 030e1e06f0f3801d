/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The global run queue: scheduling by virtual deadlines (--runq global).
 *
 * All tasks that wait are in one order (policy/deadline.h), and each CPU takes the
 * first that it may run. A wakee goes to an idle CPU if there is one; else to the
 * CPU that runs the latest deadline of all, if the wakee is due before that, and
 * preempts it: both past the queue, unless another task of the queue is due even
 * before. The next task of a CPU is the first
 * among the queue, the tasks that wait for this CPU only, and the one that runs.
 * What ran in another LLC counts as due later by the rr interval, in another node
 * by two: caches are worth that much (BFS bars tasks just preempted from other CPUs
 * altogether).
 *
 * Beside what the task itself carries, p->scx.dsq_vtime with its key and so its
 * node, there is the node (heap.h) and what each CPU tells of the task it runs.
 */
#pragma once

#include "confine.bpf.h"
#include "enqueue.bpf.h"
#include "grq.bpf.h"
#include "heddle.bpf.h"
#include "idle.bpf.h"
#include "release.bpf.h"
#include "runq.bpf.h"
#include "schedstat.bpf.h"

/* Option; the loader sets it before the program is loaded. */
const volatile bool runq_global;

/* What a CPU tells of the task that it runs. */
struct global_cpu {
	u64 curr_key;
	u64 curr_sum_exec; /* when its slice was looked at last */
	u32 curr_left_ns; /* what was left of it then */
	bool running;
	bool curr_idle; /* it is SCHED_IDLE */
	bool preempted; /* it is about to be */
	s32 sync_wakee; /* the last wakee from here, if its waker said that it will sleep; or 0 */
	u32 barrier; /* see full_barrier() */
} __attribute__((aligned(CACHE_LINE)));

struct global_cpu global_cpus[MAX_CPUS];

static __always_inline struct global_cpu *global_cpu(u32 cpu)
{
	return &global_cpus[cpu & (MAX_CPUS - 1)];
}

/* All that was stored before is seen before all that is loaded after. */
static __always_inline void full_barrier(void)
{
	__sync_lock_test_and_set(
		&global_cpu(bpf_get_smp_processor_id())->barrier, 0);
}

static __always_inline struct heap_node *node_of(struct grq *grq,
						 const struct task_struct *p)
{
	return heap_at(grq->nodes, node_of_key(p->scx.dsq_vtime));
}

/* The key of @p if its slice started now. */
static __always_inline u64 fresh_key(const struct task_struct *p)
{
	u64 ns = deadline_ns(slice_ns, nice_index(p->static_prio),
			     task_is_idle_policy(p));

	return deadline_key(scx_bpf_now() + ns, node_of_key(p->scx.dsq_vtime));
}

/* Neither the idle nor the batch policy preempts. */
static __always_inline bool is_lowly(const struct task_struct *p)
{
	return task_is_idle_policy(p) || p->policy == SCHED_BATCH;
}

/* Only a wakee preempts, unless its waker, on this CPU, makes room itself. */
static __always_inline bool global_may_preempt(const struct task_struct *p,
					       bool wakeup)
{
	return wakeup && !is_lowly(p) &&
	       global_cpu(bpf_get_smp_processor_id())->sync_wakee != p->pid;
}

/* What is left of the slice of @node's task; node 0 is nobody's. */
static __always_inline u32 left_of(const struct heap_node *node)
{
	return node->left_ns ?: slice_ns;
}

/* ops.init_task */
static __always_inline s32 global_init_task(struct task_struct *p)
{
	struct grq *grq = the_grq();
	struct grq_hold hold = {};
	u32 node;

	if (!grq)
		return -ENOENT;
	GRQ_LOCK(grq, &hold);
	node = grq_alloc(grq, &hold);
	if (node) {
		heap_at(grq->nodes, node)->lane = 0;
		heap_at(grq->nodes, node)->left_ns = 0;
		heap_at(grq->nodes, node)->home = HOME_CPU;
	}
	GRQ_UNLOCK(grq, &hold, slot);
	if (!node)
		count(nodes_exhausted);
	/* The kernel's setter refuses a task that is not ours yet. */
	p->scx.dsq_vtime = deadline_key(0, node);
	return 0;
}

/* ops.exit_task */
static __always_inline void global_exit_task(const struct task_struct *p)
{
	struct grq *grq = the_grq();
	struct grq_hold hold = {};
	u32 node = node_of_key(p->scx.dsq_vtime);

	if (!grq || !node)
		return;
	confine_put(grq, heap_at(grq->nodes, node)->home);
	GRQ_LOCK(grq, &hold);
	grq_remove(grq, &hold, node);
	grq_free(grq, &hold, node);
	GRQ_UNLOCK(grq, &hold, slot);
}

/* ops.set_cpumask: the affinity of @p has changed. It is not queued. */
static __always_inline void global_set_affinity(struct task_struct *p)
{
	struct grq *grq = the_grq();
	u32 node = node_of_key(p->scx.dsq_vtime);
	u32 home;

	if (!grq || !node)
		return;
	home = confine_home(p);
	confine_put(grq, heap_at(grq->nodes, node)->home);
	heap_at(grq->nodes, node)->home = home;
}

/* ops.enable: at fork or from another class, a task starts with a new slice. */
static __always_inline void global_enable(struct task_struct *p)
{
	scx_bpf_task_set_dsq_vtime(p, fresh_key(p));
	global_set_affinity(p);
}

/* Rule b: what a CPU tells of itself is written under its rq lock, about its task. */
static __always_inline void global_needs_rq(u32 cpu,
					    const struct task_struct *p)
{
	if (lock_check && cpu != cpu_of_task(p))
		scx_bpf_error("CPU %d was spoken for by another", cpu);
}

/*
 * @p runs on @cpu: note what is left of its slice. If nothing is, it gets
 * another one and is due later. So is a task that yields, and a batch task
 * whenever it stops (BFS).
 */
static __always_inline void global_settle(struct grq *grq, u32 cpu,
					  struct task_struct *p)
{
	struct global_cpu *g = global_cpu(cpu);
	struct cpu_ctx *c = cpu_ctx(cpu);
	u64 ran = p->se.sum_exec_runtime - g->curr_sum_exec;
	u64 left = ran < g->curr_left_ns ? g->curr_left_ns - ran : 0;
	u32 node = node_of_key(p->scx.dsq_vtime);
	struct grq_hold hold = {};
	u64 key = p->scx.dsq_vtime;

	if (left < SLICE_SPENT_NS || c->yielded || p->policy == SCHED_BATCH) {
		left = slice_ns;
		key = fresh_key(p);
	}
	c->yielded = false;
	global_needs_rq(cpu, p);
	GRQ_LOCK_STRICT(grq, &hold);
	g->curr_key = key;
	g->curr_left_ns = left;
	if (node)
		heap_at(grq->nodes, node)->left_ns = left;
	GRQ_UNLOCK_STRICT(grq, &hold, task);
	g->curr_sum_exec = p->se.sum_exec_runtime;
	scx_bpf_task_set_dsq_vtime(p, key);
}

/* ops.running: @p starts on @cpu. */
static __always_inline void global_start(u32 cpu, struct task_struct *p)
{
	struct global_cpu *g = global_cpu(cpu);
	struct grq *grq = the_grq();
	struct cpu_ctx *c = cpu_ctx(cpu);
	struct grq_hold hold = {};

	if (!grq)
		return;
	global_needs_rq(cpu, p);
	GRQ_LOCK_STRICT(grq, &hold);
	g->curr_key = p->scx.dsq_vtime;
	g->curr_left_ns = p->scx.slice;
	g->curr_idle = task_is_idle_policy(p);
	g->preempted = false;
	g->running = true;
	GRQ_UNLOCK_STRICT(grq, &hold, task);
	g->curr_sum_exec = p->se.sum_exec_runtime;
	idle_note_running(cpu, c, g->curr_idle);
	c->curr_idle = g->curr_idle;
	c->running = true;
}

/* ops.stopping: @p leaves @cpu. */
static __always_inline void global_stop(u32 cpu, struct task_struct *p)
{
	struct grq *grq = the_grq();

	if (!grq)
		return;
	global_settle(grq, cpu, p);
	global_cpu(cpu)->running = false;
	cpu_ctx(cpu)->running = false;
}

/* @p becomes runnable or is put back: the key that it waits with. */
static __always_inline u64 global_claim(const struct task_struct *p,
					bool wakeup)
{
	u64 fresh = fresh_key(p);

	/* A task of the idle policy is not first for having slept. */
	if (wakeup && task_is_idle_policy(p))
		return fresh;
	return kept_key(p->scx.dsq_vtime, fresh);
}

/* Does a wakee with @key preempt what runs on @cpu? */
static __always_inline bool global_preempts(u64 key, bool lowly,
					    const struct global_cpu *g)
{
	return g->running && !g->preempted &&
	       deadline_preempts(key, lowly, g->curr_key, g->curr_idle);
}

/* What the idle policy runs gives way before all else. */
#define IDLE_LATENESS (1ULL << 61)

/* More rr intervals than any distance counts for. */
#define DISTANCE_MAX 4

/*
 * How late that is due which runs on @cpu, to a wakee that ran on @near, in the LLC of
 * @lane. On another CPU than its own it finds no caches, and takes an interrupt to get
 * there: what those run counts as due an rr interval earlier.
 */
static __always_inline u64 lateness_to(u32 cpu, u32 near, u32 lane)
{
	const struct global_cpu *g = global_cpu(cpu);
	u64 late = g->curr_key;

	if (g->curr_idle)
		late += IDLE_LATENESS;
	if (cpu != near)
		late -= (slice_ns << KEY_SHIFT) + distance_key(cpu, lane);
	return late;
}

/*
 * Of the CPUs that a task of @home, which ran on @near, may run on and that it
 * preempts with @key, the one that runs the latest deadline; negative if there is
 * none. Global for the verifier.
 */
__noinline s32 global_latest(u64 key, u32 home, u32 near)
{
	u32 nr_cpus = scx_bpf_nr_cpu_ids(), lane = place_of(near)->llc_first;
	u64 latest = key - (DISTANCE_MAX * slice_ns << KEY_SHIFT);
	struct grq *grq = the_grq();
	struct grq_hold hold = {};
	s32 victim = -1;
	u32 cpu;

	if (!grq)
		return -1;
	GRQ_LOCK_STRICT(grq, &hold);
	for (cpu = read_zero(); cpu < nr_cpus && can_loop; cpu++) {
		u64 late;

		if (!home_allows(home, cpu) ||
		    !global_preempts(key, false, global_cpu(cpu)))
			continue;
		late = lateness_to(cpu, near, lane);
		if (vt_before(latest, late)) {
			latest = late;
			victim = cpu;
		}
	}
	GRQ_UNLOCK_STRICT(grq, &hold, search);
	return victim;
}

/* Is a task of the queue due on @cpu before @key? Global as well. */
__noinline bool global_queue_first(u32 cpu, u64 key)
{
	struct grq *grq = the_grq();
	struct grq_hold hold = {};
	struct grq_best best;

	if (!grq)
		return false;
	GRQ_LOCK_STRICT(grq, &hold);
	grq_find(grq, cpu, &best);
	GRQ_UNLOCK_STRICT(grq, &hold, search);
	return best.any && vt_before(best.key, key);
}

/*
 * No CPU idles for @p, which wakes: it goes to the one that it preempts, else to
 * @prev_cpu. There it need not pass through the queue, nor through an interrupt of
 * the CPU that wakes it, as it would for a CPU that is asked from elsewhere.
 */
static __always_inline s32 global_where_latest(const struct task_struct *p,
					       struct grq *grq, s32 prev_cpu,
					       u64 wake_flags)
{
	u32 home = node_of(grq, p)->home;
	s32 latest;

	if (!global_may_preempt(p, wake_flags & SCX_WAKE_TTWU) ||
	    home == HOME_CPU)
		return prev_cpu;
	latest = global_latest(global_claim(p, true), home, prev_cpu);
	return latest < 0 ? prev_cpu : latest;
}

/* ops.select_cpu: not called for tasks that may run on one CPU only. */
static __always_inline s32 global_place(struct task_struct *p, s32 prev_cpu,
					u64 wake_flags)
{
	u32 this_cpu = bpf_get_smp_processor_id();
	struct grq *grq = the_grq();
	struct grq_hold hold = {};
	s32 cpu = idle_for_wakee(p, prev_cpu, this_cpu, wake_reach(wake_flags),
				 wake_flags);
	u32 left;

	global_cpu(this_cpu)->sync_wakee = wake_flags & SCX_WAKE_SYNC ? p->pid
								      : 0;
	if (!grq)
		return prev_cpu;
	if (cpu < 0)
		return global_where_latest(p, grq, prev_cpu, wake_flags);
	if (is_taken(cpu) || may_be_kept(cpu))
		return cpu; /* which wakes up for the queue */
	GRQ_LOCK_STRICT(grq, &hold);
	left = left_of(node_of(grq, p));
	GRQ_UNLOCK_STRICT(grq, &hold, task);
	scx_bpf_task_set_dsq_vtime(p, global_claim(p, true));
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, left, 0);
	count(idle_direct);
	if (wake_flags & SCX_WAKE_TTWU)
		schedstat_ttwu();
	return cpu;
}

static __always_inline void global_preempt(u32 cpu)
{
	global_cpu(cpu)->preempted = true;
	kick(cpu, SCX_KICK_PREEMPT);
	count(preempt);
}

/* A task that did not sleep takes a CPU from SCHED_IDLE tasks only. */
static __always_inline void global_preempt_idle(u64 key, u32 home, u32 cpu)
{
	s32 latest = global_latest(key, home, cpu);

	if (latest >= 0 && global_cpu(latest)->curr_idle)
		global_preempt(latest);
}

/* Queue @p, which none but its own CPU, @cpu, may take. */
static __always_inline void global_enqueue_own(struct task_struct *p, u32 cpu,
					       u64 key, u32 left, bool wakeup,
					       u64 enq_flags)
{
	if (!bpf_cpumask_test_cpu(cpu, p->cpus_ptr)) {
		u32 to = bpf_cpumask_any_distribute(p->cpus_ptr);

		scx_bpf_task_set_dsq_vtime(p, key);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL_ON | to, left, enq_flags);
		count(local);
		return;
	}
	cpu_ctx(cpu)->nr_queued++;
	scx_bpf_dsq_insert_vtime(p, cpu, left, key, enq_flags);
	count(queued);
	if (wakeup && global_preempts(key, is_lowly(p), global_cpu(cpu)))
		global_preempt(cpu);
}

/*
 * Queue the task @pid of @node by @key in @lane. What walks the heap is global,
 * so that the verifier looks at it once.
 */
__noinline int global_push(u32 node, u32 lane, u64 key, s32 pid)
{
	struct grq *grq = the_grq();
	struct grq_hold hold = {};

	if (!grq)
		return 0;
	GRQ_LOCK(grq, &hold);
	grq_remove(grq, &hold, node); /* see global_hand() */
	heap_at(grq->nodes, node)->key = key;
	heap_at(grq->nodes, node)->pid = pid;
	grq_push(grq, &hold, node, lane);
	GRQ_UNLOCK(grq, &hold, enqueue);
	return 0;
}

/* Where tasks of @home that ran on @cpu wait. */
static __always_inline u32 lane_of(u32 home, u32 cpu)
{
	if (home == HOME_LLC)
		return place_of(cpu)->llc_first;
	return MAX_WORDS + home - HOME_CONFINE;
}

/* resched_best_idle(): have an idle CPU that @p may run on look at the queue. */
static __always_inline bool global_wake_idle(const struct task_struct *p,
					     u32 cpu)
{
	s32 idle_cpu = idle_for_waiter(p, cpu, wait_reach());

	if (idle_cpu < 0)
		return false;
	kick(idle_cpu, SCX_KICK_IDLE);
	count(resched_idle);
	return true;
}

/* ops.enqueue: @p is runnable and no idle CPU was at hand, or its slice is over. */
static __always_inline void global_enqueue(struct task_struct *p, u64 enq_flags)
{
	u32 cpu = cpu_of_task(p), this_cpu = bpf_get_smp_processor_id();
	bool wakeup = enq_flags & SCX_ENQ_WAKEUP;
	struct grq *grq = the_grq();
	bool preempts;
	u32 left, home;
	u64 key;

	if (!grq)
		return;
	if (wakeup)
		schedstat_ttwu();
	key = global_claim(p, wakeup);
	left = left_of(node_of(grq, p));
	home = node_of(grq, p)->home;

	/* Nobody picks from what an offline CPU queues, or is told of it by one. */
	if ((wakeup && is_percpu_kthread(p)) || cpu_ctx(cpu)->offline ||
	    cpu_ctx(this_cpu)->offline) {
		if (wakeup)
			enq_flags |= SCX_ENQ_PREEMPT;
		scx_bpf_task_set_dsq_vtime(p, key);
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, left, enq_flags);
		count(local);
		return;
	}
	if (home == HOME_CPU || is_tied(p)) {
		global_enqueue_own(p, cpu, key, left, wakeup, enq_flags);
		return;
	}
	scx_bpf_task_set_dsq_vtime(p, key);
	preempts = global_may_preempt(p, wakeup) &&
		   global_preempts(key, false, global_cpu(cpu));
	if (preempts && !global_queue_first(cpu, key)) {
		global_cpu(cpu)->preempted = true;
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, left,
				   enq_flags | SCX_ENQ_PREEMPT);
		count(preempt);
		return;
	}
	global_push(node_of_key(key), lane_of(home, cpu), key, p->pid);
	count(queued);
	/* Against global_recheck(): one of the two sees the other. */
	full_barrier();
	if (global_wake_idle(p, cpu))
		return;
	if (preempts)
		global_preempt(cpu);
	else if (!wakeup && sched_idle_seen && !is_lowly(p))
		global_preempt_idle(key, home, cpu);
}

/* ops.dequeue: @p changes, or has been taken. */
static __always_inline void global_dequeue(const struct task_struct *p)
{
	u32 node = node_of_key(p->scx.dsq_vtime);
	struct grq_hold hold = {};
	struct grq *grq = the_grq();

	/* A task that waits here is queued only under its own rq lock, which is held. */
	if (!grq || !*(volatile u16 *)&heap_at(grq->nodes, node)->lane)
		return;
	GRQ_LOCK(grq, &hold);
	grq_remove(grq, &hold, node);
	GRQ_UNLOCK(grq, &hold, dequeue);
}

/*
 * ops.cpu_offline: tasks that are confined to CPUs that are all offline now would
 * wait for ever. The kernel gives them other CPUs once they are its own again.
 */
static __always_inline void global_offline(u32 cpu)
{
	u64 stranded = confines_of[cpu & (MAX_CPUS - 1)];
	struct grq *grq = the_grq();
	u32 other;

	bpf_for(other, 0, scx_bpf_nr_cpu_ids())
		if (!cpu_ctx(other)->offline)
			stranded &= ~confines_of[other & (MAX_CPUS - 1)];
	if (grq && (stranded & read_once(&grq->confines)))
		scx_bpf_exit(SCX_ECODE_ACT_RESTART | SCX_ECODE_RSN_HOTPLUG,
			     "CPU %d was the last of those of some tasks", cpu);
}
