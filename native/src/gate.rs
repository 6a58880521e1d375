//! Where threads wait while one of them works for all, and how they come back to the interpreter: one behind the other.
//!
//! Being woken takes longer than what most have to do with the interpreter, so some are woken ahead. Whoever then went for
//! it would find it taken and sleep again. So they have turns: who has the turn has the interpreter, or is about to; the
//! next one gets it when the thread before it waits again, at whichever gate. Until then it yields the processor to
//! whoever wants it and looks again. Whoever gets the turn wakes another, so that there are never more who look.
//!
//! A turn is a hint and protects nothing. Who does not wait again in time is not waited for, nor anybody else at that gate.

use rustix::io::Errno;
use rustix::thread::futex::{wait, wake, Flags, Timespec};
use rustix::thread::sched_yield;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const SHUT: u32 = 0;
/// One may come through, and shuts it behind itself.
const AJAR: u32 = 1;
const OPEN: u32 = 2;

/// How many are awake and without a turn.
const AHEAD: u32 = 6;
const ALL: u32 = i32::MAX as u32;

/// How long a thread may have the interpreter until it waits again; most take a tenth of it.
const PATIENCE: Duration = Duration::from_micros(100);
/// And how long a turn is waited for, whoever has it: other gates' threads have turns too.
const ENOUGH: Duration = Duration::from_millis(1);

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
            match self.state.compare_exchange(AJAR, SHUT, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Waited::Through,
                Err(SHUT) => {}
                Err(_) => {
                    self.take_turn();
                    return Waited::Through;
                }
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

    /// Come through the open gate when it is this thread's turn, and have another one come.
    fn take_turn(&self) {
        let me = me();
        let begun = Instant::now();
        let (mut seen, mut since) = (NOBODY, begun);
        while self.turns.load(Ordering::Acquire) {
            match TURN.compare_exchange(NOBODY, me, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.wake(1);
                    return;
                }
                Err(other) => {
                    if other != seen {
                        (seen, since) = (other, Instant::now());
                    }
                    if since.elapsed() > PATIENCE || begun.elapsed() > ENOUGH {
                        self.turns.store(false, Ordering::Release);
                        self.wake(ALL);
                        return;
                    }
                }
            }
            sched_yield();
        }
    }

    fn wake(&self, count: u32) {
        // It fails for no address of ours.
        let _ = wake(&self.state, Flags::PRIVATE, count);
    }

    /// Let one through; it may be open already.
    pub fn let_in(&self) {
        if self.state.compare_exchange(SHUT, AJAR, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.wake(1);
        }
    }

    /// Let everybody through for good; in turn, behind the caller, if they and it will soon wait again.
    pub fn open(&self, turns: bool) {
        if turns {
            TURN.store(me(), Ordering::Release);
        }
        self.turns.store(turns, Ordering::Release);
        self.state.store(OPEN, Ordering::Release);
        self.wake(if turns { AHEAD } else { ALL });
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
