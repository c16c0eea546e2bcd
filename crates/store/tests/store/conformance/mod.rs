//! The specification of `Store`: every function in these modules is a claim about all backends.

mod life;
mod lists;
mod named;
mod pages;
mod retention;
mod rules;
mod run_lists;
mod runs;
mod waiting;

use posthaste_store::Store;
use posthaste_store::journal::{JournalOptions, JournalStore};
use posthaste_store::memory::MemoryStore;
use posthaste_store::sqlite::{SqliteOptions, SqliteStore};

macro_rules! claims {
    ($($group:ident: $($claim:ident)*;)*) => {
        mod on_memory {
            $($(#[test] fn $claim() { super::$group::$claim(&super::MemoryStore::new()); })*)*
        }
        mod on_sqlite {
            $($(#[test] fn $claim() { super::on_file(super::$group::$claim); })*)*
        }
        mod on_journal {
            $($(#[test] fn $claim() { super::on_journal_and_file(super::$group::$claim); })*)*
        }
    };
}

claims! {
    life:
        a_published_message_is_live_and_readable
        live_messages_are_loaded_in_due_order
        an_update_replaces_only_the_live_row
        a_message_ends_at_its_final_line
        an_ended_message_is_readable_while_it_has_log_lines
        a_failed_message_is_kept_whole_as_a_dead_letter
        a_dead_letter_is_published_again_in_one_batch
        a_forged_id_finds_nothing
        duplicates_are_found_until_the_window_ends
        the_window_that_ends_later_counts
    ;
    lists:
        pages_of_logs_show_every_line_once
        log_filters_are_or_within_and_and_between_fields
        lines_carry_their_details
        pages_of_dead_letters_show_every_one_once
        dead_letter_filters_match_the_last_response
        dead_letters_are_visited_without_bodies_until_the_visitor_stops
        a_page_ends_before_its_bodies_get_too_large
        live_messages_are_matched_oldest_first
    ;
    pages:
        names_are_listed_page_by_page
        lists_of_schedules_omit_large_bodies_but_not_the_schedules
        a_page_without_bodies_holds_more_entries
        a_page_ends_before_its_headers_get_too_large
        a_large_run_is_listed_without_its_bodies
        the_secret_of_a_store_stays_the_same
    ;
    rules:
        tenants_never_see_each_other
        an_earlier_owner_is_fenced
        a_failing_batch_leaves_nothing_behind
        counts_follow_every_change
        tenants_and_keys_are_remembered
        positions_never_go_back
        a_probe_and_a_flush_change_nothing
    ;
    named:
        url_groups_are_edited_and_remembered_by_tenant
        queues_are_put_and_dropped_by_tenant
        flow_control_keys_are_put_and_dropped_by_tenant
        schedules_are_put_and_dropped_by_tenant
        a_schedule_changes_its_state_only
        bulk_actions_are_listed_newest_first
        a_bulk_action_is_unfinished_until_it_is_completed
        url_groups_and_bulk_actions_count_toward_stored_bytes
    ;
    waiting:
        callbacks_in_queues_are_loaded_by_position
        the_waiting_count_of_a_key_excludes_messages_in_flight
        messages_that_end_during_the_query_are_not_counted_as_waiting
        the_rows_of_a_queue_are_loaded_by_turn
        messages_in_a_queue_are_not_loaded_by_due_time
        a_lane_has_the_rows_of_its_tenant_only
        the_lag_of_a_queue_counts_turns_not_callbacks
        the_load_of_a_key_counts_due_messages
        live_messages_are_matched_by_queue_and_key
        a_long_queue_is_matched_page_by_page
    ;
    retention:
        log_lines_are_dropped_when_their_bucket_is_old_enough
        live_messages_survive_repeated_retention
        a_message_stays_as_long_as_its_last_log_line
        dead_letters_have_their_own_retention
        retention_has_no_leftovers_in_large_buckets
        finished_bulk_actions_are_dropped_after_a_week
        old_runs_are_dropped_with_their_entries
        failed_runs_are_kept_as_long_as_dead_letters
        a_live_run_is_kept_forever
        retention_has_no_leftovers_of_large_runs
        writes_about_a_dropped_run_are_harmless
        notes_of_a_dropped_run_are_not_stored
    ;
    runs:
        a_run_is_read_back_as_it_was_written
        the_settings_of_a_run_count_toward_stored_bytes
        the_first_entry_can_be_replaced
        a_name_finds_its_newest_run
        waiters_are_returned_in_the_order_they_were_added
        waits_are_listed_with_the_details_of_their_runs
        notes_of_a_run_are_read_back
        a_failure_is_read_back_with_its_responses
        changes_of_absent_parts_are_rejected
        tallies_are_per_tenant_and_bounded
        live_runs_are_counted_and_found_by_all_their_messages
        positions_of_entries_are_never_reused
        a_message_of_a_run_lives_and_ends_like_others
    ;
    run_lists:
        pages_of_runs_show_every_run_once
        a_run_created_between_two_pages_does_not_shift_them
        run_filters_are_or_within_and_and_between_fields
        live_runs_are_matched_oldest_first
        failed_runs_are_listed_by_their_place_in_the_dlq
        a_page_of_runs_ends_before_its_bodies_get_too_large
    ;
}

fn on_journal_and_file(claim: fn(&dyn Store)) {
    let directory = tempfile::tempdir().unwrap();
    let (file, journal) = (directory.path().join("posthaste.db"), directory.path().join("journal"));
    let store = JournalStore::open(&file, &journal, JournalOptions::default()).unwrap();
    claim(&store);
}

fn on_file(claim: fn(&dyn Store)) {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&directory.path().join("posthaste.db"), SqliteOptions::default()).unwrap();
    claim(&store);
}
