//! Engines that break one promise each. The conformance suite must reject every one of them: a case that no faulty
//! engine fails proves nothing.
//!
//! [`FaultyWorld`] puts a fault between a good engine and the cases; [`rejections`] tells which cases noticed.

mod accounts;
mod registry;
mod stream;

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use cosky_core::{Accounts, Registry, Ttl};

use crate::conformance::{Case, World};

/// How an engine may be wrong. Each names the promise that it breaks, see docs/consistency.md.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// P1: now and then a list lacks an instance that lives.
    LiveInstanceMissing,
    /// P1: what has less than half of its life left is no longer shown.
    ExpiresEarly,
    /// P1: beats are acknowledged and renew nothing.
    BeatNotMade,
    /// P2: nothing ever expires.
    NeverExpires,
    /// P2: what expires goes without a word to the watchers.
    ExpiresSilently,
    /// P3: a beat brings back what was deregistered.
    BeatBringsBack,
    /// P3: a deregistration leaves no mark, so its beats are told to register again.
    NoMark,
    /// P3: a late repeat of a deregistered registration is taken.
    RepeatComesBack,
    /// P3: a late goodbye of the old owner removes the successor.
    OwnerIgnored,
    /// P3: a beat of what is not there succeeds.
    BeatOfNothingSucceeds,
    /// P4: some events are not told.
    EventMissed,
    /// P4: some events are told twice.
    EventDoubled,
    /// P4: some events change places.
    EventsReordered,
    /// P4: changes between a watch's snapshot and its subscription are lost.
    GapAfterSnapshot,
    /// P4: a watcher that resumes gets a snapshot all the same.
    NeverResumes,
    /// P4: a watcher that resumes hears of what comes only.
    ResumesAtHead,
    /// P4: a filter is not heeded.
    FilterIgnored,
    /// P4: a digest does not tell other metadata.
    DigestWithoutMetadata,
    /// P4: a digest covers the whole namespace, whatever services are named.
    DigestOfAll,
    /// P5: every store has the same id.
    StoresLookAlike,
    /// P5: a store is always opened for the first time.
    OpeningsNotCounted,
    /// P5: an answer that is long past says that it is live.
    StaleRead,
    /// P6: some writes are acknowledged and not made.
    AcknowledgedOnly,
    /// P6: a patch that is refused in the end is written half.
    HalfWritten,
    /// P6: a purge that is refused has removed services.
    HalfPurged,
    /// P7: a change is applied twice.
    AppliedTwice,
    /// P7: two that change metadata at once overwrite each other.
    LostUpdate,
    /// P8: a deregistration is told with the word of an expiry.
    WrongWord,
    /// P8: an instance is told before its service.
    WrongOrder,
    /// P8: the event tells the old state.
    OldStateTold,
    /// P9: a batch of beats may be of any size.
    UnboundedBatch,
    /// P9: a watcher's queue grows as long as it does not read.
    UnboundedWatcher,
    /// P9: there may be any number of API tokens.
    UnboundedTokens,
    /// P10: tries of a password are not counted.
    NeverFreezes,
    /// P10: a refresh token buys again and again.
    RefreshTwice,
    /// P10: a new password leaves old sessions good.
    GenerationStays,
    /// P10: each server has a signing key of its own.
    KeyPerCall,
    /// P11: an index is older than what its answer holds.
    IndexBehind,
    /// P11: the first read after a write does not see it.
    ReadBeforeWrite,
}

impl Fault {
    /// Every fault with the case that was written against it.
    pub const ALL: &[(Self, &str)] = &[
        (Self::LiveInstanceMissing, "beats::beats_keep_an_instance_alive"),
        (Self::ExpiresEarly, "expiry::the_dead_leave_in_time"),
        (Self::BeatNotMade, "beats::beats_keep_an_instance_alive"),
        (Self::NeverExpires, "expiry::the_dead_leave_in_time"),
        (Self::ExpiresSilently, "expiry::each_death_is_told_once"),
        (Self::BeatBringsBack, "beats::a_beat_of_the_deregistered_is_told_so"),
        (Self::NoMark, "beats::a_beat_of_the_deregistered_is_told_so"),
        (Self::RepeatComesBack, "registration::a_late_repeat_is_refused"),
        (Self::OwnerIgnored, "deregistration::a_late_goodbye_spares_the_successor"),
        (Self::BeatOfNothingSucceeds, "beats::a_late_beat_brings_nothing_back"),
        (Self::EventMissed, "watch::changes_are_told_in_order"),
        (Self::EventDoubled, "watch::changes_are_told_in_order"),
        (Self::EventsReordered, "watch::changes_are_told_in_order"),
        (Self::GapAfterSnapshot, "watch::nothing_is_missed_or_doubled_at_the_beginning"),
        (Self::NeverResumes, "watch::a_watch_resumes_anywhere"),
        (Self::ResumesAtHead, "watch::a_watch_resumes_anywhere"),
        (Self::FilterIgnored, "watch::a_filter_covers_what_it_names"),
        (Self::DigestWithoutMetadata, "digest::every_change_is_in_the_digest"),
        (Self::DigestOfAll, "digest::a_digest_covers_its_scope"),
        (Self::StoresLookAlike, "store::another_store_has_another_id"),
        (Self::OpeningsNotCounted, "store::reopening_is_counted"),
        (Self::StaleRead, "reads::a_read_is_not_older_than_an_event"),
        (Self::AcknowledgedOnly, "reads::everybody_reads_their_own_writes"),
        (Self::HalfWritten, "metadata::a_patch_that_is_too_large_changes_nothing"),
        (Self::HalfPurged, "namespaces::a_live_instance_forbids_purging"),
        (Self::AppliedTwice, "watch::changes_are_told_in_order"),
        (Self::LostUpdate, "metadata::patches_at_once_all_count"),
        (Self::WrongWord, "deregistration::deregistering_is_final_and_told_once"),
        (Self::WrongOrder, "registration::a_new_service_is_told_before_its_instance"),
        (Self::OldStateTold, "metadata::setting_replaces_all"),
        (Self::UnboundedBatch, "beats::batches_are_bounded"),
        (Self::UnboundedWatcher, "lag::a_reader_too_slow_is_cut_off"),
        (Self::UnboundedTokens, "accounts::api_tokens_are_bounded"),
        (Self::NeverFreezes, "accounts::tries_are_counted_and_frozen"),
        (Self::RefreshTwice, "accounts::a_refresh_token_buys_once"),
        (Self::GenerationStays, "accounts::a_new_password_raises_the_generation"),
        (Self::KeyPerCall, "accounts::there_is_one_signing_key"),
        (Self::IndexBehind, "reads::a_watch_goes_on_from_a_read"),
        (Self::ReadBeforeWrite, "reads::everybody_reads_their_own_writes"),
    ];
}

/// A world whose engine has a fault.
pub struct FaultyWorld {
    good: Arc<dyn World>,
    registry: Arc<dyn Registry>,
    accounts: Arc<dyn Accounts>,
    fault: Option<Fault>,
}

impl FaultyWorld {
    /// Puts `fault` in front of the engine of `good`, which must be a store. Without one the cases must pass as before.
    pub fn new(good: Arc<dyn World>, fault: Option<Fault>) -> Self {
        let registry = Arc::new(registry::Faulty::new(good.registry(), fault));
        let accounts = Arc::new(accounts::Faulty::new(good.accounts(), fault));
        Self { good, registry, accounts, fault }
    }
}

#[async_trait]
impl World for FaultyWorld {
    fn registry(&self) -> Arc<dyn Registry> {
        Arc::clone(&self.registry)
    }

    fn accounts(&self) -> Arc<dyn Accounts> {
        Arc::clone(&self.accounts)
    }

    async fn reopen(&self) -> Arc<dyn World> {
        Arc::new(Self::new(self.good.reopen().await, self.fault))
    }

    async fn another(&self) -> Arc<dyn World> {
        Arc::new(Self::new(self.good.another().await, self.fault))
    }

    fn ring(&self) -> usize {
        self.good.ring()
    }

    fn ttl(&self) -> Ttl {
        self.good.ttl()
    }

    fn now(&self) -> Duration {
        self.good.now()
    }

    async fn pass(&self, time: Duration) {
        self.good.pass(time).await;
    }

    fn slack(&self) -> Duration {
        self.good.slack()
    }

    fn patience(&self) -> Duration {
        self.good.patience()
    }
}

/// Runs `cases`, each in a world of its own, and gives the names of those that failed. All run at the same time, since
/// a case that fails often does so by waiting in vain.
pub async fn rejections(
    cases: impl IntoIterator<Item = Case>,
    world: impl Fn() -> Pin<Box<dyn Future<Output = Arc<dyn World>> + Send>>,
) -> Vec<&'static str> {
    let mut running = Vec::new();
    for case in cases {
        let world = world().await;
        running.push((case.name, tokio::spawn((case.run)(world))));
    }
    let mut failed = Vec::new();
    for (name, case) in running {
        if case.await.is_err() {
            failed.push(name);
        }
    }
    failed
}

/// True at every `period`-th call.
#[derive(Debug)]
struct Every {
    period: u32,
    calls: Mutex<u32>,
}

impl Every {
    fn new(period: u32) -> Self {
        Self { period, calls: Mutex::new(0) }
    }

    fn now(&self) -> bool {
        let mut calls = self.calls.lock().expect("nothing panics under this lock");
        *calls += 1;
        calls.is_multiple_of(self.period)
    }
}
