//! Which messages: the form of the list, and what a bulk cancel understands of it.

use crate::console::filters::{Filters, Form, choice, field};
use crate::console::visitor::Problem;

/// States, and what to call them.
const STATES: &[(&str, &str)] = &[
    ("", "any"),
    ("DELIVERED", "delivered"),
    ("FAILED", "failed"),
    ("CANCELED", "cancelled"),
    ("ERROR", "had a failed attempt"),
    ("RETRY", "was retried"),
    ("ACTIVE", "was attempted"),
    ("CANCEL_REQUESTED", "cancel requested"),
    ("CREATED", "published"),
];

/// Of `/v2/logs`.
pub(super) const MESSAGES: Form = Form {
    path: super::PATH,
    common: &[&[
        choice("state", "State", STATES),
        field("messageId", "Message id", "msg_…"),
        field("label", "Label", ""),
        field("host", "Host", "api.example.com"),
        field("queueName", "Queue", ""),
        field("flowControlKey", "Flow-control key", ""),
    ]],
    others: &[&[
        field("url", "Destination, exactly", "https://…"),
        field("path", "Path", "/hook"),
        field("urlGroup", "URL group", ""),
        field("scheduleId", "Schedule", ""),
        field("callerIp", "Published from", "10.0.0.7"),
        field("sourceMessageId", "Caused by message", "msg_…"),
        field("fromDate", "From (UTC)", ""),
        field("toDate", "To (UTC)", ""),
    ]],
    hint: "Several values with commas mean “or”. Times are those of the log lines; a state is found wherever it stands in a message's log.",
};

/// As a bulk cancel wants them: it is about messages, whatever happened to them.
pub(super) fn for_cancel(filters: &Filters) -> Result<String, Problem> {
    filters.for_cancel("messages", &["state", "sourceMessageId"], &[("async", "true")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_hits_what_the_list_shows_or_nothing() {
        let cancel = |text: &str| for_cancel(&Filters::read(&MESSAGES, text)).ok();
        assert_eq!(cancel("label=a&cursor=1-2&order=x").as_deref(), Some("label=a&async=true"));
        for refused in ["state=FAILED", "label=a&sourceMessageId=msg_1", "toDate=soon"] {
            assert_eq!(cancel(refused), None, "{refused}");
        }
    }
}
