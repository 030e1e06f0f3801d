// SPDX-License-Identifier: GPL-2.0-only

//! topology.bpf.h: the offers and their sum.
//!
//! word_set() and word_clear() read first, and leave a word alone that is as it should be. In
//! sequential consistency each is one atomic step all the same, at the time of the read or of
//! the write.

use super::model::{Change, Run};
use super::state::{Set, bit};
use super::steps::{Pc, Then};

impl Run<'_> {
    fn word_in_hand(&self) -> u8 {
        self.model.word_of(self.now().cpu)
    }

    fn word_of_offers(&self) -> Set {
        self.s.offers & self.model.cpus_of(self.word_in_hand())
    }

    /// offer()
    pub fn offer(&mut self, cpu: u8, then: Then) {
        let a = self.actor();
        (a.cpu, a.then, a.pc) = (cpu, then, Pc::OfferBit);
    }

    pub fn offer_bit(&mut self) {
        self.s.offers |= bit(self.now().cpu);
        self.goes_to(Pc::OfferSum);
    }

    pub fn offer_sum(&mut self) {
        self.s.sum |= bit(self.word_in_hand());
        match self.now().then {
            Then::Next if self.model.has(Change::CallAfterRenewal) => self.goes_to(Pc::Call),
            Then::Next => self.next_queue(),
            Then::Rescue => self.rescue_offered(),
            _ => self.enqueue_offered(),
        }
    }

    /// withdraw()
    pub fn withdraw(&mut self, cpu: u8, then: Then) {
        let a = self.actor();
        (a.cpu, a.then, a.pc) = (cpu, then, Pc::WithdrawBit);
    }

    pub fn withdraw_bit(&mut self) {
        self.s.offers &= !bit(self.now().cpu);
        self.goes_to(Pc::WithdrawLook);
    }

    pub fn withdraw_look(&mut self) {
        if self.word_of_offers() != 0 {
            self.withdrawn();
        } else {
            self.goes_to(Pc::WithdrawSum);
        }
    }

    pub fn withdraw_sum(&mut self) {
        self.s.sum &= !bit(self.word_in_hand());
        if self.model.has(Change::OneLookAtWord) {
            self.withdrawn();
        } else {
            self.goes_to(Pc::WithdrawSecondLook);
        }
    }

    pub fn withdraw_second_look(&mut self) {
        if self.word_of_offers() == 0 {
            self.withdrawn();
        } else {
            self.goes_to(Pc::WithdrawRenew);
        }
    }

    pub fn withdraw_renew(&mut self) {
        self.s.sum |= bit(self.word_in_hand());
        if self.model.has(Change::CallAfterRenewal) {
            self.goes_to(Pc::Call);
        } else {
            self.withdrawn();
        }
    }

    fn withdrawn(&mut self) {
        match self.now().then {
            Then::Send => self.goes_to(Pc::Send),
            Then::Pick => self.picked_none(),
            Then::LookAgain if !self.model.has(Change::OneLookAtTied) => self.walk_again(),
            Then::LastLook if !self.model.has(Change::NoReoffer) => self.goes_to(Pc::LastLook),
            _ => self.next_queue(),
        }
    }

    /// withdraw_empty(): has a task been queued meanwhile?
    pub fn last_look(&mut self) {
        let victim = self.now().cpu;
        if self.cpu(victim).queue.is_empty() && !self.keeps_offer(victim) {
            self.next_queue();
        } else {
            self.offer(victim, Then::Next);
        }
    }

    /// Change::KeepOfferIfLocked
    pub fn keeps_offer(&mut self, victim: u8) -> bool {
        self.model.has(Change::KeepOfferIfLocked) && self.cpu(victim).locked
    }

    /// Change::CallAfterRenewal: a CPU that went idle while the offer was not there looks anew.
    pub fn call(&mut self) {
        self.s.idle_kicks |= self.s.idle;
        match self.now().then {
            Then::Next => self.next_queue(),
            _ => self.withdrawn(),
        }
    }
}
