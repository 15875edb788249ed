//! The cases that every engine must pass, whatever stands behind it: embedded, Redis, or a server behind HTTP.
//!
//! A case is an async function over a [`World`], and panics when the engine breaks a promise. The test files of an
//! engine hold no cases of their own for what is common; they name a world and let a macro make one test per case:
//!
//! ```text
//! cosky_testkit::registry_tests!(MyWorld::new().await);
//! ```
//!
//! * `registry_tests!`: for every engine.
//! * `store_tests!`: for engines that are stores: accounts, and limits that a network in between would blur.
//! * `long_tests!`: for stores whose world has a clock of its own; hours pass in them.

pub mod accounts;
pub mod beats;
pub mod deregistration;
pub mod digest;
pub mod expiry;
pub mod freeze;
pub mod lag;
pub mod metadata;
pub mod namespaces;
pub mod reads;
pub mod registration;
pub mod services;
pub mod store;
pub mod topology;
mod view;
pub mod watch;
mod world;

use std::{future::Future, pin::Pin, sync::Arc};

pub use world::World;

/// Panics when the engine breaks a promise.
pub type Verdict = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A case by its name, for those who run them by themselves.
#[derive(Clone, Copy)]
pub struct Case {
    /// Topic and function.
    pub name: &'static str,
    /// Judges the engine of a fresh world.
    pub run: fn(Arc<dyn World>) -> Verdict,
}

/// Makes the list of cases, and the macro that makes a test of each, so that no case can be left out of one of them.
macro_rules! suite {
    ($d:tt $(#[$doc:meta])* $list:ident, $tests:ident { $($topic:ident: $($case:ident),+;)+ }) => {
        $(#[$doc])*
        pub const $list: &[Case] = &[$($(Case {
            name: concat!(stringify!($topic), "::", stringify!($case)),
            run: |world| Box::pin($topic::$case(world)),
        }),+),+];

        $(#[$doc])*
        ///
        /// Takes an expression that gives a fresh world and may await.
        #[macro_export]
        macro_rules! $tests {
            ($d world:expr) => {
                $(mod $topic {
                    use super::*;
                    $(
                        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                        async fn $case() {
                            $crate::conformance::$topic::$case(::std::sync::Arc::new($d world)).await;
                        }
                    )+
                })+
            };
        }
    };
}

suite! { $
    /// The cases for every engine.
    REGISTRY, registry_tests {
        namespaces:
            added_namespaces_are_listed_in_order,
            the_index_and_the_data_are_independent,
            watchers_do_not_hear_of_the_index,
            one_of_many_adds_and_one_removes,
            namespaces_do_not_share_data,
            purging_tells_whether_anything_was_there,
            purging_removes_everything_and_tells,
            a_live_instance_forbids_purging,
            a_live_instance_forbids_purging_of_many,
            dead_instances_do_not_forbid_purging,
            purging_never_takes_an_acknowledged_instance;
        services:
            services_are_listed_in_order,
            setting_and_removing_are_told_once,
            a_live_instance_keeps_its_service,
            dead_members_go_before_their_service,
            one_of_many_sets_a_service,
            registering_wins_over_removing_the_service,
            numbers_count_what_lives;
        registration:
            what_is_registered_is_read_back,
            a_permanent_instance_has_no_end,
            a_default_ttl_is_given,
            the_largest_metadata_is_kept,
            a_new_service_is_told_before_its_instance,
            registering_again_replaces_everything,
            owners_are_kept_replaced_and_made,
            a_late_repeat_is_refused,
            a_new_owner_clears_the_mark,
            the_mark_lasts_two_ttls,
            many_register_at_once,
            one_instance_has_one_owner;
        beats:
            beats_keep_an_instance_alive,
            each_is_answered_in_order,
            batches_are_bounded,
            a_beat_leaves_a_permanent_instance_permanent,
            each_is_renewed_by_its_own_ttl,
            a_late_beat_brings_nothing_back,
            a_beat_of_the_deregistered_is_told_so,
            a_successful_beat_means_found,
            a_beat_keeps_an_edit;
        deregistration:
            deregistering_is_final_and_told_once,
            a_wrong_name_removes_nothing,
            a_late_goodbye_spares_the_successor,
            a_stranger_removes_nothing,
            what_has_expired_cannot_be_deregistered,
            one_of_many_deregisters;
        metadata:
            setting_replaces_all,
            patching_merges,
            a_patch_that_is_too_large_changes_nothing,
            what_is_not_there_cannot_be_edited,
            an_edit_does_not_prolong_a_life,
            patches_at_once_all_count;
        expiry:
            the_dead_leave_in_time,
            each_death_is_told_once,
            the_dead_may_come_back,
            the_last_registration_decides;
        reads:
            what_is_absent_reads_as_nothing,
            instances_belong_to_one_service,
            instances_are_sorted,
            everybody_reads_their_own_writes,
            reads_know_their_place,
            a_watch_goes_on_from_a_read,
            a_read_is_not_older_than_an_event,
            an_abandoned_write_is_whole_or_absent;
        watch:
            a_watch_begins_with_a_snapshot,
            changes_are_told_in_order,
            a_watch_resumes_anywhere,
            a_resume_at_the_head_waits,
            a_foreign_place_gets_a_snapshot,
            a_filter_covers_what_it_names,
            other_namespaces_are_silent,
            nothing_is_missed_or_doubled_at_the_beginning,
            nothing_is_missed_or_doubled_by_resuming,
            what_is_told_adds_up_to_what_is_read,
            a_slow_reader_delays_nobody;
        digest:
            equal_content_has_one_digest,
            every_change_is_in_the_digest,
            life_is_not_in_the_digest,
            the_dead_leave_the_digest,
            a_digest_covers_its_scope,
            a_digest_is_of_its_index;
        store:
            every_snapshot_names_the_store,
            reopening_is_counted,
            another_store_has_another_id;
        topology:
            dependencies_are_noted_once,
            nobody_depends_on_themselves,
            what_many_note_at_once_is_kept;
    }
}

suite! { $
    /// The cases for stores.
    STORE, store_tests {
        accounts:
            an_account_is_added_once,
            a_new_password_raises_the_generation,
            one_of_many_adds_an_account,
            there_is_one_signing_key,
            tries_are_counted_and_frozen,
            tries_at_once_are_all_counted,
            a_refresh_token_buys_once,
            api_tokens_are_listed_and_revoked,
            api_tokens_are_bounded;
        lag:
            a_reader_too_slow_is_cut_off;
    }
}

suite! { $
    /// The cases for stores in which hours pass.
    LONG, long_tests {
        freeze:
            a_freeze_ends;
    }
}
