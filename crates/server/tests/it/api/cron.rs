//! `/v2/cron`: when an expression fires.

use crate::support::TestServer;
use crate::support::server::{READ_ONLY, START_MS};
use serde_json::{Value, json};

#[tokio::test]
async fn the_next_times_are_told_with_the_days_on_which_the_clock_changes() {
    let server = TestServer::start().await;
    let answer = server.get("/v2/cron?expression=+CRON_TZ%3DEurope/Berlin+30+2+*+*+*+&count=3&after=1774656000000");
    let expected = json!({
        "expression": "CRON_TZ=Europe/Berlin 30 2 * * *",
        "zone": "Europe/Berlin",
        "fires": [
            { "time": 1_774_661_400_000_u64, "local": "2026-03-28T02:30:00+01:00" },
            {
                "time": 1_774_746_000_000_u64,
                "local": "2026-03-29T03:00:00+02:00",
                "clockChange": "skipped",
                "remark": "the clock goes forward on this day, and 02:00 to 03:00 is skipped; 02:30 fires when the gap \
                           ends",
            },
            { "time": 1_774_830_600_000_u64, "local": "2026-03-30T02:30:00+02:00" },
        ],
    });
    assert_eq!(answer.token(READ_ONLY).expect(200).await.json(), expected);

    let fires = server.get("/v2/cron?expression=@hourly").expect(200).await.json()["fires"].clone();
    let times: Vec<Value> = (1..=10).map(|hour| json!(START_MS + hour * 3_600_000)).collect();
    let told: Vec<Value> = fires.as_array().expect("a list").iter().map(|fire| fire["time"].clone()).collect();
    assert_eq!(told, times);
    server.finish().await;
}

#[tokio::test]
async fn what_a_schedule_is_refused_for_is_refused_in_the_same_words() {
    let server = TestServer::start().await;
    for expression in
        ["* * * *", "0 0 30 2 *", "CRON_TZ=Mars/Olympus @daily", "@every 90s", "61 * * * *", "0 0 * * \u{a0}"]
    {
        let making = server.post("/v2/schedules/https://example.com").header("Upstash-Cron", expression);
        let encoded: String = url::form_urlencoded::byte_serialize(expression.as_bytes()).collect();
        let asking = server.get(&format!("/v2/cron?expression={encoded}"));
        assert_eq!(asking.expect(400).await.error(), making.expect(400).await.error(), "{expression}");
    }
    for (query, text) in [
        ("", "expression is missing"),
        ("expression=@daily&expression=@hourly", "more than once"),
        ("expression=@daily&count=0", "count must be"),
        ("expression=@daily&count=101", "count must be 1 to 100"),
        ("expression=@daily&after=yesterday", "after must be a time"),
        ("cron=@daily", "unknown parameter cron"),
    ] {
        let error = server.get(&format!("/v2/cron?{query}")).expect(400).await.error();
        assert!(error.contains(text), "{query}: {error}");
    }
    server.get("/v2/cron?expression=@daily").token("nobody").expect(401).await;
    assert_eq!(
        server.get("/v2/cron?expression=@daily&count=100").expect(200).await.json()["fires"][99]["local"],
        "2026-09-09T00:00:00+00:00"
    );
    server.finish().await;
}
