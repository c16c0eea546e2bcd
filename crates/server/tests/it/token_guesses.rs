//! Wrong tokens at the API are bounded per address, and right ones keep working.

use crate::support::server::{READ_ONLY, TOKEN, TOKEN_B};
use crate::support::{Setup, TestServer};

/// Different wrong tokens that an address may try in a minute.
const GUESSES: usize = 60;

#[tokio::test]
async fn an_address_that_guesses_tokens_keeps_those_it_has_used_and_gets_no_answer_about_others() {
    let mut setup = Setup::serve();
    setup.settings.trusted_proxies = Some(vec!["127.0.0.1/32".to_owned()]);
    setup.settings.query_token = Some(true);
    let server = TestServer::with(setup).await;
    let from = |address: &str, token: &str| server.get("/v2/queues").token(token).header("X-Forwarded-For", address);
    let ours = |token: &str| from("203.0.113.7", token);
    ours(TOKEN).expect(200).await;
    for n in 1..GUESSES {
        ours(&format!("a-wrong-token-{n}")).expect(401).await;
        // It counts once, however often a forgotten program repeats it.
        ours("a-stale-token").expect(401).await;
    }
    let refused = ours("one-more-wrong-token").expect(429).await;
    let seconds: u64 = refused.header("retry-after").expect("Retry-After").parse().expect("seconds");
    assert!((1..=60).contains(&seconds), "{seconds}");
    assert!(refused.error().contains("60 different wrong tokens"), "{}", refused.text());
    let same = ours(READ_ONLY).expect(429).await;
    assert_eq!(same.error(), refused.error(), "a right guess looks like a wrong one");
    let in_query = server.get(&format!("/v2/queues?qstash_token={READ_ONLY}")).without("Authorization");
    in_query.header("X-Forwarded-For", "203.0.113.7").expect(429).await;
    ours(TOKEN).expect(200).await;
    ours("a-wrong-token-5").expect(401).await;
    ours("").without("Authorization").expect(401).await;
    from("203.0.113.8", TOKEN_B).expect(200).await;
    // Callers of webhooks have credentials of other systems.
    let hook = server.post("/v2/workflows/hooks/nobody/run/event").token("of-another-system");
    hook.header("X-Forwarded-For", "203.0.113.7").expect(404).await;
    server.advance(60_000).await;
    ours(READ_ONLY).expect(200).await;
    ours("one-more-wrong-token").expect(401).await;
    server.finish().await;
}
