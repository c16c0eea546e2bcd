//! A queue that delivers one message by a script, with duplicates, lost responses and closed connections, until the
//! message is delivered or has failed.

use super::{ManualClock, TestDelivery};
use crate::problem::{NON_RETRYABLE_HEADER, NON_RETRYABLE_STATUS};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use posthaste_wire::retry_after::retry_after_ms;
use posthaste_wire::time::Timestamp;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;
use tokio::task::JoinSet;

/// Number of retries of a message, as the kit's publisher requests.
const RETRIES: u32 = crate::job::MAX_RETRIES;
/// The wait before the first retry. Each further wait is twice as long.
const FIRST_WAIT: Duration = Duration::from_secs(10);
/// How often the wait doubles at most.
const DOUBLINGS_MAX: u32 = 12;

/// The fate of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Normal delivery: the handler gets the request, and the queue gets the response.
    Deliver,
    /// The handler gets this number of requests at the same time. A success among the responses counts, otherwise the
    /// first.
    AtOnce(usize),
    /// The handler gets the request, but its response is lost.
    LoseAnswer,
    /// The queue closes the connection as soon as the handler waits for something.
    HangUp,
    /// The handler cannot be reached and gets nothing.
    Unreachable,
}

/// An attempt and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The step of the script.
    pub step: Step,
    /// Status of each response, including lost ones.
    pub statuses: Vec<u16>,
    /// How long the queue waited afterwards; `None` after the last attempt.
    pub waited: Option<Duration>,
}

/// How the delivery ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The queue received a success.
    Delivered,
    /// The handler rejected the message permanently.
    Refused,
    /// No retries were left.
    Exhausted,
}

/// The result of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How it ended.
    pub ended: Ended,
    /// All attempts, in order.
    pub attempts: Vec<Attempt>,
}

impl Report {
    /// Whether the queue received a success.
    pub fn is_delivered(&self) -> bool {
        self.ended == Ended::Delivered
    }

    /// All statuses of all attempts.
    pub fn statuses(&self) -> Vec<u16> {
        self.attempts.iter().flat_map(|attempt| attempt.statuses.iter().copied()).collect()
    }
}

/// A queue that delivers by a script. Its waits advance a [`ManualClock`] and take no time.
///
/// ```
/// use http::Response;
/// use posthaste_kit::problem::ResponseBody;
/// use posthaste_kit::testing::{ManualClock, ScriptedQueue, Step, TestDelivery};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let queue = ScriptedQueue::new("sig_1", ManualClock::new()).script([Step::LoseAnswer, Step::AtOnce(2)]);
/// let message = TestDelivery::to("https://app.example.com/jobs").body("{}");
/// // Your handler: `|request| { let jobs = jobs.clone(); async move { jobs.handle(request).await } }`
/// let report = queue.deliver(&message, |_| async { Response::new(ResponseBody::default()) }).await;
/// assert!(report.is_delivered());
/// assert_eq!(report.statuses(), [200, 200, 200]);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct ScriptedQueue {
    key: String,
    clock: ManualClock,
    script: Vec<Step>,
    retries: u32,
    sleeps: bool,
}

impl ScriptedQueue {
    /// A queue that signs with this key. Without a script it delivers normally, and it retries like the kit's
    /// publisher.
    pub fn new(key: impl Into<String>, clock: ManualClock) -> ScriptedQueue {
        ScriptedQueue { key: key.into(), clock, script: Vec::new(), retries: RETRIES, sleeps: false }
    }

    /// Sets the steps of the attempts, in order. Further attempts are delivered normally.
    pub fn script(mut self, steps: impl IntoIterator<Item = Step>) -> ScriptedQueue {
        self.script = steps.into_iter().collect();
        self
    }

    /// Sets the number of retries.
    pub fn retries(mut self, retries: u32) -> ScriptedQueue {
        self.retries = retries;
        self
    }

    /// Makes waits advance Tokio's clock too, so that the locks of a store that uses it expire. For tests that have
    /// paused Tokio's clock; otherwise the waits take real time.
    pub fn on_tokio_time(mut self) -> ScriptedQueue {
        self.sleeps = true;
        self
    }

    /// Delivers the message until the handler succeeds or rejects it permanently, or no retries are left. It does not
    /// wait for handlers that still run after a closed connection.
    pub async fn deliver<H, F, B>(&self, message: &TestDelivery, handler: H) -> Report
    where
        H: Fn(Request<Full<Bytes>>) -> F,
        F: Future<Output = Response<B>> + Send + 'static,
        B: Send + 'static,
    {
        let mut script = VecDeque::from(self.script.clone());
        let mut attempts = Vec::new();
        for retried in 0..=self.retries {
            let step = script.pop_front().unwrap_or(Step::Deliver);
            let delivery = message.clone().retried(retried);
            let request = || delivery.sign(&self.key, self.clock.now());
            let Answers { statuses, heard } = answers(step, || handler(request())).await;
            let verdict = heard.map_or(Verdict::Failed { wait: None }, |heard| heard.verdict(&self.clock));
            let wait = match verdict {
                Verdict::Failed { wait } if retried < self.retries => wait.unwrap_or_else(|| back_off(retried)),
                _ => {
                    attempts.push(Attempt { step, statuses, waited: None });
                    return Report { ended: verdict.end(), attempts };
                }
            };
            self.clock.advance(wait);
            if self.sleeps {
                tokio::time::sleep(wait).await;
            }
            attempts.push(Attempt { step, statuses, waited: Some(wait) });
        }
        Report { ended: Ended::Exhausted, attempts }
    }
}

/// How the queue interprets a response.
#[derive(Clone, Copy)]
enum Verdict {
    Delivered,
    Refused,
    Failed { wait: Option<Duration> },
}

impl Verdict {
    fn end(self) -> Ended {
        match self {
            Verdict::Delivered => Ended::Delivered,
            Verdict::Refused => Ended::Refused,
            Verdict::Failed { .. } => Ended::Exhausted,
        }
    }
}

/// All responses, and the one that the queue received.
struct Answers {
    statuses: Vec<u16>,
    heard: Option<Heard>,
}

/// A response without its body.
struct Heard {
    parts: http::response::Parts,
}

impl Heard {
    fn verdict(&self, clock: &ManualClock) -> Verdict {
        let headers = &self.parts.headers;
        let status = self.parts.status;
        if status.is_success() {
            return Verdict::Delivered;
        }
        let says_final = headers.get(NON_RETRYABLE_HEADER).is_some_and(|value| value == "true");
        if status.as_u16() == NON_RETRYABLE_STATUS && says_final {
            return Verdict::Refused;
        }
        let now = Timestamp(super::clock::millis_of(clock.now()));
        let wait = retry_after_ms(|name| headers.get(name)?.to_str().ok(), now);
        Verdict::Failed { wait: wait.map(Duration::from_millis) }
    }
}

async fn answers<F, B>(step: Step, send: impl Fn() -> F) -> Answers
where
    F: Future<Output = Response<B>> + Send + 'static,
    B: Send + 'static,
{
    let at_once = match step {
        Step::Unreachable => 0,
        Step::HangUp => return hang_up(send()),
        Step::Deliver | Step::LoseAnswer => 1,
        Step::AtOnce(times) => times,
    };
    let mut running = JoinSet::new();
    for _ in 0..at_once {
        running.spawn(send());
    }
    let answered = running.join_all().await.into_iter().map(|response| response.into_parts().0);
    let mut all: Vec<_> = answered.map(|parts| Heard { parts }).collect();
    let statuses = all.iter().map(|heard| heard.parts.status.as_u16()).collect();
    // Successes first, otherwise in order.
    all.sort_by_key(|heard| !heard.parts.status.is_success());
    let heard = if step == Step::LoseAnswer { None } else { all.into_iter().next() };
    Answers { statuses, heard }
}

/// Polls the handler until it first waits, and then drops it.
fn hang_up<B>(sent: impl Future<Output = Response<B>>) -> Answers {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let statuses = match pin!(sent).poll(&mut context) {
        std::task::Poll::Ready(response) => vec![response.status().as_u16()],
        std::task::Poll::Pending => Vec::new(),
    };
    Answers { statuses, heard: None }
}

/// `10000 * pow(2, retried)` milliseconds, up to half a day.
fn back_off(retried: u32) -> Duration {
    FIRST_WAIT * 2_u32.pow(retried.min(DOUBLINGS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;
    use crate::problem::{Problem, ResponseBody};
    use http::StatusCode;
    use std::sync::Mutex;

    async fn report(queue: ScriptedQueue, answers: &[fn() -> Response<ResponseBody>]) -> Report {
        let asked = Mutex::new(0);
        let message = TestDelivery::to("https://app.example.com/jobs");
        let handler = |_: Request<_>| {
            let mut asked = asked.lock().unwrap();
            let answer = answers[(*asked).min(answers.len() - 1)]();
            *asked += 1;
            async move { answer }
        };
        queue.deliver(&message, handler).await
    }

    fn queue() -> ScriptedQueue {
        ScriptedQueue::new("sig_1", ManualClock::new())
    }

    fn good() -> Response<ResponseBody> {
        Response::new(ResponseBody::default())
    }

    fn bad() -> Response<ResponseBody> {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "bad").into_response()
    }

    fn later() -> Response<ResponseBody> {
        Problem::new(StatusCode::CONFLICT, "later").retry_after(Duration::from_secs(7)).into_response()
    }

    fn never() -> Response<ResponseBody> {
        Problem::non_retryable("never").into_response()
    }

    fn waits(report: &Report) -> Vec<Option<u64>> {
        report.attempts.iter().map(|attempt| attempt.waited.map(|wait| wait.as_secs())).collect()
    }

    #[tokio::test]
    async fn failures_are_retried_as_the_policy_or_the_response_says() {
        let clock = ManualClock::new();
        let start = clock.now();
        let report = report(ScriptedQueue::new("sig_1", clock.clone()), &[bad, bad, later, good]).await;
        assert_eq!(report.statuses(), [503, 503, 409, 200]);
        assert_eq!((report.ended, waits(&report)), (Ended::Delivered, vec![Some(10), Some(20), Some(7), None]));
        assert_eq!(clock.now().duration_since(start).unwrap(), Duration::from_secs(37));
    }

    #[tokio::test]
    async fn a_message_fails_when_it_is_rejected_or_out_of_retries() {
        let refused = report(queue(), &[bad, never, good]).await;
        assert_eq!((refused.ended, refused.statuses()), (Ended::Refused, vec![503, 489]));
        let exhausted = report(queue().retries(2), &[bad]).await;
        assert_eq!((exhausted.ended, exhausted.statuses()), (Ended::Exhausted, vec![503, 503, 503]));
    }

    #[tokio::test]
    async fn the_status_alone_does_not_end_a_message() {
        fn only_status() -> Response<ResponseBody> {
            let mut response = never();
            response.headers_mut().remove(NON_RETRYABLE_HEADER);
            response
        }
        let report = report(queue(), &[only_status, good]).await;
        assert_eq!((report.ended, report.statuses()), (Ended::Delivered, vec![489, 200]));
    }

    #[tokio::test]
    async fn the_script_decides_which_response_the_queue_gets() {
        let script = [Step::Unreachable, Step::LoseAnswer, Step::HangUp, Step::AtOnce(3)];
        let report = report(queue().script(script), &[good, good, bad, good, bad]).await;
        assert!(report.is_delivered());
        let statuses: Vec<_> = report.attempts.iter().map(|attempt| attempt.statuses.clone()).collect();
        assert_eq!(statuses[..3], [vec![], vec![200], vec![200]]);
        assert_eq!((statuses[3].len(), statuses[3].contains(&200)), (3, true));
    }

    #[tokio::test]
    async fn closing_the_connection_drops_the_request_at_its_first_wait() {
        let dropped = Mutex::new(Vec::new());
        let message = TestDelivery::to("https://app.example.com/jobs");
        let handler = |request: Request<_>| {
            let retried = request.headers()["upstash-retried"].clone();
            dropped.lock().unwrap().push(retried.clone());
            async move {
                if retried == "0" {
                    std::future::pending::<Failure>().await;
                }
                good()
            }
        };
        let report = queue().script([Step::HangUp]).deliver(&message, handler).await;
        assert_eq!(report.statuses(), [200]);
        assert_eq!(*dropped.lock().unwrap(), ["0", "1"]);
    }
}
