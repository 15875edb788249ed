//! What may go wrong, and until when.

use std::{sync::Arc, time::Duration};

use cosky_core::Error;
use cosky_testkit::sim::{Link, Quality, Restart, Sim, VirtualClock};
use rand::{RngExt as _, rngs::StdRng};

use crate::judge::Judge;

/// What the faults strike.
pub(crate) struct Target {
    pub(crate) sim: Sim,
    pub(crate) servers: usize,
    pub(crate) links: Vec<Arc<Link>>,
    pub(crate) clocks: Vec<VirtualClock>,
    pub(crate) judge: Judge,
    /// The links when nothing is wrong.
    pub(crate) quality: Quality,
    /// Whether links may fail unnoticed.
    pub(crate) unreliable: bool,
}

impl Target {
    /// One fault, over after at most `longest`.
    pub(crate) fn strike(&self, rng: &mut StdRng, longest: Duration) {
        let at = rng.random_range(0..self.links.len());
        let link = &self.links[at];
        let time =
            |rng: &mut StdRng, most: u64| Duration::from_millis(rng.random_range(0..=most)).min(longest);
        match rng.random_range(0..100) {
            0..20 => {
                let time = time(rng, 6_000);
                link.cut(time);
                self.disturbed(Some(at), time);
            }
            20..40 => {
                let (time, streams_only, reset) =
                    (time(rng, 32_000), rng.random_bool(0.4), rng.random_bool(0.3));
                link.freeze(time, streams_only, reset);
                self.disturbed(Some(at), time);
            }
            40..48 => {
                link.end_streams(rng.random_bool(0.5));
                self.disturbed(Some(at), Duration::ZERO);
            }
            48..54 => {
                link.fall_behind();
                self.disturbed(Some(at), Duration::ZERO);
            }
            54..60 => {
                let errors = [
                    Error::unavailable("shutting down"),
                    Error::Exhausted { what: "watchers", limit: 1 },
                    Error::Unauthorized { reason: "the token has expired".into() },
                ];
                let time = time(rng, 4_000);
                link.refuse(errors[rng.random_range(0..errors.len())].clone(), time);
                // A stream that is open goes on; one that is asked for now has to wait.
                if rng.random_bool(0.7) {
                    link.cut(Duration::ZERO);
                }
                self.disturbed(Some(at), time);
            }
            60..70 => {
                let time = time(rng, 4_000);
                self.sim.restart_server(rng.random_range(0..self.servers), time);
                self.disturbed(None, time);
            }
            70..76 => {
                let time = time(rng, 8_000);
                self.sim.cut_off_server(rng.random_range(0..self.servers), time);
                self.disturbed(None, time);
            }
            76..80 => self.sim.copy_store(),
            80..90 => {
                let restarts = [Restart::Kept, Restart::Kept, Restart::Emptied, Restart::Copy];
                let time = time(rng, 4_000);
                self.sim.restart_store(restarts[rng.random_range(0..restarts.len())], time);
                self.disturbed(None, time);
            }
            90..94 => {
                self.clocks[at].suspend(Duration::from_secs(rng.random_range(1..200)));
                if rng.random_bool(0.5) {
                    link.cut(Duration::ZERO);
                }
                self.disturbed(Some(at), Duration::ZERO);
            }
            _ => self.clocks[at].set_wrong_by(rng.random_range(-600_000..600_000)),
        }
    }

    /// From now on changes go missing, come twice or late, on links where that can happen; or no more.
    pub(crate) fn mislead(&self, on: bool, rng: &mut StdRng) {
        for link in self.links.iter().filter(|_| self.unreliable) {
            let share = if on { rng.random_range(0.0..0.15) } else { 0.0 };
            link.set_quality(Quality { dropped: share, doubled: share, overtaken: share, ..self.quality });
        }
    }

    fn disturbed(&self, cache: Option<usize>, time: Duration) {
        let end = self.sim.now() + time;
        let all = 0..self.links.len();
        all.filter(|at| cache.is_none_or(|cache| cache == *at)).for_each(|at| self.judge.disturbed(at, end));
    }
}
