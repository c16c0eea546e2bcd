//! `/v2/waiters`: which runs wait for an event.

use crate::support::runs::{config, done};
use crate::support::server::{READ_ONLY, START_MS, TOKEN_B};
use crate::support::{Backend, Receiver, Setup, TestServer};
use serde_json::{Value, json};

fn wait(number: u32) -> Value {
    json!({ "stepId": number, "stepName": "approval", "stepType": "Wait", "concurrent": 1 })
}

#[tokio::test]
async fn those_who_wait_are_listed_in_the_order_of_asking_until_their_event_comes() {
    for backend in Backend::ALL {
        let server = TestServer::with(Setup::dev().on(backend)).await;
        let receiver = Receiver::start().await;
        receiver.script("/wf", [done()]);
        let url = receiver.url("/wf");
        for id in ["wfr_b", "wfr_a"] {
            server.start_run(id, &url, config()).await;
            server.wait_in(id, "approved/7 ä", wait(1)).await;
            server.advance(1_000).await;
        }
        let path = "/v2/waiters/approved/7%20%C3%A4";
        let waiter = |id: &str, seconds: u64| {
            json!({
                "url": url,
                "deadline": START_MS / 1_000 + seconds + 3_600,
                "headers": { "Upstash-Workflow-Runid": [id] },
                "timeoutUrl": url,
                "timeoutBody": null,
                "timeoutHeaders": { "Upstash-Workflow-RunId": [id] },
            })
        };
        let listed = server.get(path).token(READ_ONLY).expect(200).await.json();
        assert_eq!(listed, json!([waiter("wfr_b", 0), waiter("wfr_a", 1)]));
        assert_eq!(server.get("/v2/waiters/approved").expect(200).await.json(), json!([]));
        assert_eq!(server.get(path).token(TOKEN_B).expect(200).await.json(), json!([]), "another tenant");
        let tenant = server.tenant();
        let notified = server.core().notify(tenant, "approved/7 ä".into(), b"yes".to_vec()).await.expect("notified");
        assert_eq!(notified.len(), 2);
        assert_eq!(server.get(path).expect(200).await.json(), json!([]));
        for id in ["wfr_b", "wfr_a"] {
            server.finish_run(id).await;
        }
        server.finish().await;
    }
}
