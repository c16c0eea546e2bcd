//! The service is killed at every point between an event and its acknowledgement.

use super::example::provider::Keys;
use super::example::show::{event, send_event, send_until_accepted};
use super::hop::{Half, Release};
use super::statement::{Held, Statement};
use super::within;
use super::world::World;
use tokio::sync::oneshot::Sender;

const HOOK: &str = "/hooks/stripe";
const PAYMENT: &str = "/jobs/payment";
const RECEIPT: &str = "/jobs/receipt";
const MAILS: &str = "/mails";

/// Where the service is when it is killed.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// A request to the queue.
    ToQueue(Half, &'static str),
    /// A request to the service.
    ToService(Half, &'static str),
    /// A request to the mail provider.
    ToProvider(Half, &'static str),
    /// A statement in the database.
    InDatabase(Statement),
}

/// The state of the mail at that point.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mail {
    /// The mail may be ordered, but sending has not begun.
    Unclaimed,
    /// Sending has begun.
    Claimed,
    /// The mail was sent but is not marked. A provider that ignores keys sends a second one.
    Sent,
    /// The mail was sent and is marked.
    Marked,
}

/// All points, in the order of a payment.
const POINTS: [(Point, Mail); 13] = [
    // Stripe's request is genuine, and the queue does not have it yet.
    (Point::ToQueue(Half::Request, PAYMENT), Mail::Unclaimed),
    (Point::ToQueue(Half::Answer, PAYMENT), Mail::Unclaimed),
    // The queue has it, but Stripe got no response.
    (Point::ToService(Half::Answer, HOOK), Mail::Unclaimed),
    (Point::InDatabase(Statement::WriteRow), Mail::Unclaimed),
    (Point::InDatabase(Statement::CommitRow), Mail::Unclaimed),
    // The row exists, but the mail is not ordered.
    (Point::ToQueue(Half::Request, RECEIPT), Mail::Unclaimed),
    (Point::ToQueue(Half::Answer, RECEIPT), Mail::Unclaimed),
    // The payment is complete, but the queue got no response.
    (Point::ToService(Half::Answer, PAYMENT), Mail::Unclaimed),
    // The mail is claimed but not sent.
    (Point::ToProvider(Half::Request, MAILS), Mail::Claimed),
    // The mail was sent, but the service got no response.
    (Point::ToProvider(Half::Answer, MAILS), Mail::Sent),
    (Point::InDatabase(Statement::WriteMark), Mail::Sent),
    (Point::InDatabase(Statement::CommitMark), Mail::Marked),
    // Everything is done, but the queue got no response.
    (Point::ToService(Half::Answer, RECEIPT), Mail::Marked),
];

/// A service that is held at a point.
enum Caught {
    OnTheWay(Sender<Release>),
    InDatabase(Held),
}

impl World {
    /// Sends the event of a payment, and returns when the service is at the point.
    async fn catch_at(&self, point: Point, invoice: &str) -> Caught {
        let (hop, half, end) = match point {
            Point::ToQueue(half, end) => (&self.to_queue, half, end),
            Point::ToService(half, end) => (&self.to_service, half, end),
            Point::ToProvider(half, end) => (&self.to_provider, half, end),
            Point::InDatabase(statement) => {
                let held = Held::hold(&self.postgres, statement).await;
                self.stripe_sends_once(invoice);
                held.caught(&self.postgres).await;
                return Caught::InDatabase(held);
            }
        };
        let armed = hop.hold(half, end);
        self.stripe_sends_once(invoice);
        Caught::OnTheWay(armed.caught().await)
    }

    /// Sends the event once. The response is ignored, because it may be lost.
    fn stripe_sends_once(&self, invoice: &str) {
        let (base, event) = (self.to_service.url(), event("first", invoice));
        tokio::spawn(async move { drop(send_event(&base, &event).await) });
    }

    /// Sends events until they are accepted: the same event twice at once, and another event of the same payment.
    async fn stripe_sends_repeatedly(&self, invoice: &str) {
        let (base, [first, second]) = (self.to_service.url(), ["first", "second"].map(|name| event(name, invoice)));
        let tells = async {
            tokio::join!(
                send_until_accepted(&base, &first),
                send_until_accepted(&base, &first),
                send_until_accepted(&base, &second)
            )
        };
        within("that Stripe was heard", tells).await;
    }
}

/// Kills a service at each point, and lets another one take over.
async fn kill_everywhere(keys: Keys) {
    let world = World::start(keys).await;
    for (number, (point, mail)) in POINTS.into_iter().enumerate() {
        let invoice = format!("in_{number}");
        let mut worker = world.start_worker();
        let ordered = world.to_queue.requests(RECEIPT);
        // Otherwise a queue that has the order of the mail would deliver it, whatever the rest of the service waits
        // for.
        let kept_back = (mail == Mail::Unclaimed).then(|| world.to_service.hold(Half::Request, RECEIPT));
        let caught = world.catch_at(point, &invoice).await;
        if matches!(point, Point::InDatabase(Statement::WriteRow | Statement::CommitRow)) {
            assert_eq!(world.to_queue.requests(RECEIPT), ordered, "a mail was ordered before its row was there");
        }
        world.to_service.lead_to(None);
        worker.kill();
        drop(kept_back);
        match caught {
            Caught::OnTheWay(release) => release.send(Release::Lose).unwrap(),
            Caught::InDatabase(held) => held.release().await,
        }
        let _other = world.start_worker();
        world.stripe_sends_repeatedly(&invoice).await;
        world.settled().await;
        world.publish_again(&invoice).await;
        world.settled().await;
        let mails = if mail == Mail::Sent && keys == Keys::Ignored { 2 } else { 1 };
        assert_eq!(world.rows_and_mails(&invoice).await, (1, mails), "rows and mails after a kill at {point:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_is_killed_anywhere_writes_one_row_and_sends_one_mail() {
    kill_everywhere(Keys::Honoured).await;
}

/// The only case that is not guaranteed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_kill_between_mail_and_mark_makes_a_provider_that_ignores_keys_send_two() {
    kill_everywhere(Keys::Ignored).await;
}
