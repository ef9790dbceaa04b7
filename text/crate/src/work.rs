//! How much work a compilation has done, and whether it is to stop.
//!
//! Everything that loops over what a client sent counts its steps here. So a request to stop is seen at once, and a
//! test can tell, without a clock, that no loop runs on.

use llguidance::CancellationHandle;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Steps between two looks at the request to stop. A step is what one JSON value or a short text takes: up to some
/// microseconds.
const LOOK_AFTER: u64 = 4096;
/// Bytes of text that count as a step.
const STEP_BYTES: usize = 64;
/// Limit of llguidance's work on a schema's grammar, and of small steps, in units of about 0.1 microseconds.
const MAX_COST: u64 = 8_000_000;
pub const TOO_LARGE: &str = "the schema is too large: its properties, options and references make too large a grammar";

/// BerthCancel of text_abi.h. Thread-safe; one thread works.
#[derive(Default)]
pub struct Work {
    is_cancelled: AtomicBool,
    steps: AtomicU64,
    looked_at: AtomicU64, // the steps done at the last look
    longest: AtomicU64,   // the most steps from one look to the next
    cost: AtomicU64,
    inner: Mutex<Option<CancellationHandle>>, // of the matcher that works
}

impl Work {
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Relaxed);
        if let Some(handle) = &*self.inner() {
            handle.cancel();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Option<CancellationHandle>> {
        self.inner.lock().unwrap_or_else(|error| error.into_inner())
    }

    /// Lets a matcher work. `handle` is the matcher's: a request to stop reaches it too.
    pub fn of_matcher<T>(
        &self,
        handle: Option<CancellationHandle>,
        work: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, String> {
        *self.inner() = handle;
        self.look()?; // a request before the handle was there
        let done = work();
        *self.inner() = None;
        self.look()?;
        done
    }

    pub fn look(&self) -> Result<(), String> {
        let steps = self.steps.load(Relaxed);
        self.longest.fetch_max(steps - self.looked_at.swap(steps, Relaxed), Relaxed);
        if self.is_cancelled.load(Relaxed) {
            return Err("cancelled".to_string());
        }
        Ok(())
    }

    /// Counts one step.
    pub fn step(&self) -> Result<(), String> {
        self.steps_of(1)
    }

    /// Counts the steps for a text.
    pub fn text(&self, text: &str) -> Result<(), String> {
        self.steps_of(1 + (text.len() / STEP_BYTES) as u64)
    }

    fn steps_of(&self, count: u64) -> Result<(), String> {
        let steps = self.steps.fetch_add(count, Relaxed) + count;
        if steps - self.looked_at.load(Relaxed) >= LOOK_AFTER {
            self.look()?;
        }
        Ok(())
    }

    /// Counts small steps of about 0.1 microseconds, which are charged too: their number may grow faster than the text.
    pub fn small_steps(&self, count: usize) -> Result<(), String> {
        self.charge(count as u64)?;
        self.steps_of(1 + (count / STEP_BYTES) as u64)
    }

    /// Adds to what llguidance is to do for the whole grammar.
    pub fn charge(&self, cost: u64) -> Result<(), String> {
        let before = self.cost.load(Relaxed);
        self.cost.store(before.saturating_add(cost), Relaxed);
        if before.saturating_add(cost) > MAX_COST {
            return Err(TOO_LARGE.to_string());
        }
        Ok(())
    }

    /// All steps, and the most between two looks.
    pub fn counts(&self) -> (u64, u64) {
        (self.steps.load(Relaxed), self.longest.load(Relaxed))
    }
}
