//! How steps are grouped, and how they stand.

use super::story::{Story, branch, plan, result, step, with_failure_function};

fn check(cases: &[(&str, Story, &str)]) {
    for (name, story, expected) in cases {
        assert_eq!(story.digest(), *expected, "{name}");
    }
}

#[test]
fn a_sequence_shows_what_was_done_and_what_is_tried() {
    let charged = || Story::new().publishes(&[result(1, "charge")]);
    check(&[
        ("triggered", Story::new(), "sequential(init success) next(? progress)"),
        ("published, not answered", charged(), "sequential(init success) sequential(charge success) next(? progress)"),
        ("answered", charged().answers(0), "sequential(init success) sequential(charge success) next(? progress)"),
        (
            "answered by somebody who does nothing",
            charged().answers(0).answers(1),
            "sequential(init success) sequential(charge success)",
        ),
        ("finished", charged().answers(0).finishes(), "sequential(init success) sequential(charge success)"),
        (
            "tried again",
            charged().answers(0).stumbles(1),
            "sequential(init success) sequential(charge success) next(ship retry 1!)",
        ),
        (
            "failed",
            charged().answers(0).stumbles(1).fails(1),
            "sequential(init success) sequential(charge success) next(ship failed 2!)",
        ),
        (
            "done the second time",
            Story::new().stumbles(0).does(0, result(1, "charge")),
            "sequential(init success) sequential(charge success 1!) next(? progress)",
        ),
        (
            "canceled",
            charged().answers(0).canceled(),
            "sequential(init success) sequential(charge success) next(? canceled)",
        ),
        (
            "canceled while it was tried again",
            charged().answers(0).stumbles(1).canceled(),
            "sequential(init success) sequential(charge success) next(ship canceled 1!)",
        ),
        (
            "published, but the answer got lost",
            charged().stumbles(0),
            "sequential(init success) sequential(charge success) next(ship retry 1!, ? progress)",
        ),
        (
            "too long",
            charged().answers(0).overflows(),
            "sequential(init success) sequential(charge success) next(? failed 1!)",
        ),
    ]);
}

#[test]
fn a_failed_first_delivery_is_two_groups() {
    check(&[
        ("an answer", Story::new().fails(0), "sequential(init success) next(ship failed 1!)"),
        ("no workflow", Story::new().answers_like_a_stranger(0), "sequential(init success) next(? failed 1!)"),
        ("retried", Story::new().stumbles(0).fails(0), "sequential(init success) next(ship failed 2!)"),
        ("told of", Story::with(with_failure_function()).fails(0), "sequential(init success) next(ship failed 1!)"),
    ]);
}

#[test]
fn branches_are_one_group_whatever_the_order_of_their_results() {
    let planned = || Story::new().publishes(&[plan(1, "a", "Run"), plan(2, "b", "Run")]).answers(0);
    let init = "sequential(init success)";
    let table = [
        ("planned", planned(), "parallel(a progress, b progress)"),
        ("the first is there", planned().does(1, branch(1, "a")), "parallel(a success, b progress)"),
        ("the second is there", planned().does(2, branch(2, "b")), "parallel(a progress, b success)"),
        (
            "both are there",
            planned().does(1, branch(1, "a")).does(2, branch(2, "b")),
            "parallel(a success, b success) next(? progress)",
        ),
        (
            "both, the other way round",
            planned().does(2, branch(2, "b")).does(1, branch(1, "a")),
            "parallel(a success, b success) next(? progress)",
        ),
        (
            "a step follows",
            planned().does(2, branch(2, "b")).does(1, branch(1, "a")).does(4, result(3, "c")),
            "parallel(a success, b success) sequential(c success) next(? progress)",
        ),
        ("one is tried again", planned().stumbles(2), "parallel(a progress, b retry 1!)"),
        ("one fails", planned().does(1, branch(1, "a")).fails(2), "parallel(a success, b failed 1!)"),
        ("one fails, the other is under way", planned().fails(1), "parallel(a failed 1!, b canceled)"),
        ("canceled", planned().does(2, branch(2, "b")).canceled(), "parallel(a canceled, b success)"),
        (
            "the delivery of a result that changes nothing fails",
            planned().does(1, branch(1, "a")).fails(3),
            "parallel(a success, b canceled) next(ship failed 1!)",
        ),
        (
            "a result, but its plan fails",
            planned().publishes(&[branch(1, "a")]).fails(1),
            "parallel(a failed 1!, b canceled)",
        ),
    ];
    for (name, story, expected) in table {
        assert_eq!(story.digest(), format!("{init} {expected}"), "{name}");
    }
}

#[test]
fn groups_that_follow_one_another_stay_apart() {
    let story = Story::new()
        .publishes(&[plan(1, "a", "Run"), plan(2, "b", "Run")])
        .does(1, branch(1, "a"))
        .does(2, branch(2, "b"))
        .publishes(&[plan(3, "c", "Run"), plan(4, "d", "Run")])
        .answers(4)
        .does(5, branch(3, "c"));
    let expected = "sequential(init success) parallel(a success, b success) parallel(c success, d progress)";
    assert_eq!(story.answers(0).digest(), expected);
}

#[test]
fn what_comes_twice_counts_once() {
    let mut other = result(1, "charge");
    other["out"] = "something else".into();
    check(&[
        (
            "a result",
            Story::new().does(0, result(1, "charge")).publishes(&[other]),
            "sequential(init success) sequential(charge success) next(? progress)",
        ),
        (
            "a plan",
            Story::new()
                .publishes(&[plan(1, "a", "Run"), plan(2, "b", "Run")])
                .publishes(&[plan(1, "again", "Run"), plan(2, "again", "Run")]),
            "sequential(init success) parallel(a progress, b progress)",
        ),
    ]);
}

#[test]
fn sleeping_steps_are_in_progress_until_they_are_due() {
    let asleep = || Story::new().publishes_for_later(&[step(1, "nap", "SleepFor")], 5_000).answers(0);
    check(&[
        ("asleep", asleep(), "sequential(init success) sequential(nap progress)"),
        ("due", asleep().wait_ms(5_000), "sequential(init success) sequential(nap success) next(? progress)"),
        ("canceled", asleep().canceled(), "sequential(init success) sequential(nap canceled)"),
    ]);
    let planned = [plan(1, "nap", "SleepFor"), plan(2, "b", "Run")];
    let branches = Story::new().publishes_for_later(&planned, 5_000);
    assert_eq!(branches.log()["steps"][1]["steps"][0]["nextDeliveryTime"], branches.now.as_millis() + 5_000);
}

#[test]
fn calls_are_steps_from_the_start() {
    let called = || Story::new().calls(1, "ship", 1, true).answers(0);
    let result = || step(1, "ship", "Call");
    check(&[
        ("asked for", called(), "sequential(init success) sequential(ship progress)"),
        ("tried again", called().stumbles(1), "sequential(init success) sequential(ship retry 1!)"),
        ("answered", called().answers(1), "sequential(init success) sequential(ship progress)"),
        ("a failure is an answer", called().fails(1), "sequential(init success) sequential(ship progress 1!)"),
        (
            "the endpoint does not take the answer yet",
            called().answers(1).stumbles(2),
            "sequential(init success) sequential(ship retry 1!)",
        ),
        (
            "the endpoint never takes the answer",
            called().answers(1).fails(2),
            "sequential(init success) sequential(ship failed 1!)",
        ),
        (
            "done",
            called().answers(1).does(2, result()),
            "sequential(init success) sequential(ship success) next(? progress)",
        ),
        ("canceled", called().canceled(), "sequential(init success) sequential(ship canceled)"),
        (
            "not forgiven",
            Story::new().calls(1, "ship", 1, false).answers(0).fails(1),
            "sequential(init success) sequential(ship failed 1!)",
        ),
        (
            "of a branch",
            Story::new()
                .publishes(&[plan(1, "a", "Run"), plan(2, "ship", "Call")])
                .calls(2, "ship", 2, true)
                .answers(2)
                .stumbles(3),
            "sequential(init success) parallel(a progress, ship retry 1!)",
        ),
    ]);
}

#[test]
fn waits_and_invokes_are_steps_from_the_start() {
    let waiting = || Story::new().waits(step(1, "approval", "Wait"), "approved").answers(0);
    let invoking = || Story::new().invokes(step(1, "child", "Invoke")).answers(0);
    let after = || Story::new().does(0, result(1, "charge")).waits(step(2, "approval", "Wait"), "approved").answers(1);
    check(&[
        ("waiting", waiting(), "sequential(init success) sequential(approval progress)"),
        (
            "waiting behind a step",
            after(),
            "sequential(init success) sequential(charge success) sequential(approval progress)",
        ),
        (
            "notified",
            waiting().notified("approved"),
            "sequential(init success) sequential(approval success) next(? progress)",
        ),
        ("timed out", waiting().timed_out(), "sequential(init success) sequential(approval success) next(? progress)"),
        ("canceled", waiting().canceled(), "sequential(init success) sequential(approval canceled)"),
        (
            "of a branch",
            Story::new()
                .publishes(&[plan(1, "a", "Run"), plan(2, "approval", "Wait")])
                .waits(step(2, "approval", "Wait"), "approved"),
            "sequential(init success) parallel(a progress, approval progress)",
        ),
        ("invoked", invoking(), "sequential(init success) sequential(child progress)"),
        (
            "the child has ended",
            invoking().child_ends(step(1, "child", "Invoke")),
            "sequential(init success) sequential(child success) next(? progress)",
        ),
        (
            "the parent fails, and the child goes on",
            Story::new().invokes(step(1, "child", "Invoke")).fails(0),
            "sequential(init success) sequential(child progress) next(ship failed 1!)",
        ),
        (
            "the child ends behind its parent",
            Story::new().invokes(step(1, "child", "Invoke")).fails(0).child_ends(step(1, "child", "Invoke")),
            "sequential(init success) sequential(child success) next(ship failed 1!)",
        ),
        ("the parent is canceled", invoking().canceled(), "sequential(init success) sequential(child canceled)"),
    ]);
}

#[test]
fn steps_that_say_nothing_of_themselves_do_no_harm() {
    let story = Story::new().publishes(&[serde_json::json!("no step"), serde_json::json!({ "stepId": 0 })]);
    assert_eq!(story.digest(), "sequential(init success) sequential( success) sequential( success) next(? progress)");
}

#[test]
fn a_resumed_run_shows_what_its_predecessor_did() {
    let failed = Story::new().calls(1, "ship", 1, true).answers(0).answers(1).does(2, step(1, "ship", "Call")).fails(3);
    assert_eq!(failed.digest(), "sequential(init success) sequential(ship success) next(ship failed 1!)");
    let resumed = failed.resumed();
    assert_eq!(resumed.digest(), "sequential(init success) sequential(ship success) next(? progress)");
    assert_eq!(resumed.log()["steps"][1]["steps"][0]["callResponseStatus"], 200);
}
