//! Which messages: the form of the list, and what a bulk cancel understands of it.

use crate::console::filters::{Filters, Form, choice, field};
use crate::console::visitor::Problem;

/// States, and what to call them.
const STATES: &[(&str, &str)] = &[
    ("", "any"),
    ("DELIVERED", "delivered"),
    ("FAILED", "failed"),
    ("CANCELED", "cancelled"),
    ("ERROR", "attempt failed"),
    ("RETRY", "retried"),
    ("ACTIVE", "attempted"),
    ("CANCEL_REQUESTED", "cancel requested"),
    ("CREATED", "published"),
];

/// Of `/v2/logs`.
pub(super) const MESSAGES: Form = Form {
    path: super::PATH,
    common: &[&[
        choice("state", "State", STATES),
        field("messageId", "Message ID", "msg_…"),
        field("label", "Label", ""),
        field("host", "Host", "api.example.com"),
        field("queueName", "Queue", ""),
        field("flowControlKey", "Flow-control key", ""),
    ]],
    others: &[&[
        field("url", "Exact URL", "https://…"),
        field("path", "Path", "/hook"),
        field("urlGroup", "URL group", ""),
        field("scheduleId", "Schedule ID", ""),
        field("callerIp", "Caller IP", "10.0.0.7"),
        field("sourceMessageId", "Source message", "msg_…"),
        field("fromDate", "From (UTC)", ""),
        field("toDate", "To (UTC)", ""),
    ]],
    hint: "Separate several values with commas to match any of them. Times are those of log lines. A state matches if any log line of the message has it.",
};

/// As a bulk cancel wants them: it is about messages, whatever happened to them.
pub(super) fn for_cancel(filters: &Filters) -> Result<String, Problem> {
    filters.for_cancel("messages", &["state", "sourceMessageId"], &[("async", "true")])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_has_the_filters_of_the_list_or_is_refused() {
        let cancel = |text: &str| for_cancel(&Filters::read(&MESSAGES, text)).ok();
        assert_eq!(cancel("label=a&cursor=1-2&order=x").as_deref(), Some("label=a&async=true"));
        for refused in ["state=FAILED", "label=a&sourceMessageId=msg_1", "toDate=soon"] {
            assert_eq!(cancel(refused), None, "{refused}");
        }
    }
}
