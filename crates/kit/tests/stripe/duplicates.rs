//! The service stays alive. All messages arrive more than once, also concurrently, and the systems it depends on are
//! killed.

use super::example::provider::Keys;
use super::example::show::{self, event, send_until_accepted};
use super::hop::{Half, Release};
use super::server::{SIGNING_KEYS, Server, TOKEN};
use super::support::postgres::Postgres;
use super::support::wait::until;
use super::within;
use super::worker::program;
use super::world::World;
use rustix::process::Signal;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_messages_about_one_payment_are_one_row_and_one_mail() {
    let world = World::start(Keys::Ignored).await;
    let _worker = world.start_worker();
    let (base, first) = (world.to_service.url(), event("first", "in_1"));
    let told = async { tokio::join!(send_until_accepted(&base, &first), send_until_accepted(&base, &first)) };
    let again = || world.publish_again("in_1");
    within("all to be taken", async { tokio::join!(told, again(), again(), again(), again(), again(), again()) }).await;
    world.settled().await;
    assert_eq!(world.rows_and_mails("in_1").await, (1, 1));
    assert_eq!(world.provider.calls_and_mails("in_1").0, 1, "the provider has nothing to deduplicate");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_slept_through_its_lock_sends_its_mail_with_the_same_key() {
    let world = World::start(Keys::Honoured).await;
    let sleeper = world.start_worker();
    let armed = world.to_provider.hold(Half::Request, "/mails");
    send_until_accepted(&world.to_service.url(), &event("first", "in_1")).await;
    let request = armed.caught().await;
    sleeper.signal(Signal::STOP);
    // From now on the queue talks to another process, which must wait for the locks of the first.
    let _other = world.start_worker();
    world.settled().await;
    assert_eq!(world.provider.calls_and_mails("in_1"), (1, 1), "the other one has done the work");
    request.send(Release::GoOn).unwrap();
    sleeper.signal(Signal::CONT);
    until("the call of the sleeper", || async {
        match world.provider.calls_and_mails("in_1") {
            (2, _) => Ok(()),
            calls => Err(format!("{calls:?}")),
        }
    })
    .await;
    assert_eq!(world.rows_and_mails("in_1").await, (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_killed_before_it_gets_the_success_delivers_again() {
    let mut world = World::start(Keys::Ignored).await;
    let _worker = world.start_worker();
    for (path, invoice) in [("/jobs/payment", "in_1"), ("/jobs/receipt", "in_2")] {
        let armed = world.to_service.hold(Half::Answer, path);
        send_until_accepted(&world.to_service.url(), &event("first", invoice)).await;
        let answer = armed.caught().await;
        world.server.kill();
        answer.send(Release::Lose).unwrap();
        world.server.restart();
        world.settled().await;
        assert_eq!(world.rows_and_mails(invoice).await, (1, 1), "the answer of {path} was lost");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_killed_between_mail_and_mark_costs_no_second_mail() {
    let mut world = World::start(Keys::Honoured).await;
    let _worker = world.start_worker();
    let mail = world.to_provider.hold(Half::Answer, "/mails");
    let outcome = world.to_service.hold(Half::Answer, "/jobs/receipt");
    send_until_accepted(&world.to_service.url(), &event("first", "in_1")).await;
    let mail = mail.caught().await;
    world.postgres.kill().await;
    mail.send(Release::GoOn).unwrap();
    // The service has given up: it can neither mark the mail nor hold its lock.
    let outcome = outcome.caught().await;
    world.postgres.run().await;
    outcome.send(Release::GoOn).unwrap();
    world.settled().await;
    assert_eq!(world.rows_and_mails("in_1").await, (1, 1));
    assert_eq!(world.provider.calls_and_mails("in_1").0, 2, "the second attempt has asked for it again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_example_shows_what_it_says() {
    let (server, postgres) = (Server::start(), Postgres::start().await);
    show::run(&postgres.url(), || {
        let mut command = program();
        command.env("QSTASH_URL", server.url()).env("QSTASH_TOKEN", TOKEN).env("DEVELOPMENT", "true");
        command.env("QSTASH_CURRENT_SIGNING_KEY", SIGNING_KEYS[0]).env("QSTASH_NEXT_SIGNING_KEY", SIGNING_KEYS[1]);
        command
    })
    .await
    .unwrap();
}
