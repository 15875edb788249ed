//! The protection window: how long absence is no answer after the store had an incident.
//!
//! Plain values: time comes in as an argument, and what follows from a change is for the caller to do.

use std::time::Duration;

/// What remains of a life may be seen as so much less: times on the wire are whole seconds, and each is rounded to the
/// safe side.
const ROUNDED: Duration = Duration::from_millis(2500);
/// The shortest window: of a short life, only its end may have been seen.
const SHORTEST: Duration = Duration::from_secs(5);

/// When absence is ignored. Two causes open it. An incident does, until the longest life that was seen and two periods
/// have passed since the store is back: then everybody who beats has had the time to register again. And the registry
/// does by saying that it is itself protected, until it says otherwise. Neither lasts longer than the limit.
#[derive(Debug)]
pub(crate) struct Protection {
    on: bool,
    limit: Duration,
    longest: Duration,
    incident: Option<Window>,
    /// Since when the registry says so.
    said: Option<Duration>,
    open: bool,
}

#[derive(Debug, Clone, Copy)]
enum Window {
    /// The store is not back yet.
    Away,
    Until(Duration),
}

/// What a change did to the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It is as it was.
    Same,
    /// There is something new to protect: all that is known now.
    Begun,
    /// It is over: what is still absent goes.
    Ended,
}

impl Protection {
    pub(crate) fn new(on: bool, limit: Duration) -> Self {
        Self { on, limit, longest: Duration::ZERO, incident: None, said: None, open: false }
    }

    /// Notes how long something lives that was just read.
    pub(crate) fn saw_life(&mut self, life: Duration) {
        self.longest = self.longest.max(life);
    }

    /// The store had an incident. `here`: it is back already.
    ///
    /// Where nothing with an end was ever seen, nobody will register again by himself and nothing is waited for.
    pub(crate) fn incident(&mut self, now: Duration, here: bool) -> Turn {
        if !self.on || self.longest.is_zero() {
            return Turn::Same;
        }
        self.incident = Some(Window::Away);
        if here {
            self.back(now);
        }
        self.open = true;
        Turn::Begun
    }

    /// The store answers.
    pub(crate) fn back(&mut self, now: Duration) {
        if matches!(self.incident, Some(Window::Away)) {
            // Two periods, each a third of the life.
            let length = (self.longest.saturating_add(ROUNDED).saturating_mul(5) / 3).max(SHORTEST);
            self.incident = Some(Window::Until(now.saturating_add(length.min(self.limit))));
        }
    }

    /// The registry says whether it is protected itself.
    pub(crate) fn registry_says(&mut self, protected: bool, now: Duration) -> Turn {
        if !self.on {
            return Turn::Same;
        }
        match (protected, self.said) {
            (true, None) => {
                self.said = Some(now);
                self.open = true;
                Turn::Begun
            }
            (false, Some(_)) => {
                self.said = None;
                self.pass(now)
            }
            _ => Turn::Same,
        }
    }

    /// Time passes. Not to be called while the store does not answer: the window ends by what it holds.
    pub(crate) fn pass(&mut self, now: Duration) -> Turn {
        if matches!(self.incident, Some(Window::Until(end)) if end <= now) {
            self.incident = None;
        }
        let said = self.said.is_some_and(|since| now < since.saturating_add(self.limit));
        let before = std::mem::replace(&mut self.open, said || self.incident.is_some());
        if before && !self.open { Turn::Ended } else { Turn::Same }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn protection() -> Protection {
        let mut protection = Protection::new(true, LIMIT);
        protection.saw_life(s(30));
        protection.saw_life(s(12));
        protection
    }

    #[test]
    fn it_lasts_for_the_longest_life_and_two_periods_after_the_store_is_back() {
        let mut protection = protection();
        assert_eq!(protection.incident(s(100), false), Turn::Begun);
        assert_eq!(protection.pass(s(1000)), Turn::Same, "the store is away");
        protection.back(s(1000));
        protection.back(s(1040));
        assert_eq!((protection.pass(s(1054)), protection.is_open()), (Turn::Same, true));
        assert_eq!((protection.pass(s(1055)), protection.is_open()), (Turn::Ended, false));
        assert_eq!(protection.pass(s(1056)), Turn::Same);
    }

    #[test]
    fn a_short_life_of_which_only_the_end_was_seen_is_waited_for_all_the_same() {
        let mut protection = Protection::new(true, LIMIT);
        protection.saw_life(Duration::from_millis(1));
        protection.incident(s(100), true);
        assert_eq!(protection.pass(Duration::from_millis(104_999)), Turn::Same);
        assert_eq!(protection.pass(s(105)), Turn::Ended);
        // 6 s, of which 4 s were left, of which 1.5 s were seen.
        protection.saw_life(Duration::from_millis(1500));
        protection.incident(s(200), true);
        assert_eq!(protection.pass(s(206)), Turn::Same);
        assert_eq!(protection.pass(s(207)), Turn::Ended);
    }

    #[test]
    fn another_incident_begins_it_anew() {
        let mut protection = protection();
        protection.incident(s(100), true);
        assert_eq!(protection.incident(s(140), true), Turn::Begun);
        assert_eq!(protection.pass(s(194)), Turn::Same);
        assert_eq!(protection.pass(s(195)), Turn::Ended);
    }

    #[test]
    fn the_registry_says_when_its_own_begins_and_ends() {
        let mut protection = protection();
        assert_eq!(protection.registry_says(true, s(1)), Turn::Begun);
        assert_eq!(protection.registry_says(true, s(2)), Turn::Same);
        assert_eq!(protection.registry_says(false, s(3)), Turn::Ended);
        assert_eq!(protection.registry_says(false, s(4)), Turn::Same);
    }

    #[test]
    fn the_registrys_word_does_not_end_what_an_incident_began() {
        let mut protection = protection();
        protection.incident(s(100), true);
        protection.registry_says(true, s(100));
        assert_eq!(protection.registry_says(false, s(110)), Turn::Same);
        assert_eq!(protection.pass(s(155)), Turn::Ended);
    }

    #[test]
    fn neither_lasts_longer_than_the_limit() {
        let mut protection = Protection::new(true, s(10));
        protection.saw_life(s(86_400));
        protection.incident(s(100), true);
        assert_eq!(protection.pass(s(110)), Turn::Ended);
        protection.registry_says(true, s(200));
        assert_eq!(protection.pass(s(209)), Turn::Same);
        assert_eq!(protection.pass(s(210)), Turn::Ended);
    }

    #[test]
    fn lives_and_limits_without_end_are_no_trouble() {
        let mut protection = Protection::new(true, Duration::MAX);
        protection.saw_life(Duration::MAX);
        protection.incident(s(100), true);
        protection.registry_says(true, s(100));
        assert_eq!(protection.pass(s(1 << 40)), Turn::Same);
    }

    #[test]
    fn it_can_be_switched_off_and_waits_for_nobody_who_never_comes() {
        let mut off = Protection::new(false, LIMIT);
        off.saw_life(s(30));
        assert_eq!(off.incident(s(1), true), Turn::Same);
        assert_eq!(off.registry_says(true, s(1)), Turn::Same);
        assert!(!off.is_open());
        let mut permanent = Protection::new(true, LIMIT);
        assert_eq!(permanent.incident(s(1), true), Turn::Same);
        assert!(!permanent.is_open());
    }
}
