//! Rounds: how threads share work that one of them does for all. `topics.wal.rounds` says what for; this is the same
//! without the interpreter, whose threads pay for each line of it one behind the other.
//!
//!     join → as many here as wanted, and nobody leads? → Lead: do it, `end`
//!                                                   no → Wait at the door → `came`: over, lead after all, or wait on

use crate::gate::{Gate, Waited};
use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many rounds at most after one that waited in vain.
const WAIT_FOR_NOBODY: u32 = 16;

/// Where those who gathered for one round wait until it is over.
#[derive(Default)]
pub struct Door {
    gate: Gate,
    over: AtomicBool,
}

/// A caller at a door.
pub struct Place {
    door: Arc<Door>,
    /// Whether it begins the round if those who are wanted stay away.
    starter: bool,
    /// When it began to wait, however often a signal has interrupted that.
    since: Instant,
}

pub enum Joined<T> {
    Lead(Round<T>),
    Wait(Place),
}

pub enum Came<T> {
    Over,
    Lead(Round<T>),
    Again,
}

/// A round that is led: whatever becomes of its work, it has to be ended.
pub struct Round<T> {
    pub work: Vec<T>,
    door: Option<Arc<Door>>,
    in_vain: bool,
    served: usize,
}

struct State<T> {
    gathered: Vec<T>,
    /// For those who wait with the gathered work; made when somebody has to wait.
    door: Option<Arc<Door>>,
    led: bool,
    wanted: usize,
    hurry: u32,
    /// How many rounds wait for nobody when one has waited in vain.
    grudge: u32,
}

pub struct Rounds<T> {
    state: Mutex<State<T>>,
    hand_over: Duration,
    look_again: Duration,
}

impl<T> Rounds<T> {
    /// `hand_over`: how long one caller may take to come back; `look_again`: how long one waits for another at most.
    pub fn new(hand_over: Duration, look_again: Duration) -> Self {
        let state = State { gathered: Vec::new(), door: None, led: false, wanted: 1, hurry: 0, grudge: 1 };
        Rounds { state: Mutex::new(state), hand_over, look_again }
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics in between, and what a round needs is put right by its end.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many wait for the next round.
    pub fn gathered(&self) -> usize {
        self.state().gathered.len()
    }

    /// Add the work to the next round.
    pub fn join(&self, work: T) -> Joined<T> {
        let mut state = self.state();
        state.gathered.push(work);
        if !state.led && state.gathered.len() >= state.wanted {
            return Joined::Lead(state.lead(false));
        }
        let starter = state.door.is_none() && !state.led;
        let door = state.door.get_or_insert_with(Arc::default).clone();
        Joined::Wait(Place { door, starter, since: Instant::now() })
    }

    /// Wait at the door; as the starter only as long as those who are wanted may take to come.
    pub fn wait(&self, place: &Place) -> Waited {
        let longest = if place.starter {
            let wanted = u32::try_from(self.state().wanted).unwrap_or(u32::MAX);
            self.hand_over.saturating_mul(wanted)
        } else {
            self.look_again
        };
        place.door.gate.wait(longest.saturating_sub(place.since.elapsed()))
    }

    /// What to do after having waited.
    pub fn came(&self, place: &mut Place, waited: Waited) -> Came<T> {
        if place.door.over.load(Ordering::Acquire) {
            return Came::Over;
        }
        if waited == Waited::Interrupted {
            return Came::Again;
        }
        place.since = Instant::now();
        let mut state = self.state();
        let here = state.door.as_ref().is_some_and(|door| Arc::ptr_eq(door, &place.door));
        if state.led || !here {
            // Its round was begun by another, who opens the door.
            place.starter = false;
            return Came::Again;
        }
        let enough = state.gathered.len() >= state.wanted;
        if enough || waited == Waited::InVain {
            return Came::Lead(state.lead(!enough));
        }
        place.starter = true;
        Came::Again
    }

    /// The caller waits no longer; somebody else has to begin the round if it was to do that.
    pub fn leave(&self, place: &Place) {
        if place.starter {
            place.door.gate.let_in();
        }
    }

    /// The round is over.
    pub fn end(&self, round: Round<T>) {
        let (waiting, turns) = {
            let mut state = self.state();
            if round.in_vain {
                state.hurry = state.grudge;
                state.grudge = (2 * state.grudge).min(WAIT_FOR_NOBODY);
            } else if state.hurry > 0 {
                state.hurry -= 1;
            } else if round.served > 1 {
                state.grudge = 1;
            }
            state.wanted = if state.hurry > 0 { 1 } else { round.served + state.gathered.len() };
            if let Some(door) = &round.door {
                door.over.store(true, Ordering::Release);
            }
            state.led = false;
            (state.door.clone(), state.hurry == 0)
        };
        // The next round first: its work may begin while those of this one wake up.
        if let Some(door) = waiting {
            door.gate.let_in();
        }
        if let Some(door) = round.door {
            door.gate.open(turns);
        }
    }
}

impl<T> State<T> {
    fn lead(&mut self, in_vain: bool) -> Round<T> {
        self.led = true;
        let work = take(&mut self.gathered);
        Round { served: work.len(), work, door: take(&mut self.door), in_vain }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn rounds<T>(hand_over: Duration, look_again: Duration, wanted: usize) -> Rounds<T> {
        let rounds = Rounds::new(hand_over, look_again);
        rounds.state().wanted = wanted;
        rounds
    }

    fn leads<T>(joined: Joined<T>) -> Round<T> {
        match joined {
            Joined::Lead(round) => round,
            Joined::Wait(_) => panic!("it waits"),
        }
    }

    fn waits<T>(joined: Joined<T>) -> Place {
        match joined {
            Joined::Lead(_) => panic!("it leads"),
            Joined::Wait(place) => place,
        }
    }

    /// The round that a caller leads after having waited once more.
    fn led<T>(rounds: &Rounds<T>, place: &mut Place, expected: Waited) -> Round<T> {
        let waited = rounds.wait(place);
        assert_eq!(waited, expected);
        match rounds.came(place, waited) {
            Came::Lead(round) => round,
            Came::Over | Came::Again => panic!("it does not lead"),
        }
    }

    fn waits_on<T>(rounds: &Rounds<T>, place: &mut Place) {
        let waited = rounds.wait(place);
        assert_eq!(waited, Waited::Through);
        assert!(matches!(rounds.came(place, waited), Came::Again));
    }

    #[test]
    fn a_lone_caller_leads_each_of_its_rounds_at_once() {
        let rounds = rounds(LONG, LONG, 1);
        for n in 0..3 {
            let round = leads(rounds.join(n));
            assert_eq!(round.work, [n]);
            rounds.end(round);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn those_just_served_are_waited_for_and_the_last_to_come_leads() {
        let rounds = rounds(LONG, LONG, 1);
        let first = leads(rounds.join("first"));
        let mut others = ["a", "b", "c"].map(|work| waits(rounds.join(work)));
        rounds.end(first);
        waits_on(&rounds, &mut others[0]);
        let round = leads(rounds.join("again"));
        assert_eq!(round.work, ["a", "b", "c", "again"]);
        rounds.end(round);
        for place in &mut others {
            let waited = rounds.wait(place);
            assert_eq!(waited, Waited::Through);
            assert!(matches!(rounds.came(place, waited), Came::Over));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn those_who_stay_away_are_not_waited_for_again() {
        let rounds = rounds(Duration::ZERO, LONG, 1);
        let first = leads(rounds.join("first"));
        let mut others = ["a", "b", "c"].map(|work| waits(rounds.join(work)));
        rounds.end(first);
        waits_on(&rounds, &mut others[1]);
        let round = led(&rounds, &mut others[1], Waited::InVain);
        assert_eq!(round.work, ["a", "b", "c"]);
        rounds.end(round);
        assert_eq!(leads(rounds.join("late")).work, ["late"]);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_caller_that_was_lost_while_it_waited_holds_up_nobody() {
        let rounds = rounds(LONG, Duration::from_millis(1), 3);
        drop(waits(rounds.join("lost")));
        let mut other = waits(rounds.join("other"));
        assert_eq!(led(&rounds, &mut other, Waited::InVain).work, ["lost", "other"]);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_starter_that_leaves_has_another_begin_the_round() {
        let rounds = rounds(Duration::ZERO, LONG, 3);
        let struck = waits(rounds.join("struck"));
        let mut other = waits(rounds.join("other"));
        assert!(matches!(rounds.came(&mut other, Waited::Interrupted), Came::Again));
        rounds.leave(&struck);
        waits_on(&rounds, &mut other);
        assert_eq!(led(&rounds, &mut other, Waited::InVain).work, ["struck", "other"]);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn however_often_a_caller_is_interrupted_it_waits_no_longer() {
        let rounds = rounds(Duration::from_millis(1), LONG, 2);
        let mut struck = waits(rounds.join("struck"));
        let begun = struck.since;
        while begun.elapsed() < Duration::from_millis(2) {
            assert!(matches!(rounds.came(&mut struck, Waited::Interrupted), Came::Again));
        }
        assert_eq!(struck.since, begun);
        assert_eq!(led(&rounds, &mut struck, Waited::InVain).work, ["struck"]);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn a_starter_whose_round_another_began_sleeps_until_it_is_over() {
        let rounds = rounds(Duration::ZERO, LONG, 2);
        let mut starter = waits(rounds.join("starter"));
        let round = leads(rounds.join("last"));
        let waited = rounds.wait(&starter);
        assert_eq!(waited, Waited::InVain);
        assert!(matches!(rounds.came(&mut starter, waited), Came::Again));
        assert!(!starter.starter);
        rounds.end(round);
        assert_eq!(rounds.wait(&starter), Waited::Through);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn those_who_keep_staying_away_are_waited_for_less_and_less() {
        let rounds = rounds(Duration::ZERO, LONG, 1);
        // Rounds of one caller until the next one would wait for another again.
        let alone_for = || {
            rounds.state().wanted = 2;
            let mut place = waits(rounds.join(()));
            rounds.end(led(&rounds, &mut place, Waited::InVain));
            let mut alone = 0;
            while rounds.state().hurry > 0 {
                rounds.end(leads(rounds.join(())));
                alone += 1;
            }
            alone
        };
        assert_eq!([(); 6].map(|()| alone_for()), [1, 2, 4, 8, 16, 16]);
        rounds.state().wanted = 2;
        drop(waits(rounds.join(())));
        rounds.end(leads(rounds.join(())));
        assert_eq!(alone_for(), 1);
    }

    #[test]
    #[cfg_attr(miri, ignore)]
    fn every_work_of_many_threads_is_served_once() {
        let rounds = Rounds::new(Duration::from_micros(50), LONG);
        let served = Mutex::new(Vec::new());
        let lead = |mut round: Round<u32>| {
            served.lock().unwrap().append(&mut round.work);
            rounds.end(round);
        };
        let share = |work: u32| match rounds.join(work) {
            Joined::Lead(round) => lead(round),
            Joined::Wait(mut place) => loop {
                let waited = rounds.wait(&place);
                match rounds.came(&mut place, waited) {
                    Came::Over => return,
                    Came::Lead(round) => return lead(round),
                    Came::Again => {}
                }
            },
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                scope.spawn(move || (0..200).for_each(|n| share(thread * 200 + n)));
            }
        });
        let mut served = served.into_inner().unwrap();
        served.sort_unstable();
        assert!(served.iter().copied().eq(0..1600));
    }
}
