// SPDX-License-Identifier: GPL-2.0-only

//! The steps, each with the function that it stands for.

use super::model::Run;

/// The next step of an actor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pc {
    /// A waker or a change of affinity has not begun.
    #[default]
    Asleep,
    Done,
    /// A CPU runs a task or idles.
    Runs,
    Search,
    Claim,
    Lock,
    OfferBit,
    OfferSum,
    Insert,
    Send,
    Land,
    WithdrawBit,
    WithdrawLook,
    WithdrawSum,
    WithdrawSecondLook,
    WithdrawRenew,
    AnyOffer,
    Offering,
    OfferWord,
    Peek,
    Consume,
    ConsumeMove,
    ConsumeLand,
    Walk,
    WalkMove,
    WalkLand,
    Count,
    LastLook,
    Call,
    Exit,
    Enter,
    Recheck,
    Stays,
    TickRead,
    TickWalk,
    Ask,
    AskKick,
}

/// Where offering, withdrawing and searching lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// place_wakee(): a search, then ops.enqueue.
    #[default]
    Place,
    /// enqueue_task(): an offer, a search, the queue.
    Queue,
    /// runq_withdraw() in enqueue_idle()
    Send,
    /// runq_mark_empty()
    Pick,
    /// pull_from(), of tasks that may run nowhere else
    LookAgain,
    /// withdraw_empty()
    LastLook,
    /// pull_from(), which has offered anew
    Next,
    /// rescue_queue()
    Rescue,
}

type Act = fn(&mut Run);

/// What is done in each step but Asleep, Done and Runs: in the model, and where in the code. What
/// only the owner of an rq lock sees goes with the step before it.
#[rustfmt::skip]
const STEPS: [(Pc, Act, &str, &str); 34] = [
    (Pc::Search, |run| run.search(), "candidates_in", "reads a word of idle_words"),
    (Pc::Claim, |run| run.claim(), "claim", "clears a bit of idle_words, if it is set"),
    (Pc::Lock, |run| run.enqueue(), "enqueue_task", "locks; runs next, or sets the bit in offers"),
    (Pc::OfferBit, |run| run.offer_bit(), "offer", "sets the bit in offers"),
    (Pc::OfferSum, |run| run.offer_sum(), "offer", "sets the bit in offered_words"),
    (Pc::Insert, |run| run.insert(), "runq_insert", "the task is queued; unlocks"),
    (Pc::Send, |run| run.send(), "enqueue_idle", "sends the task to the claimed CPU; unlocks"),
    (Pc::Land, |run| run.land(), "dispatch_to_local_dsq", "moves the task to the claimed CPU"),
    (Pc::WithdrawBit, |run| run.withdraw_bit(), "withdraw", "clears the bit in offers"),
    (Pc::WithdrawLook, |run| run.withdraw_look(), "withdraw", "reads the word of offers"),
    (Pc::WithdrawSum, |run| run.withdraw_sum(), "withdraw", "clears the bit in offered_words"),
    (Pc::WithdrawSecondLook, |run| run.withdraw_second_look(), "withdraw", "reads the word again"),
    (Pc::WithdrawRenew, |run| run.withdraw_renew(), "withdraw", "sets the bit in offered_words"),
    (Pc::AnyOffer, |run| run.any_offer(), "any_offer", "reads offered_words"),
    (Pc::Offering, |run| run.offering(), "offering", "reads offered_words"),
    (Pc::OfferWord, |run| run.offer_word(), "pull_from_word", "reads a word of offers"),
    (Pc::Peek, |run| run.peek(), "pull_look", "looks at the first task"),
    (Pc::Consume, |run| run.consume(), "consume_dispatch_q", "unlinks a task; unlocks"),
    (Pc::ConsumeMove, |run| run.consume_move(), "consume_remote_task", "with the other rq lock"),
    (Pc::ConsumeLand, |run| run.consume_land(), "consume_remote_task", "with its own rq lock"),
    (Pc::Walk, |run| run.walk(), "pull_past_head", "looks at the next task"),
    (Pc::WalkMove, |run| run.walk_move(), "scx_dsq_move", "with the other rq lock"),
    (Pc::WalkLand, |run| run.walk_land(), "scx_dsq_move", "with its own rq lock"),
    (Pc::Count, |run| run.count(), "pull_from", "reads the length of the queue"),
    (Pc::LastLook, |run| run.last_look(), "withdraw_empty", "reads the length of the queue"),
    (Pc::Call, |run| run.call(), "(a remedy)", "kicks the CPUs that idle"),
    (Pc::Exit, |run| run.exit(), "idle_exit", "clears its bit in idle_words; unlocks"),
    (Pc::Enter, |run| run.enter(), "idle_enter", "sets its bit in idle_words"),
    (Pc::Recheck, |run| run.recheck(), "recheck_offers", "reads offered_words; unlocks"),
    (Pc::Stays, |run| run.stays(), "idle_stays", "sets its bit in idle_words; unlocks"),
    (Pc::TickRead, |run| run.tick_read(), "words_for_waiter", "reads a word of idle_words"),
    (Pc::TickWalk, |run| run.tick_walk(), "rescue_queue", "looks at the next task"),
    (Pc::Ask, |run| run.ask(), "rescue_by_idle", "sets pull_asked"),
    (Pc::AskKick, |run| run.ask_kick(), "rescue_by_idle", "kicks the claimed CPU; unlocks"),
];

/// The steps that are not in the table.
const FIRST: usize = 3;

impl Pc {
    fn entry(self) -> Option<(Act, &'static str, &'static str)> {
        let nth = (self as usize).checked_sub(FIRST)?;
        let (pc, act, function, what) = STEPS[nth];
        assert_eq!(pc, self, "the table is in the order of the steps");
        Some((act, function, what))
    }

    pub fn act(self) -> Option<Act> {
        self.entry().map(|(act, ..)| act)
    }

    /// The function, and what it does.
    pub fn says(self) -> (&'static str, &'static str) {
        match self.entry() {
            Some((_, function, what)) => (function, what),
            None if self == Self::Runs => ("__schedule", "locks; takes what is queued here"),
            None => ("", "begins"),
        }
    }
}
