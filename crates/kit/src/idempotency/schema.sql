-- Tables of posthaste-kit. Everything is created only if it is not there; put it into a migration of your own, or call
-- posthaste_kit::idempotency::postgres::create_tables.

-- Fences grow over all keys, so that one is never used twice, also after rows were pruned.
CREATE SEQUENCE IF NOT EXISTS idempotency_fence;

-- Keys of deliveries and of work that are under way or done. A row whose time is over counts as absent.
CREATE TABLE IF NOT EXISTS idempotency_locks (
    key     text        PRIMARY KEY,
    token   bytea       NOT NULL,
    fence   bigint      NOT NULL,
    is_done boolean     NOT NULL,
    until   timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS idempotency_locks_until ON idempotency_locks (until);

-- Requests, what became of them, and what was answered: written in the transaction of the effect.
CREATE TABLE IF NOT EXISTS idempotency_keys (
    domain       text        NOT NULL,
    user_id      text        NOT NULL,
    key          text        NOT NULL,
    status       text        NOT NULL CHECK (status IN ('processing', 'completed', 'failed')),
    request_hash bytea       NOT NULL CHECK (length(request_hash) = 32),
    response     bytea,
    error        text,
    fence        bigint      NOT NULL,
    locked_until timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    updated_at   timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    PRIMARY KEY (domain, user_id, key)
);
CREATE INDEX IF NOT EXISTS idempotency_keys_expires_at ON idempotency_keys (expires_at);
