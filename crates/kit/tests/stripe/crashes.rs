//! The service is killed at every point at which something has happened and the next one does not know of it yet.

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

/// Where the service is when it dies.
#[derive(Clone, Copy, Debug)]
enum Point {
    /// On its way to the queue.
    ToQueue(Half, &'static str),
    /// On the way to it.
    ToService(Half, &'static str),
    /// On its way to the provider of mails.
    ToProvider(Half, &'static str),
    /// In the database.
    InDatabase(Statement),
}

/// How far the mail is then.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mail {
    /// Perhaps it is ordered, and nobody has begun to send it.
    Unclaimed,
    /// Somebody has begun to send it.
    Claimed,
    /// It is out, and that is not marked: a provider that ignores keys sends a second one.
    Sent,
    /// It is out, and marked.
    Marked,
}

/// All points, in the order in which a payment gets there.
const POINTS: [(Point, Mail); 13] = [
    // Stripe's request is genuine, and the queue does not have it.
    (Point::ToQueue(Half::Request, PAYMENT), Mail::Unclaimed),
    (Point::ToQueue(Half::Answer, PAYMENT), Mail::Unclaimed),
    // The queue has it, and Stripe does not know.
    (Point::ToService(Half::Answer, HOOK), Mail::Unclaimed),
    (Point::InDatabase(Statement::WriteRow), Mail::Unclaimed),
    (Point::InDatabase(Statement::CommitRow), Mail::Unclaimed),
    // The row is there, and nobody has ordered the mail.
    (Point::ToQueue(Half::Request, RECEIPT), Mail::Unclaimed),
    (Point::ToQueue(Half::Answer, RECEIPT), Mail::Unclaimed),
    // All of the payment is done, and the queue does not know.
    (Point::ToService(Half::Answer, PAYMENT), Mail::Unclaimed),
    // The mail is claimed, and not sent.
    (Point::ToProvider(Half::Request, MAILS), Mail::Claimed),
    // It is sent, and the service does not know.
    (Point::ToProvider(Half::Answer, MAILS), Mail::Sent),
    (Point::InDatabase(Statement::WriteMark), Mail::Sent),
    (Point::InDatabase(Statement::CommitMark), Mail::Marked),
    // All is done, and the queue does not know.
    (Point::ToService(Half::Answer, RECEIPT), Mail::Marked),
];

/// A service that is held at a point.
enum Caught {
    OnTheWay(Sender<Release>),
    InDatabase(Held),
}

impl World {
    /// Lets Stripe tell of a payment, and returns when the service is at a point.
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

    /// Once, and what it hears is nothing to rely on.
    fn stripe_sends_once(&self, invoice: &str) {
        let (base, event) = (self.to_service.url(), event("first", invoice));
        tokio::spawn(async move { drop(send_event(&base, &event).await) });
    }

    /// Stripe tells until somebody hears it: the same event twice at once, and another one of the same payment.
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

/// A service is killed at each point, and another one takes over.
async fn kill_everywhere(keys: Keys) {
    let world = World::start(keys).await;
    for (number, (point, mail)) in POINTS.into_iter().enumerate() {
        let invoice = format!("in_{number}");
        let mut worker = world.start_worker();
        let ordered = world.to_queue.requests(RECEIPT);
        // A queue that has the order of the mail delivers it whatever the rest of the service waits for.
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

/// What is not promised, and nothing but that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_a_kill_between_mail_and_mark_makes_a_provider_that_ignores_keys_send_two() {
    kill_everywhere(Keys::Ignored).await;
}
