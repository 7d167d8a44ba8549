//! Rows and segments that describe themselves: a torn or misplaced one gives itself away.

#![allow(dead_code, unreachable_pub)] // each test uses its part

use rlz_core::WorkerId;
use rlz_core::schema::{Dtype, Field};

pub fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

pub fn words_field(words: usize) -> Vec<Field> {
    vec![Field::new("words", Dtype::U64, &[words]).unwrap()]
}

/// Word `i` of what was written as number `ticket` of `lane`.
pub fn pattern(lane: u64, ticket: u64, i: usize) -> u64 {
    let row = (ticket.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ lane << 40).rotate_left(17);
    row.wrapping_add(i as u64)
}

pub fn fill(row: &mut [u64], lane: u64, ticket: u64) {
    for (i, word) in row.iter_mut().enumerate() {
        *word = pattern(lane, ticket, i);
    }
}

pub fn is_whole(row: &[u64], lane: u64, ticket: u64) -> bool {
    row.iter().enumerate().all(|(i, word)| *word == pattern(lane, ticket, i))
}
