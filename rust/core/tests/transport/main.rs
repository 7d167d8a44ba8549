//! Tests of the transport from outside: segments as hostile input, semantics of the streams, and SIGKILL storms.

mod hostile;
mod kill;
mod limiter;
mod replay;

use rlz_core::WorkerId;
use rlz_core::schema::{Dtype, Field};

fn id(worker: u64) -> WorkerId {
    WorkerId::new(worker).unwrap()
}

fn words_field(words: usize) -> Vec<Field> {
    vec![Field::new("words", Dtype::U64, &[words]).unwrap()]
}

/// Word `i` of the row with this ticket of this lane: a torn or misplaced row gives itself away.
fn pattern(lane: u64, ticket: u64, i: usize) -> u64 {
    let row = (ticket.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ lane << 40).rotate_left(17);
    row.wrapping_add(i as u64)
}

fn fill(row: &mut [u64], lane: u64, ticket: u64) {
    for (i, word) in row.iter_mut().enumerate() {
        *word = pattern(lane, ticket, i);
    }
}

fn is_whole(row: &[u64], lane: u64, ticket: u64) -> bool {
    row.iter().enumerate().all(|(i, word)| *word == pattern(lane, ticket, i))
}
