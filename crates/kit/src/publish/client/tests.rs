//! Requests that are rejected before they are sent, and responses of every form.

use super::*;

#[test]
fn destinations_that_clients_would_change_are_rejected() {
    for good in [
        "https://example.com",
        "https://example.com/a//b/?x=1&y=%20",
        "http://127.0.0.1:8080/a%2Fb",
        "https://example.com/a:b@c",
        "orders",
    ] {
        assert!(check_verbatim(good).is_ok(), "{good}");
    }
    for bad in [
        "https://example.com/a/../b",
        "https://example.com/a/./b",
        "https://example.com/%2e%2E/b",
        "../../v2/queues",
        "https://example.com/#top",
        "https://example.com/ä",
        "https://example.com/a b",
        "https://example.com/a\tb",
        "https://example.com/?qstash_token=x",
        "https://example.com/?a=1&Upstash-Delay=9s",
    ] {
        assert!(check_verbatim(bad).is_err(), "{bad}");
    }
}

#[test]
fn names_in_paths_stay_names() {
    for bad in ["", "..", ".", "a/b", "a?b", "a#b", "a%2Fb", "ä"] {
        assert!(Request::new(Method::GET, &["queues", bad]).is_err(), "{bad}");
    }
    assert_eq!(Request::new(Method::GET, &["dlq", "1-0"]).unwrap().path, "/v2/dlq/1-0");
}

#[test]
fn a_client_needs_a_url_and_a_token_and_shows_neither_token_nor_password() {
    assert!(QueueClient::new("https://queue.example.com", " ").is_err());
    for bad in ["queue.example.com", "ftp://queue", "https://u:pw-123@queue", "https://queue/?a=1"] {
        let error = QueueClient::new(bad, "token").unwrap_err();
        assert!(!format!("{error:?} {error}").contains("pw-123"));
    }
    let client = QueueClient::new("https://queue.example.com/v2/publish/", "tok-123").unwrap();
    assert_eq!(client.base, "https://queue.example.com");
    assert!(!format!("{client:?}").contains("tok-123"));
    let error = QueueClient::new("https://queue.example.com", "tok-123\u{7}x").unwrap_err();
    assert!(!format!("{error:?} {error}").contains("tok-123"));
}

#[test]
fn responses_of_every_form_are_parsed() {
    let read = |text: &str| {
        let answer = serde_json::from_str::<OneOrMany>(text).map_err(CallError::unreadable);
        answer.and_then(|answer| answer.published("publish"))
    };
    let one = read(r#"{"messageId":"msg_1","deduplicated":true}"#).unwrap();
    assert!(one.is_duplicate() && one.message_id() == Some("msg_1"));
    let many = read(
        r#"[{"messageId":"msg_1","url":"https://a"},{"messageId":"msg_2","url":"https://b","deduplicated":true}]"#,
    )
    .unwrap();
    assert!(!many.is_duplicate() && many.receipts.len() == 2);
    assert!(read(r#"{"error":"no"}"#).is_err());
    assert!(read("[]").unwrap_err().is_outage());
    let batch = r#"[{"messageId":"msg_1"},[{"messageId":"msg_2"}],{"error":"no such group"}]"#;
    let batch: Vec<ItemAnswer> = serde_json::from_str(batch).unwrap();
    let results: Vec<_> = batch.into_iter().map(ItemAnswer::published).collect();
    assert!(results[0].is_ok() && results[1].is_ok());
    assert_eq!(results[2].as_ref().unwrap_err().to_string(), "publish a batch: rejected (status 400): no such group");
}
