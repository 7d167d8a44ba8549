//! How a queue behaves.

use crate::error::{Error, Result};
use crate::queue::slots::{MAX_DELIVERIES, Redelivery};

/// Most slots: a look goes over the words of all of them, which takes half a microsecond for so many.
pub const MAX_SLOTS: usize = 1_024;

/// What a producer does when no slot is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum WhenFull {
    /// Wait for a consumer.
    Block = 0,
    /// Drop the new segment; counted.
    DropNew = 1,
    /// Drop the oldest committed segment; counted. Waits only while every slot is being written or read.
    DropOldest = 2,
}

/// How a queue behaves; part of its layout, so both ends agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Number of slots: committed segments waiting plus those being written and read.
    pub slots: usize,
    /// When no slot is free.
    pub when_full: WhenFull,
    /// When a consumer dies while it holds a segment.
    pub redelivery: Redelivery,
    /// Deliveries of one segment before it is dropped, 1 to 15: one that kills its consumers must not do so for ever.
    pub max_deliveries: u64,
}

impl Options {
    /// Block when full, deliver at least once and at most three times.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        Self { slots, when_full: WhenFull::Block, redelivery: Redelivery::AtLeastOnce, max_deliveries: 3 }
    }

    pub(super) fn params(self, stride: usize) -> [u64; 5] {
        let Self { slots, when_full, redelivery, max_deliveries } = self;
        [slots as u64, stride as u64, when_full as u64, redelivery as u64, max_deliveries]
    }

    /// From a header: hostile input.
    pub(super) fn parse(params: &[u64]) -> Result<(Self, usize), String> {
        let &[slots, stride, when_full, redelivery, max_deliveries] = params else {
            unreachable!("checked by the header")
        };
        let when_full = match when_full {
            0 => WhenFull::Block,
            1 => WhenFull::DropNew,
            2 => WhenFull::DropOldest,
            other => return Err(format!("unknown way {other} of being full")),
        };
        let redelivery = match redelivery {
            0 => Redelivery::AtLeastOnce,
            1 => Redelivery::AtMostOnce,
            other => return Err(format!("unknown redelivery {other}")),
        };
        let slots = usize::try_from(slots).map_err(|e| e.to_string())?;
        let stride = usize::try_from(stride).map_err(|e| e.to_string())?;
        let options = Self { slots, when_full, redelivery, max_deliveries };
        options.check().map_err(|e| e.to_string())?;
        Ok((options, stride))
    }

    pub(super) fn check(self) -> Result<()> {
        if !(1..=MAX_SLOTS).contains(&self.slots) {
            return Err(Error::invalid("slots", self.slots, format!("1 to {MAX_SLOTS}")));
        }
        if !(1..=MAX_DELIVERIES).contains(&self.max_deliveries) {
            return Err(Error::invalid("max_deliveries", self.max_deliveries, format!("1 to {MAX_DELIVERIES}")));
        }
        Ok(())
    }
}
