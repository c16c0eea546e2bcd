//! The first inputs of the targets: the vectors of the specification, and some of our own that get far into the parser.

mod heads;

pub use heads::heads;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

const API_INPUTS: &str = include_str!("../../vectors/api-inputs.json");
const CRON: &str = include_str!("../../vectors/cron.json");
const DURATIONS: &str = include_str!("../../vectors/durations.json");
const RETRY_EXPRESSIONS: &str = include_str!("../../vectors/retry-expr.json");
const SIGNATURES: &str = include_str!("../../vectors/signature.json");
const SSRF: &str = include_str!("../../vectors/ssrf.json");

/// The texts with this name in all entries of some lists in a file of vectors.
fn texts(file: &str, lists: &[&str], name: &str) -> Vec<Vec<u8>> {
    let file: Value = serde_json::from_str(file).expect("the vectors are JSON");
    let entries = lists.iter().flat_map(|list| file[*list].as_array().expect("a list"));
    entries.filter_map(|entry| entry[name].as_str()).map(|text| text.as_bytes().to_vec()).collect()
}

fn own(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The same inputs after a prefix.
fn with_prefix(prefix: &[u8], inputs: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    inputs.into_iter().map(|input| [prefix, &input].concat()).collect()
}

fn api_cases() -> Vec<Value> {
    let file: Value = serde_json::from_str(API_INPUTS).expect("the vectors are JSON");
    file["cases"].as_array().expect("a list").clone()
}

/// Headers of the hostile requests, and one publish with all headers.
pub fn publish_headers() -> Vec<Vec<u8>> {
    let headers = |case: Value| -> Vec<u8> {
        let lines = case["headers"].as_object().into_iter().flatten();
        let lines = lines.filter(|(name, _)| *name != "Authorization");
        lines
            .map(|(name, value)| format!("{name}: {}\n", value.as_str().unwrap_or_default()))
            .collect::<String>()
            .into()
    };
    let mut seeds: Vec<Vec<u8>> = api_cases().into_iter().map(headers).filter(|seed| !seed.is_empty()).collect();
    seeds.extend(own(&[
        "?upstash-delay=10s&qstash_token=x\nUpstash-Method: put\nUpstash-Not-Before: 1780315260\nUpstash-Timeout: 30s\n\
         Upstash-Retries: 3\nUpstash-Retry-Delay: pow(2, retried) * 1000\nUpstash-Label: a, b\nContent-Type: text/plain",
        "Upstash-Callback: https://example.com/c#f\nUpstash-Callback-Retries: 1\nUpstash-Callback-Delay: 5s\n\
         Upstash-Failure-Callback: https://example.com/d\nUpstash-Failure-Callback-Forward-X: y\n\
         Upstash-Callback-Flow-Control-Key: k\nUpstash-Callback-Flow-Control-Value: rate=1",
        "Upstash-Header-Forward: true\nX-Plain: 1\nAccept-Encoding: gzip\nPosthaste-Hops: 3\nUpstash-Forward-Posthaste-Hops: 4",
        "Upstash-Cron: CRON_TZ=Europe/Berlin */5 1-3 * JAN MON\nUpstash-Schedule-Id: s-1\nUpstash-Queue-Name: q.1",
        "Upstash-Flow-Control-Key: k\nUpstash-Flow-Control-Value: parallelism=5, rate=10, period=1m\n\
         Upstash-Redact-Fields: body, header[Authorization]\nUpstash-Deduplication-Id: d",
        "Upstash-Content-Based-Deduplication: true\nUpstash-Workflow-Init: true\nUpstash-Workflow-RunId: r",
    ]));
    seeds
}

/// Paths of the hostile requests after `/v2/publish/`, and the URLs of the egress vectors.
pub fn destination() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = api_cases()
        .iter()
        .filter_map(|case| case["path"].as_str()?.strip_prefix("/v2/publish/").map(|rest| rest.as_bytes().to_vec()))
        .collect();
    seeds.extend(texts(SSRF, &["vectors"], "url"));
    seeds.extend(own(&[
        "https://example.com/a?b=c&upstash-delay=5s&qstash_token=t&d",
        "http%3A%2F%2Fexample.com%2F%3Fa%3Db?c",
        "https://example.com/?QSTASH_TOKEN=t&Upstash-Delay=5s&%75pstash-retries=1",
        "https:/example.com",
        "api/llm/v1/chat/completions",
        "my-group_1.x",
    ]));
    seeds
}

/// Durations of the vectors.
pub fn duration() -> Vec<Vec<u8>> {
    texts(DURATIONS, &["durations"], "input")
}

/// Expressions of the vectors.
pub fn retry_delay() -> Vec<Vec<u8>> {
    texts(RETRY_EXPRESSIONS, &["valid", "invalid"], "expr")
}

/// Cron expressions of the vectors, some of them a week before a clock change and with a zone in front.
pub fn cron() -> Vec<Vec<u8>> {
    let minutes = |time: u32| (time / 60).to_le_bytes();
    let mut seeds = with_prefix(&minutes(1_780_315_200), texts(CRON, &["vectors"], "header"));
    seeds.extend(with_prefix(&minutes(1_772_700_000), texts(CRON, &["vectors", "errors"], "expr")));
    seeds.extend(with_prefix(
        &minutes(1_792_600_000),
        own(&["TZ=America/New_York 30 1 * * *", "@every 90m", "0 0 29 2 *"]),
    ));
    seeds
}

/// Flow-control values of the hostile requests.
pub fn flow_control() -> Vec<Vec<u8>> {
    let value = |case: &Value| Some(case["headers"]["Upstash-Flow-Control-Value"].as_str()?.as_bytes().to_vec());
    let mut seeds: Vec<Vec<u8>> = api_cases().iter().filter_map(value).collect();
    seeds.extend(own(&["parallelism=5, rate=10, period=1d2h", "rate=1,period=1.5s", "period=7d,rate=1000000000"]));
    seeds
}

/// Lists of fields to redact.
pub fn redact() -> Vec<Vec<u8>> {
    own(&[
        "body",
        "header",
        "headers",
        "body,header[Authorization] , headers[X-1]",
        "header[a],header[A]",
        "header[a]b]",
    ])
}

fn bodies_of(path: &str) -> Vec<Vec<u8>> {
    let at_path = |case: &&Value| case["path"].as_str().is_some_and(|other| other.starts_with(path));
    let bodies = api_cases();
    bodies.iter().filter(at_path).filter_map(|case| Some(case["body"].as_str()?.as_bytes().to_vec())).collect()
}

/// Batch bodies of the hostile requests, and one with each kind of header.
pub fn batch() -> Vec<Vec<u8>> {
    let mut seeds = bodies_of("/v2/batch");
    seeds.extend(own(&[
        r#"[{"destination":"https://example.com/?a","headers":{"Upstash-Delay":"5s","X":["a","b"]},"body":"x","queue":"q"}]"#,
        r#"[{"destination":"group","headers":null,"body":null,"queue":null},{"destination":"https://example.com"}]"#,
        r#"[["https://example.com",{"Upstash-Delay":"5s"},"body","q"]]"#,
        r#" [ {"destination" : "http://example.com" , "headers":{"upstash-cron":"* * * * *"}} ] "#,
    ]));
    seeds
}

/// Bodies about URL groups.
pub fn url_group() -> Vec<Vec<u8>> {
    let mut seeds = bodies_of("/v2/topics");
    seeds.extend(own(&[
        r#"{"endpoints":[{"url":"https://a.example","name":"a"},{"url":"https://b.example"},{"name":"a"}]}"#,
        r#"{"endpoints":[{"url":"https://a.example","name":"a"},{"url":"https://a.example","name":"b"}],"headers":{"X":["1","2"],"Y":"3"}}"#,
        r#"{"headers":{"Upstash-Cron":"* * * * *"}}"#,
    ]));
    seeds
}

/// Queries of the hostile requests, and one with every filter.
pub fn filters() -> Vec<Vec<u8>> {
    let query = |case: &Value| Some(case["path"].as_str()?.split_once('?')?.1.as_bytes().to_vec());
    let mut seeds: Vec<Vec<u8>> = api_cases().iter().filter_map(query).collect();
    seeds.extend(own(&[
        "messageIds=msg_1,msg_2&url=https://a.example/,b&host=a&path=/&label=l&callerIp=::1&topicName=t&urlGroup=u",
        "queueName=q&scheduleId=s&flowControlKey=f&responseStatus=500&state=ACTIVE,in_progress&fromDate=1&toDate=2",
        "count=5&order=earliestFirst&cursor=1686652644442-12",
        "cursor=1686652644442\n{\"messageIds\":[\"a\",1,true],\"label\":null}",
        "\n{\"label\":\"\"}",
    ]));
    seeds
}

/// Forms and queries of the console's pages. The first byte selects the page.
pub fn console() -> Vec<Vec<u8>> {
    let dead_letters = [
        "what=one&id=1686652644442-12&next=%2Fconsole%2Fdlq&method=PUT&retries=+5+",
        "what=ticked&dlqIds=1-2&dlqIds=+3-4+&rate=10&headers=A%3A+2%0D%0AB%3A+x%3Ay&headersBefore=A%3A+1",
        "what=all&label=a%2Cb&responseStatus=500&fromDate=2026-11-16T12%3A00&toDate=soon&cause=cause_1&rate=+",
        "what=ticked&what=all&url=https%3A%2F%2Fx%2F%3Fa%3Db&next=https%3A%2F%2Fevil.example%2F",
        "what=all&label=+&headers=no+header",
    ];
    let messages = [
        "state=FAILED&messageId=msg_1&label=%22%3E%3Cimg%3E&host=a&queueName=q&flowControlKey=k&cursor=1-2&order=x",
        "url=https%3A%2F%2Fx&path=%2F&urlGroup=g&scheduleId=s&callerIp=%3A%3A1&sourceMessageId=msg_2",
        "fromDate=2026-11-16T12:00:00Z&toDate=1794830400123&fromDate=&label=%00",
        "toDate=1969-01-01T00:00&unknown=1",
    ];
    let send = [
        "do=send&destination=https%3A%2F%2Fx%2F%3Fa%3Db%23c&queue=q%2F1&method=PUT&content_type=a%2Fb&body=x&delay=5s",
        "destination=..%2Fgroup+%3F&headers=A%3A+1%0D%0AB%3A%0A&options=Upstash-Retries%3A+5%0AAuthorization%3A+x",
        "destination=api%2Fllm&not_before=2026-11-16T12:00:00Z&flow_key=k&flow_rate=1&flow_period=1m&redact=body",
        "destination=HTTPS%3A%2F%2F%C3%A4&options=upstash-forward-x%3A+%0Ay%3A+1",
    ];
    let pages = [own(&dead_letters), own(&messages), own(&send)];
    pages.into_iter().enumerate().flat_map(|(page, seeds)| with_prefix(&[page as u8], seeds)).collect()
}

/// Ids and cursors.
pub fn ids() -> Vec<Vec<u8>> {
    own(&[
        "msg_4CYo2cv96rizU2hTBrTFUu",
        "msg_11111111111111112",
        "bulk_5LLAAuXXCoy",
        "bulk_11111111",
        // All bits set: no store has such a position.
        "msg_YcVfxkQb6JRzqk5kF2tNLv",
        "bulk_jpXCZedGfVQ",
        "1686652644442-12",
        "9223372036854775807-9223372036854775807",
        "00-01",
    ])
}

/// Lists of proxies.
pub fn caller() -> Vec<Vec<u8>> {
    own(&[
        "198.51.100.1, 203.0.113.7",
        "198.51.100.1,203.0.113.7 , 10.1.1.1\n10.2.2.2",
        "[2001:db8::7]:443",
        "::ffff:203.0.113.7, [fd00::1]",
        "unknown, 10.0.0.1:80",
    ])
}

/// Tokens of the vectors, and claims to sign.
pub fn signature() -> Vec<Vec<u8>> {
    let mut seeds = texts(SIGNATURES, &["jwt"], "token");
    seeds.extend(own(&["\0\0sig_key\nhttps://example.com/\njwt_1\nbody", "\u{3}\u{7}k\n\"\\\u{1}ü\n\n"]));
    seeds
}

/// Tokens of the vectors, each with its body, and URLs to sign for.
pub fn receiver() -> Vec<Vec<u8>> {
    let mut seeds: Vec<Vec<u8>> = signature_cases("jwt")
        .iter()
        .filter_map(|case| Some([case["token"].as_str()?.as_bytes(), b"\n", &body_of(case)].concat()))
        .collect();
    seeds.extend(own(&["\u{7}https://example.com/\n{}", "\0\n", "\u{3}\"\\\u{1}ü\nbody\nof two lines"]));
    seeds
}

/// Requests of one scheme in the vectors, and bodies to sign.
fn webhook(scheme: &str) -> Vec<Vec<u8>> {
    let request = |case: &Value| {
        let lines = case["headers"].as_object().into_iter().flatten();
        let lines: String =
            lines.map(|(name, value)| format!("{name}: {}\n", value.as_str().unwrap_or_default())).collect();
        [lines.as_bytes(), b"\n", &body_of(case)].concat()
    };
    let cases = signature_cases("webhooks");
    let mut seeds: Vec<Vec<u8>> = cases.iter().filter(|case| case["scheme"] == scheme).map(request).collect();
    seeds.extend(with_prefix(&[0, 0], own(&WEBHOOK_BODIES)));
    // As old and as far ahead as allowed, and one second more.
    for time in [[60, 0], [60, 1], [196, 0], [195, 4]] {
        seeds.extend(with_prefix(&time, own(&WEBHOOK_BODIES[..1])));
    }
    seeds.extend(own(&WEBHOOK_BODIES));
    seeds
}

const WEBHOOK_BODIES: [&str; 5] = [
    r#"{"id":"evt_1","type":"invoice.paid","created":1780315200,"livemode":true,"data":{"object":{"amount":5}},"request":{"id":"req_1","idempotency_key":null}}"#,
    r#"{"type":"UPDATE","table":"orders","schema":"public","record":{"id":1},"old_record":{"id":1}}"#,
    r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"message"}}"#,
    r#"{"id":7,"type":["a"],"table":null,"id":"b"}"#,
    "0payload=%7B%7D",
];

/// Requests of Stripe.
pub fn webhook_stripe() -> Vec<Vec<u8>> {
    webhook("stripe")
}

/// Requests of GitHub.
pub fn webhook_github() -> Vec<Vec<u8>> {
    webhook("github")
}

/// Requests of Standard Webhooks.
pub fn webhook_standard() -> Vec<Vec<u8>> {
    webhook("standard")
}

/// Requests of Slack, which are not in the vectors.
pub fn webhook_slack() -> Vec<Vec<u8>> {
    let mut seeds = webhook("slack");
    let mac = "4a7d".repeat(16);
    let slack = format!("X-Slack-Request-Timestamp: 1780315200\nX-Slack-Signature: v0={mac}\n\n{{}}");
    seeds.push(slack.into_bytes());
    seeds
}

/// Requests with an HMAC in a header.
pub fn webhook_hmac() -> Vec<Vec<u8>> {
    let mut seeds = webhook("hmac-generic");
    seeds.extend(own(&["X-Signature: 00\nX-Time: 1780315200\n\n{}"]));
    seeds
}

/// Requests with a secret in a header.
pub fn webhook_shared_secret() -> Vec<Vec<u8>> {
    webhook("static-header")
}

fn signature_cases(list: &str) -> Vec<Value> {
    let file: Value = serde_json::from_str(SIGNATURES).expect("the vectors are JSON");
    file[list].as_array().expect("a list").clone()
}

fn body_of(case: &Value) -> Vec<u8> {
    STANDARD.decode(case["body_b64"].as_str().unwrap_or_default()).expect("a body is base64")
}

/// Retry headers of the vectors.
pub fn retry_after() -> Vec<Vec<u8>> {
    let file: Value = serde_json::from_str(DURATIONS).expect("the vectors are JSON");
    let line = |case: &Value| {
        let (name, value) = (case["header"].as_str()?, case["value"].as_str()?);
        Some(format!("\u{4}{name}: {value}").into_bytes())
    };
    let mut seeds: Vec<Vec<u8>> = file["retry_after"].as_array().expect("a list").iter().filter_map(line).collect();
    seeds.extend(own(&[
        "\u{5}Upstash-NonRetryable-Error: true",
        "\u{4}x-ratelimit-reset-requests: 1m30s\nx-ratelimit-reset-tokens: 6ms",
    ]));
    seeds
}

/// Responses over HTTP/1.1 and HTTP/2.
pub fn answer() -> Vec<Vec<u8>> {
    let mut seeds = with_prefix(&[0, 0], own(&HTTP1_ANSWERS));
    seeds.extend(with_prefix(&[2, 3], own(&HTTP1_ANSWERS)));
    seeds.extend(with_prefix(&[4, 1], own(&HTTP1_ANSWERS)));
    seeds.extend(with_prefix(&[0, 0xe0], own(&HTTP1_ANSWERS[3..5])));
    seeds.extend(with_prefix(&[2, 0xe3], own(&["HTTP/1.1 200 OK\r\n\r\nwithout an end"])));
    // SETTINGS, their acknowledgement, HEADERS with `:status: 200`, DATA that ends the stream.
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0].as_slice();
    let acknowledged = [0, 0, 0, 4, 1, 0, 0, 0, 0].as_slice();
    let headers = [0, 0, 1, 1, 4, 0, 0, 0, 1, 0x88].as_slice();
    let body = [0, 0, 2, 0, 1, 0, 0, 0, 1, b'o', b'k'].as_slice();
    let reset = [0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7].as_slice();
    let goaway = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0].as_slice();
    for frames in [vec![settings, acknowledged, headers, body], vec![settings, reset], vec![settings, goaway]] {
        seeds.push([&[1, 0], frames.concat().as_slice()].concat());
    }
    seeds
}

const HTTP1_ANSWERS: [&str; 9] = [
    "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n2;a=b\r\nok\r\n0\r\nX: 1\r\n\r\n",
    "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 500 No\r\nRetry-After: 5\r\n\r\nuntil the end",
    "HTTP/1.1 489 Refused\r\nUpstash-NonRetryable-Error: true\r\nContent-Length: 0\r\n\r\n",
    "HTTP/1.0 302 Found\r\nLocation: http://169.254.169.254/\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nX-8bit: \u{fc}\r\n\r\nshort",
];

/// URLs and DNS records of the vectors.
pub fn egress() -> Vec<Vec<u8>> {
    let file: Value = serde_json::from_str(SSRF).expect("the vectors are JSON");
    let line = |case: &Value| {
        let answers = case["dns"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let lines: Vec<&str> = case["url"].as_str().into_iter().chain(answers).collect();
        lines.join("\n").into_bytes()
    };
    let mut seeds: Vec<Vec<u8>> = file["vectors"].as_array().expect("a list").iter().map(line).collect();
    let addresses = ["2606:2800:220:1:248:1893:25c8:1946", "2001:db8::1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"];
    let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().expect("an address").octets().to_vec();
    seeds.extend(addresses.into_iter().map(octets));
    seeds
}

/// A run that has just begun.
const NEW_RUN: &str = r#"{"no":1,"tenant":1,"id":"r","created_at":1,"url":"u","config":{"features":{},"retries":3,"caller_ip":""},"state":"RUN_STARTED"}"#;
/// A run with all optional fields.
const FAILED_RUN: &str = r#"{"no":5,"tenant":1,"id":"r","created_at":1,"url":"u","config":{"features":{"lazy_fetch":true},"labels":["l"],"headers":[["A","b"]],"retries":3,"retry_delay":"1","flow":{"key":"k","rate":1,"period_ms":1000},"failure":{"url":"f","retries":1},"redact":{"body":true},"caller_ip":"","trigger":"rest","depth":1},"state":"RUN_FAILED","ended_at":9,"failure":{"entry":0,"retried":3,"error":"e","status":500,"answer_bytes":2,"dlq_id":{"at":9,"n":5},"is_in_dlq":true,"call":{"id":"msg_4CYo2cv96rizU2hTBrTFUu","state":"CALLBACK_INPROGRESS","due":9}}}"#;
/// The gist of an entry's bytes.
const GIST: &str =
    r#"{"size":2,"digest":"0123456789abcdef0123456789abcdef","info":{"id":1,"kind":"Run","concurrent":1}}"#;
/// An event that a run waits for.
const WAIT: &str = r#"{"event":"e","step":{"stepId":2,"more":[1,null,{"a":"b"}]},"timer":"msg_4CYo2cv96rizU2hTBrTFUu","deadline":7,"timeout":"7d","headers":[["H",["v"]]]}"#;
/// A run that a run has invoked.
const INVOKE: &str =
    r#"{"step":{"stepId":3},"run_id":"c","created_at":2,"url":"u","run_headers":[["A","b"]],"headers":[["C","d"]]}"#;
/// A run that waits for the end of another run.
const INVOKER: &str = r#"{"run_id":"p","created_at":1,"url":"u","step":{"stepId":1},"headers":[["C","d"]]}"#;
/// The terms of an entry that is a call.
const TERMS: &str = r#"{"call_type":"toCallback","content_type":"text/plain","accepted_at":1,"headers":[["A","b"]],"retries":3,"retry_delay":"1","timeout_ms":5,"flow":{"key":"k","period_ms":1000},"call":{"url":"u","method":"PUT","step":3,"is_forgiven":true,"result_headers":[["C","d"]],"result_retries":2}}"#;
/// A delivery that has failed.
const DELIVERY: &str = r#"{"state":"failed","due":5,"attempts":2,"errors":[{"at":4,"response":{"status":500}},{"at":5,"error":"timeout"}],"ended_at":6,"duration_ms":7}"#;

/// JSON columns of every kind, and rows.
pub fn stored() -> Vec<Vec<u8>> {
    let columns = [
        (0, r#"{"url":"https://example.com/","method":"POST","headers":[["X","1"]],"retries":3,"caller_ip":"::1"}"#),
        (
            0,
            r#"{"url":"u","method":"GET","retries":0,"retry_delay":"1","timeout_ms":5,"labels":["l"],"redact":{"body":true,"headers":["A"]},"caller_ip":"","topic":"t","endpoint":"e","queue":"q","flow":{"key":"k","rate":1,"period_ms":1000},"schedule_id":"s","api":"llm","hops":2,"callback":{"url":"c","method":"POST","retries":1,"delay_ms":5}}"#,
        ),
        (
            1,
            r#"{"next_due":5,"error":"e","response":{"status":500,"headers":[["A","b"]],"body":"b2s=","truncated":true},"duration_ms":7,"dlq_id":"1-2","n":2}"#,
        ),
        (2, r#"{"status":200,"body":"AAEC"}"#),
        (
            3,
            r#"{"created_at":1,"cron":"* * * * *","destination":{"url":"https://example.com/"},"spec":{"url":"","method":"POST","retries":3,"caller_ip":""}}"#,
        ),
        (
            4,
            r#"{"paused":true,"next":60000,"last":1,"last_messages":["msg_4CYo2cv96rizU2hTBrTFUu"],"error":"e","floor":3}"#,
        ),
        (
            5,
            r#"{"tenant":1,"key":"k","parallelism":1,"rate":2,"period_ms":1000,"pinned_parallelism":false,"pinned_rate":true,"paused":false,"starts":[[5,2]]}"#,
        ),
        (
            6,
            r#"{"name":"g","created_at":1,"updated_at":2,"endpoints":[{"url":"https://example.com/","name":"e"}],"headers":[["A","b"]]}"#,
        ),
        (
            7,
            r#"{"tenant":1,"id":5,"filter":[["label",["a"]]],"until":9,"after":7,"count":3,"total":4,"processed":2,"created_at":1,"completed_at":2}"#,
        ),
        (9, NEW_RUN),
        (9, FAILED_RUN),
        (10, TERMS),
        (11, DELIVERY),
        (12, GIST),
        (13, WAIT),
        (14, INVOKE),
        (15, INVOKER),
    ];
    let mut seeds: Vec<Vec<u8>> = columns.iter().map(|(kind, text)| [&[*kind], text.as_bytes()].concat()).collect();
    let integer = |number: i64| [&[1], number.to_le_bytes().as_slice()].concat();
    let text = |text: &str| [&[3, text.len() as u8], text.as_bytes()].concat();
    let numbers: Vec<u8> = (0..12).flat_map(integer).collect();
    let message: Vec<u8> = [
        (0..5).flat_map(integer).collect(),
        text(r#"{"url":"u","method":"GET","retries":0,"caller_ip":""}"#),
        vec![4, 2, 0xff, 0],
        integer(7),
        integer(1),
        vec![0],
        text(r#"{"status":500}"#),
    ]
    .concat();
    let plan = r#"{"created_at":1,"cron":"* * * * *","destination":{"url":"u"},"spec":{"url":"","method":"GET","retries":3,"caller_ip":""}}"#;
    let schedule = [integer(1), text("id"), text(plan), text(r#"{"next":60000}"#), vec![4, 1, 0]].concat();
    let queue = [integer(1), text("q"), integer(2), integer(0), integer(5), integer(6), integer(0)].concat();
    let entry = [
        integer(1),
        integer(2),
        integer(3),
        text(DELIVERY),
        text(GIST),
        text(r#"{"call_type":"step","content_type":"","accepted_at":1,"retries":0}"#),
        vec![4, 2, 0xff, 0],
    ]
    .concat();
    let note = [integer(1), integer(2), text(WAIT), integer(2), vec![4, 2, 0xff, 0]].concat();
    seeds.extend(with_prefix(&[8], vec![numbers, message, schedule, queue, entry, note]));
    seeds
}

/// Payloads of frames with every kind of change, alone and together.
pub fn journal() -> Vec<Vec<u8>> {
    let part = |text: &str| [(text.len() as u32).to_le_bytes().as_slice(), text.as_bytes()].concat();
    let numbers = |count: usize| -> Vec<u8> { (0..count * 8).map(|n| (n % 8 == 0) as u8).collect() };
    let tenant = [1, 0, 0, 0].to_vec();
    let spec = part(r#"{"url":"https://example.com/","method":"POST","retries":3,"caller_ip":"::1"}"#);
    let message = [numbers(2), tenant.clone(), numbers(2), spec, part("body")].concat();
    let live = |flags: u8, rest: usize| {
        [numbers(2), tenant.clone(), numbers(1), vec![4, 0, 0, 0], numbers(1), vec![0, 0, 0, 0, flags], numbers(rest)]
            .concat()
    };
    let response = r#"{"status":500,"headers":[["A","b"]],"body":"b2s="}"#;
    let queue =
        r#"{"tenant":1,"name":"q","parallelism":1,"paused":false,"created_at":1,"updated_at":2,"deleted":false}"#;
    let changes = [
        [vec![1], message, live(0, 0)].concat(),
        [vec![2], tenant.clone(), vec![9; 32], numbers(3)].concat(),
        [vec![3], tenant.clone(), numbers(3), vec![2], part("")].concat(),
        [vec![3], tenant.clone(), numbers(3), vec![3], part(&format!(r#"{{"error":"e","response":{response}}}"#))]
            .concat(),
        [vec![4], live(7, 4)].concat(),
        [vec![5], numbers(2)].concat(),
        [vec![6], tenant.clone(), numbers(4), vec![1, 0, 0, 0], part("\"refused\""), part(response)].concat(),
        [vec![7], part(queue)].concat(),
        [vec![8], part(r#"{"tenant":1,"key":"k","parallelism":1,"rate":2,"period_ms":1000,"pinned_parallelism":false,"pinned_rate":true,"paused":false,"starts":[[5,2]]}"#)].concat(),
        [vec![9], part(NEW_RUN)].concat(),
        [vec![9], part(FAILED_RUN)].concat(),
        [vec![10], numbers(1), vec![3, 0, 0, 0], numbers(2), part(TERMS), part(DELIVERY), part("body")].concat(),
        [vec![11], numbers(1), vec![0, 0, 0, 0], part(DELIVERY)].concat(),
        [vec![12], tenant.clone(), numbers(3), part("event")].concat(),
        [vec![13], tenant.clone(), numbers(3), part("")].concat(),
    ];
    let mut seeds: Vec<Vec<u8>> = changes.to_vec();
    seeds.push(changes.concat());
    with_prefix(&[0, 0], seeds)
}

/// Requests of workflow clients: triggers, steps, calls, invokes, waits, and queries for runs.
pub fn workflow_publish() -> Vec<Vec<u8>> {
    const STEP: &str = "Upstash-Workflow-Init: false\nUpstash-Workflow-RunId: wfr_1\nUpstash-Workflow-Url: https://app.example/flow\n\
                        Upstash-Workflow-Sdk-Version: 1\nUpstash-Forward-Upstash-Workflow-Sdk-Version: 1\nUpstash-Method: POST\n\
                        Upstash-Feature-Set: LazyFetch,InitialBody,WF_DetectTrigger,WF_TriggerOnConfig\nContent-Type: application/json";
    let step = r#"{"stepId":1,"stepName":"a","stepType":"Run","out":"1","concurrent":1}"#;
    let start = STEP.replace("Init: false", "Init: true");
    let call = "Upstash-Workflow-CallType: toCallback\nUpstash-Callback: https://app.example/flow\nUpstash-Retries: 2\n\
                Upstash-Callback-Forward-Upstash-Workflow-StepId: 2\nUpstash-Callback-Workflow-CallType: fromCallback\n\
                Upstash-Feature-Set: WF_NoDelete,InitialBody\nUpstash-Forward-X-Key: k\nUpstash-Method: PUT";
    let failure = "Upstash-Failure-Callback: https://app.example/flow\nUpstash-Label: l\nUpstash-Retry-Delay: 1000\n\
                   Upstash-Failure-Callback-Forward-Upstash-Workflow-Is-Failure: true\nUpstash-Failure-Callback-Retries: 1\n\
                   Upstash-Flow-Control-Key: k\nUpstash-Flow-Control-Value: rate=1\nUpstash-Forward-X-User: ü\nUpstash-Delay: 5s";
    let invoke = r#"{"body":"{}","headers":{"Upstash-Forward-X":["1"]},"workflowRunId":"wfr_1","workflowRunCreatedAt":5,
                     "workflowUrl":"https://app.example/flow","step":{"stepId":3,"stepType":"Invoke","concurrent":1}}"#;
    let wait = r#"{"url":"u","timeout":"10s","timeoutHeaders":{"Upstash-Workflow-RunId":["wfr_1"],"Upstash-Forward-X":"1"},
                   "step":{"stepId":4,"stepType":"Wait","stepName":"w","concurrent":1}}"#;
    // Headers that no client may set.
    const FORGED: &str = "Upstash-Forward-Upstash-Signature: s\nUpstash-Forward-Upstash-Message-Id: msg_1\n\
                          Upstash-Forward-Connection: close\nUpstash-Forward-Proxy-X: p\nUpstash-Forward-Posthaste-Hops: 1\n\
                          Upstash-Callback-Forward-Upstash-Retried: 1\nUpstash-Forward-Transfer-Encoding: chunked";
    let forged_invoke = r#"{"headers":{"Upstash-Forward-Upstash-Signature":["1"],"Upstash-Forward-Upstash-Caller-Ip":"::1",
                            "Upstash-Forward-Host":"h","Upstash-Forward-Proxy-A":"b","Upstash-Forward-Posthaste-Hops":"1"},"workflowRunId":"wfr_1",
                            "workflowUrl":"https://app.example/flow","step":{"stepId":3}}"#;
    let forged_wait = r#"{"timeout":"1s","timeoutHeaders":{"Upstash-Workflow-RunId":["wfr_1"],"Upstash-Forward-Upstash-Region":"r",
                          "Upstash-Forward-Upstash-Topic-Name":["t"],"Upstash-Forward-Te":"t"},"step":{"stepId":4}}"#;
    let mut seeds = Vec::new();
    for (kind, head, body) in [
        ("0", STEP.to_owned(), step),
        ("0", format!("{STEP}\nUpstash-Delay: 10s"), r#"{"stepId":0,"targetStep":2,"concurrent":2}"#),
        ("0", format!("{STEP}\n{call}"), "{}"),
        ("0", format!("{start}\n{failure}"), r#"{"order":7}"#),
        (
            "0",
            format!("{start}\nUpstash-Workflow-Invoke: true\nUpstash-Forward-Upstash-Workflow-Invoke-Count: 2"),
            invoke,
        ),
        ("0", format!("{start}\nUpstash-Workflow-Trigger-By-Sdk: true\nUpstash-Workflow-CreatedAt: 5"), "x"),
        ("0", format!("{STEP}\n{FORGED}"), step),
        ("0", format!("{STEP}\n{call}\n{FORGED}"), "{}"),
        ("0", format!("{start}\nUpstash-Workflow-Invoke: true"), forged_invoke),
        ("1", failure.to_owned(), "{}"),
        ("1", "Upstash-Workflow-Unknown-Sdk: true\nUpstash-Forward-Host: h".to_owned(), ""),
        ("2", "Upstash-Workflow-RunId: wfr_1\nUpstash-Workflow-CallType: step".to_owned(), wait),
        ("2", "Upstash-Workflow-RunId: wfr_1".to_owned(), forged_wait),
        ("2", String::new(), r#"{"timeout":7,"timeoutHeaders":{"Upstash-Workflow-RunId":"r"},"step":{"stepId":1}}"#),
    ] {
        // The digits are the remainders that select the kind.
        let kind = kind.as_bytes()[0] - b'0';
        seeds.push([&[kind], head.as_bytes(), b"\n\n", body.as_bytes()].concat());
    }
    seeds.extend(with_prefix(
        &[3],
        own(&["state=RUN_FAILED&workflowRunId=a&label=l&fromDate=1&toDate=2&count=3", "groupBy=x"]),
    ));
    seeds
}

/// Events of a run, one per line: steps, branches, calls, waits, events, ends.
pub fn workflow_steps() -> Vec<Vec<u8>> {
    const RUN: &str = r#"{"stepId":1,"stepName":"a","stepType":"Run","out":"1","concurrent":1}"#;
    const PLAN: &str = r#"{"stepId":0,"stepName":"a","stepType":"Run","concurrent":2,"targetStep":2}"#;
    const WAIT: &str = r#"{"stepId":3,"stepName":"w","stepType":"Wait","concurrent":1}"#;
    let line = |kind: u8, text: &str| [&[b'\n', kind], text.as_bytes()].concat();
    let inputs: [&[(u8, &str)]; 10] = [
        // A number that changes unless it is read exactly.
        &[(3, r#"{"stepId":1,"concurrent":118446744073709570000.0}"#)],
        // Results for a step that already has one, from various senders.
        &[(0, r#"{"stepId":4,"out":"1"}"#), (6, r#"{"stepId":4,"stepType":"Invoke"}"#), (3, r#"{"stepId":4}"#)],
        &[(6, r#"{"stepId":4}"#), (6, r#"{"stepId":4,"stepName":"b"}"#), (5, "early"), (3, r#"{"stepId":4}"#)],
        &[(0, RUN), (7, "0"), (7, "1")],
        &[
            (0, PLAN),
            (0, r#"{"stepId":0,"concurrent":2,"targetStep":3}"#),
            (0, r#"{"stepId":2,"concurrent":2,"out":"x"}"#),
            (0, WAIT),
        ],
        &[(2, "2"), (7, "1"), (2, "3"), (8, "3")],
        &[(3, WAIT), (5, "data"), (3, WAIT), (9, "1")],
        &[(5, "early"), (3, WAIT), (9, "0")],
        &[(4, r#"{"stepId":4,"stepType":"Invoke"}"#), (6, r#"{"stepId":4,"stepType":"Invoke"}"#), (8, "0")],
        &[
            (0, r#"{"stepId":4294967295,"targetStep":4294967295}"#),
            (0, "not json"),
            (0, r#"{"stepId":-1}"#),
            (8, "1"),
            (6, "{}"),
        ],
    ];
    let input = |lines: &&[(u8, &str)]| {
        let lines = lines.iter().flat_map(|(kind, text)| line(*kind, text));
        br#"{"order":7}"#.iter().copied().chain(lines).collect()
    };
    inputs.iter().map(input).collect()
}
