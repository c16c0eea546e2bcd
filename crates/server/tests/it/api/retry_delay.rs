//! `/v2/retryDelay`: when a message would be tried again.

use crate::support::server::READ_ONLY;
use crate::support::{Setup, TestServer};
use serde_json::{Value, json};

fn times(plan: &Value) -> Vec<u64> {
    let attempts = plan["attempts"].as_array().expect("attempts are a list").iter();
    attempts.map(|attempt| attempt["atMs"].as_u64().expect("a time is a number")).collect()
}

#[tokio::test]
async fn a_plan_adds_up_the_waits() {
    let server = TestServer::start().await;
    let plan = server.get("/v2/retryDelay").token(READ_ONLY).expect(200).await.json();
    assert_eq!(times(&plan), [0, 12_182, 160_595, 1_968_637]);
    assert_eq!((&plan["retries"], &plan["jitter"], &plan["givesUpAtMs"]), (&json!(3), &json!(0.05), &json!(1_968_637)));
    let path = "/v2/retrydelay?expression=1000%20*%20(1%20%2B%20retried)&retries=2";
    let plan = server.get(path).expect(200).await.json();
    let attempts =
        json!([{ "delayMs": 0, "atMs": 0 }, { "delayMs": 1000, "atMs": 1000 }, { "delayMs": 2000, "atMs": 3000 }]);
    let expected = json!({
        "retries": 2, "expression": "1000 * (1 + retried)", "attempts": attempts, "givesUpAtMs": 3000, "jitter": 0.0,
    });
    assert_eq!(plan, expected);
    assert_eq!(times(&server.get("/v2/retryDelay?retries=0").expect(200).await.json()), [0]);
    assert_eq!(times(&server.get("/v2/retryDelay?retries=1000").expect(200).await.json()).len(), 1_001);
    server.finish().await;
}

#[tokio::test]
async fn what_a_publish_would_refuse_is_refused() {
    let mut setup = Setup::dev();
    setup.settings.max_retries = Some(5);
    let server = TestServer::with(setup).await;
    for (status, query, told) in [
        (400, "expression=nonsense", "unknown name \"nonsense\""),
        (400, "expression=sqrt(-1)", "not a number when retried is 0"),
        (400, "expression=", "syntax error"),
        (400, "retries=x", "retries"),
        (400, "retries=-1", "retries"),
        (400, "retry=1", "accepted are expression, retries"),
        (412, "retries=6", "quota maxRetries exceeded, current limit: 5"),
    ] {
        let error = server.get(&format!("/v2/retryDelay?{query}")).expect(status).await.error();
        assert!(error.contains(told), "{query}: {error}");
    }
    server.get("/v2/retryDelay").without("Authorization").expect(401).await;
    server.finish().await;
}
