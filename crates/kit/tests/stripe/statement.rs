//! Statements of the service that can be held inside of the database: a trigger waits for a lock that the test has.

use super::support::postgres::Postgres;
use super::support::wait::until;
use sqlx::{Connection as _, PgConnection};

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// The row of a payment is written, and nothing is committed.
    WriteRow = 1,
    /// It is being committed. What dies now cannot stop that.
    CommitRow = 2,
    /// A mail is being marked as sent, and nothing is committed.
    WriteMark = 3,
    /// That is being committed.
    CommitMark = 4,
}

/// A trigger for each. Those that are deferred wait in `COMMIT`.
const TRIGGERS: &str = "
CREATE TABLE IF NOT EXISTS payments (invoice text NOT NULL, customer text NOT NULL, cents bigint NOT NULL);
CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock_shared(0, TG_ARGV[0]::int); RETURN NULL; END $$;
CREATE TRIGGER write_row AFTER INSERT ON payments FOR EACH ROW EXECUTE FUNCTION hold(1);
CREATE CONSTRAINT TRIGGER commit_row AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION hold(2);
CREATE TRIGGER write_mark AFTER UPDATE ON idempotency_keys
    FOR EACH ROW WHEN (NEW.domain = 'mail' AND NEW.status = 'completed') EXECUTE FUNCTION hold(3);
CREATE CONSTRAINT TRIGGER commit_mark AFTER UPDATE ON idempotency_keys DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (NEW.domain = 'mail' AND NEW.status = 'completed') EXECUTE FUNCTION hold(4);
";

/// Makes it possible to hold statements.
pub(crate) async fn prepare(postgres: &Postgres) {
    postgres.run_sql(TRIGGERS).await;
}

/// The lock for which the statement waits.
pub(crate) struct Held {
    connection: PgConnection,
    number: i32,
}

impl Held {
    pub(crate) async fn hold(postgres: &Postgres, statement: Statement) -> Held {
        let mut connection = PgConnection::connect(&postgres.url()).await.unwrap();
        let number = statement as i32;
        let lock = sqlx::query("SELECT pg_advisory_lock(0, $1)").bind(number);
        lock.execute(&mut connection).await.unwrap();
        Held { connection, number }
    }

    /// Returns when somebody waits.
    pub(crate) async fn caught(&self, postgres: &Postgres) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 0";
        until("a statement to be held", || async {
            let waiting = postgres.count(format!("{waiting} AND objid = {}", self.number)).await;
            if waiting > 0 { Ok(()) } else { Err("nobody waits".to_owned()) }
        })
        .await;
    }

    /// Lets it go on, without anybody who waits for its outcome.
    pub(crate) async fn release(self) {
        self.connection.close().await.unwrap();
    }
}
