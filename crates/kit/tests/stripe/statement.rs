//! Holds statements of the service inside the database: a trigger waits for a lock that the test holds.

use super::support::postgres::Postgres;
use super::support::wait::until;
use sqlx::{Connection as _, PgConnection};

/// The statement to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Statement {
    /// The row of a payment was written but not committed.
    WriteRow = 1,
    /// The row is being committed. Killing the service now cannot stop that.
    CommitRow = 2,
    /// A mail was marked as sent, but that is not committed.
    WriteMark = 3,
    /// The mark is being committed.
    CommitMark = 4,
}

/// A trigger for each. Deferred triggers wait inside `COMMIT`.
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

/// Installs the triggers.
pub(crate) async fn prepare(postgres: &Postgres) {
    postgres.run_sql(TRIGGERS).await;
}

/// The lock that the statement waits for.
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

    /// Returns when a statement waits for the lock.
    pub(crate) async fn caught(&self, postgres: &Postgres) {
        let waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND classid = 0";
        until("a statement to be held", || async {
            let waiting = postgres.count(format!("{waiting} AND objid = {}", self.number)).await;
            if waiting > 0 { Ok(()) } else { Err("nobody waits".to_owned()) }
        })
        .await;
    }

    /// Lets the statement continue. Its client may be dead by then.
    pub(crate) async fn release(self) {
        self.connection.close().await.unwrap();
    }
}
