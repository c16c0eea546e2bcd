//! How many bytes an entry adds to a page, the same for all backends: its body and all other parts of variable length.

use posthaste_engine::event::{DeadLetter, Event, Response};
use posthaste_engine::message::{CallbackSpec, Message, MessageSpec};
use posthaste_engine::schedule::{Schedule, ScheduleTarget};
use posthaste_engine::url_group::UrlGroup;
use posthaste_engine::workflow::run::Wait;

/// Counted bytes of one message's state in a schedule's last firing, because the message is looked up.
const LAST_MESSAGE_BYTES: usize = 1_024;

/// A log line, which is shown with its message.
pub fn of_event(event: &Event, message: &Message) -> usize {
    let error = event.detail.error.as_ref().map_or(0, String::len);
    of_message(message) + error + event.detail.response.as_deref().map_or(0, of_response)
}

/// A dead letter with its message.
pub(super) fn of_dead_letter(letter: &DeadLetter, message: &Message) -> usize {
    let error = letter.error.as_ref().map_or(0, String::len);
    of_message(message) + error + letter.response.as_deref().map_or(0, of_response)
}

/// A message with the part of its body that was read.
fn of_message(message: &Message) -> usize {
    message.body.len() + of_spec(&message.spec)
}

/// A schedule without its body.
pub(super) fn of_schedule_head(schedule: &Schedule) -> usize {
    let (ScheduleTarget::Url(target) | ScheduleTarget::Group(target)) = &schedule.plan.destination;
    let texts = schedule.id.len() + schedule.cron_text().len() + target.len();
    let states = schedule.state.last_messages.len() * LAST_MESSAGE_BYTES;
    texts + of_spec(&schedule.plan.spec) + states + schedule.state.error.as_ref().map_or(0, String::len)
}

/// A URL group with its endpoints and headers.
pub(super) fn of_url_group(group: &UrlGroup) -> usize {
    let endpoints = group.endpoints.iter();
    let endpoints = endpoints.map(|endpoint| endpoint.url.len() + endpoint.name.as_ref().map_or(0, String::len));
    group.name.len() + endpoints.sum::<usize>() + of_headers(&group.headers)
}

/// A wait for an event. Its headers are shown twice.
pub(super) fn of_wait(wait: &Wait) -> usize {
    let values = |values: &[String]| values.iter().map(String::len).sum::<usize>();
    2 * wait.headers.iter().map(|(name, list)| name.len() + values(list)).sum::<usize>()
}

fn of_spec(spec: &MessageSpec) -> usize {
    let callbacks = [spec.callback.as_deref(), spec.failure_callback.as_deref()].into_iter().flatten();
    let callbacks = callbacks.map(|callback: &CallbackSpec| callback.url.len() + of_headers(&callback.headers));
    let labels = spec.labels.iter().map(String::len).sum::<usize>();
    spec.url.len() + of_headers(&spec.headers) + labels + callbacks.sum::<usize>()
}

fn of_response(response: &Response) -> usize {
    response.body.len() + of_headers(&response.headers)
}

fn of_headers(headers: &[(String, String)]) -> usize {
    headers.iter().map(|(name, value)| name.len() + value.len()).sum()
}
