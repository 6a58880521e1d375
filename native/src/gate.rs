//! Where threads wait while one of them works for all, and how they come back to the interpreter: one behind the other.
//!
//! An open gate wakes everybody at once, so that they wake beside each other. Whoever then went for the interpreter would
//! find it taken and sleep again, and being woken takes longer than what most have to do with it. So they have turns:
//! who has the turn has the interpreter, or is about to; the next one gets it when the thread before it waits again, at
//! whichever gate. Until then the others yield the processor to whoever wants it and look again.
//!
//! A turn is a hint and protects nothing. Who does not come back in time is not waited for, nor anybody else at that gate.

use rustix::io::Errno;
use rustix::thread::futex::{wait, wake, Flags, Timespec};
use rustix::thread::sched_yield;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SHUT: u32 = 0;
/// One may come through, and shuts it behind itself.
const AJAR: u32 = 1;
const OPEN: u32 = 2;

/// How long a thread may have the interpreter until it waits again; most take a tenth of it.
const PATIENCE: Duration = Duration::from_micros(100);

/// Whose turn it is; the interpreter is the process's, and so is this.
static TURN: AtomicUsize = AtomicUsize::new(NOBODY);
const NOBODY: usize = 0;

/// Tells threads apart.
fn me() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| here as *const u8 as usize)
}

#[derive(Debug, PartialEq)]
pub enum Waited {
    Through,
    InVain,
    /// By a signal, which the interpreter may have a handler for.
    Interrupted,
}

#[derive(Default)]
pub struct Gate {
    state: AtomicU32,
    /// Whether those who come through take turns.
    turns: AtomicBool,
}

impl Gate {
    /// Wait until one comes through, for so long at most. Without the interpreter.
    pub fn wait(&self, longest: Duration) -> Waited {
        let _ = TURN.compare_exchange(me(), NOBODY, Ordering::AcqRel, Ordering::Relaxed);
        let begun = Instant::now();
        loop {
            let passed = self.state.compare_exchange(AJAR, SHUT, Ordering::AcqRel, Ordering::Acquire);
            if passed != Err(SHUT) {
                self.take_turn();
                return Waited::Through;
            }
            let left = longest.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Waited::InVain;
            }
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            if wait(&self.state, Flags::PRIVATE, SHUT, Some(&left)) == Err(Errno::INTR) {
                return Waited::Interrupted;
            }
        }
    }

    fn take_turn(&self) {
        let me = me();
        let mut seen = NOBODY;
        let mut since = Instant::now();
        while self.turns.load(Ordering::Acquire) {
            match TURN.compare_exchange(NOBODY, me, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) if other != seen => (seen, since) = (other, Instant::now()),
                Err(_) if since.elapsed() > PATIENCE => self.turns.store(false, Ordering::Release),
                Err(_) => {}
            }
            sched_yield();
        }
    }

    /// Let one through; it may be open already.
    pub fn let_in(&self) {
        if self.state.compare_exchange(SHUT, AJAR, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let _ = wake(&self.state, Flags::PRIVATE, 1);
        }
    }

    /// Let everybody through for good; in turn, behind the caller, if they and it will soon wait again.
    pub fn open(&self, turns: bool) {
        if turns {
            TURN.store(me(), Ordering::Release);
        }
        self.turns.store(turns, Ordering::Release);
        self.state.store(OPEN, Ordering::Release);
        let _ = wake(&self.state, Flags::PRIVATE, i32::MAX as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    #[cfg_attr(miri, ignore)]
    fn one_is_let_in_and_the_gate_is_shut_behind_it() {
        let gate = Gate::default();
        assert_eq!(gate.wait(Duration::ZERO), Waited::InVain);
        gate.let_in();
        gate.let_in();
        assert_eq!(gate.wait(LONG), Waited::Through);
        assert_eq!(gate.wait(Duration::from_micros(1)), Waited::InVain);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn everybody_comes_through_an_open_gate_with_turns_and_without_also_if_nobody_waits_again() {
        for turns in [true, false] {
            let (gate, through) = (Gate::default(), AtomicU32::new(0));
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        assert_eq!(gate.wait(LONG), Waited::Through);
                        through.fetch_add(1, Ordering::Relaxed);
                    });
                }
                gate.open(turns);
                gate.let_in();
            });
            assert_eq!(through.load(Ordering::Relaxed), 8);
            assert_eq!(gate.wait(LONG), Waited::Through);
        }
    }
}
