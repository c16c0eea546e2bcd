//! Filling in the form again from the message that was sent: what has no place in a URL is asked of the API.

use super::super::Visitor;
use super::super::form::is_hidden;
use super::super::visitor::segment;
use super::form::Fields;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Header lines, by name.
type Headers = BTreeMap<String, Vec<String>>;

/// What the API says of the message.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Message {
    #[serde(default)]
    header: Headers,
    #[serde(default)]
    callback_header: Headers,
    #[serde(default)]
    failure_callback_header: Headers,
    body: Option<String>,
    topic_name: Option<String>,
    deduplication: Option<String>,
}

/// Fills in what the query does not say. Gives what remains to be said by the visitor.
pub(super) async fn fill(visitor: &Visitor, fields: &mut Fields, id: &str) -> Vec<String> {
    match visitor.get::<Message>(&format!("/v2/messages/{}", segment(id))).await {
        Ok(message) => message.fill(fields),
        Err(_) => {
            // The example would look like what was sent.
            fields.body = String::new();
            vec!["body and headers (no longer stored)".to_owned()]
        }
    }
}

impl Message {
    fn fill(self, fields: &mut Fields) -> Vec<String> {
        let mut left_out = Vec::new();
        fields.body = self.body.unwrap_or_default();
        if is_hidden(&fields.body) {
            fields.body = String::new();
            left_out.push("body (hidden)".to_owned());
        }
        let mut lines = |prefix: &str, headers: Headers| {
            let mut text = String::new();
            for (name, values) in headers.into_iter().filter(|(name, _)| !name.eq_ignore_ascii_case("content-type")) {
                for value in values {
                    match is_hidden(&value) {
                        true => left_out.push(format!("{prefix}{name} (hidden)")),
                        false => text.push_str(&format!("{prefix}{name}: {value}\n")),
                    }
                }
            }
            text
        };
        let options = [
            fields.options.trim_end().to_owned(),
            lines("Upstash-Callback-Forward-", self.callback_header),
            lines("Upstash-Failure-Callback-Forward-", self.failure_callback_header),
        ];
        fields.options = options
            .map(|text| text.trim_end().to_owned())
            .into_iter()
            .filter(|text| !text.is_empty())
            .collect::<Vec<_>>()
            .join("\n");
        if self.topic_name.is_none() {
            fields.headers = lines("", self.header).trim_end().to_owned();
        } else if !self.header.is_empty() {
            // Some may be a secret of this endpoint, and the next send goes to all of them.
            left_out.push("headers (some may belong to a single endpoint of the group)".to_owned());
        }
        if self.deduplication.as_deref() == Some("id") {
            left_out.push("deduplication ID (only its hash is stored)".to_owned());
        }
        left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filled(message: serde_json::Value) -> (Fields, Vec<String>) {
        let mut fields = Fields::default();
        fields.options = "Upstash-Callback-Retries: 1".to_owned();
        let message: Message = serde_json::from_value(message).unwrap();
        let left_out = message.fill(&mut fields);
        (fields, left_out)
    }

    #[test]
    fn the_form_is_filled_in_again_and_lists_what_is_left_out() {
        let (fields, left_out) = filled(json!({
            "body": "a\nb", "header": {"Content-Type": ["text/plain"], "X-One": ["1", "2"], "X-Two": ["REDACTED:ab"]},
            "callback": "https://a.example", "callbackHeader": {"X-Kind": ["yes"]}, "deduplication": "id",
        }));
        assert_eq!((&*fields.body, &*fields.headers), ("a\nb", "X-One: 1\nX-One: 2"));
        assert_eq!(fields.options, "Upstash-Callback-Retries: 1\nUpstash-Callback-Forward-X-Kind: yes");
        assert_eq!(left_out, ["X-Two (hidden)", "deduplication ID (only its hash is stored)"]);
        let (fields, left_out) = filled(json!({ "body": "REDACTED:ab" }));
        assert_eq!((&*fields.body, left_out.len()), ("", 1), "and not the example");
    }

    #[test]
    fn headers_of_one_endpoint_are_not_offered_to_all() {
        let message = json!({ "topicName": "group", "header": {"Authorization": ["Bearer secret"]}, "body": "x" });
        let (fields, left_out) = filled(message);
        assert_eq!((&*fields.headers, &*fields.body, left_out.len()), ("", "x", 1));
    }
}
