PRAGMA page_size = 8192; PRAGMA journal_mode = WAL; BEGIN IMMEDIATE;
CREATE TABLE meta(                  -- facts about the file itself
    key TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO meta VALUES
    ('opens', 0),                   -- how often the file was opened; orders log lines over restarts
    ('flushes', 0),                 -- changed when only a sync is wanted
    ('last_seq', 0);                -- highest seq among the messages that were dropped
CREATE TABLE tenant(
    no INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
CREATE TABLE signing_key(
    tenant INTEGER PRIMARY KEY,
    current TEXT NOT NULL,          -- secret
    next TEXT NOT NULL              -- secret
);
CREATE TABLE url_group(
    tenant INTEGER NOT NULL,
    name TEXT NOT NULL,
    data TEXT NOT NULL,             -- JSON: times, endpoints, default headers
    PRIMARY KEY(tenant, name)
) WITHOUT ROWID;
CREATE TABLE shard(
    shard INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL          -- raised by every new owner; writes of older owners are refused
);
CREATE TABLE live(                  -- what is next for each message that has not ended
    seq INTEGER PRIMARY KEY,        -- position in the order of creation: creation ms << 20 | counter
    tag INTEGER NOT NULL,           -- random half of the message id
    tenant INTEGER NOT NULL,
    origin INTEGER NOT NULL,        -- hash of tenant and destination host
    body_bytes INTEGER NOT NULL,
    due INTEGER NOT NULL,           -- ms: when the next attempt may start
    retried INTEGER NOT NULL,       -- retries done so far
    cancel_requested INTEGER NOT NULL,
    shard INTEGER NOT NULL
);
-- An index also orders by seq, behind its own columns.
CREATE INDEX live_due ON live(due);
CREATE INDEX live_origin ON live(origin, due); -- one destination's share, behind a backlog of another
PRAGMA application_id = 1346925428; PRAGMA user_version = 1; COMMIT;
CREATE TABLE message_80000(-- what was published; never changed
    seq INTEGER PRIMARY KEY,
    tag INTEGER NOT NULL,
    tenant INTEGER NOT NULL,
    created_at INTEGER NOT NULL,    -- ms
    not_before INTEGER NOT NULL,    -- ms: due time of the first attempt
    url TEXT NOT NULL,
    spec TEXT NOT NULL,             -- JSON: destination and conditions
    body BLOB NOT NULL
);
CREATE TABLE event_80000(-- log lines
    tenant INTEGER NOT NULL,
    at INTEGER NOT NULL,            -- ms
    n INTEGER NOT NULL,             -- order within the ms
    seq INTEGER NOT NULL,           -- which message
    state INTEGER NOT NULL,         -- 0 created, 1 active, 2 error, 3 retry,
                                    -- 4 delivered, 5 failed, 6 cancel requested, 7 canceled
    detail TEXT,                    -- JSON: what only this kind of line carries
    PRIMARY KEY(tenant, at, n)
) WITHOUT ROWID;
CREATE INDEX event_80000_seq ON event_80000(seq);
CREATE TABLE dlq_20000(-- messages that failed, whole
    tenant INTEGER NOT NULL,
    at INTEGER NOT NULL,            -- ms: when it failed
    seq INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    retried INTEGER NOT NULL,
    error TEXT,                     -- of the last attempt, when there was no answer
    response TEXT,                  -- JSON: the last answer
    created_at INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    url TEXT NOT NULL,
    spec TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY(tenant, at, seq)
);
CREATE TABLE dedup_2880001(-- keys of recent publishes
    tenant INTEGER NOT NULL,
    key BLOB NOT NULL,              -- hash
    seq INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    expires INTEGER NOT NULL,       -- ms
    PRIMARY KEY(tenant, key)
) WITHOUT ROWID;
INSERT INTO tenant VALUES (1, 'default');
INSERT INTO signing_key VALUES (1, 'sig_one', 'sig_two');
INSERT INTO shard VALUES (0, 4);
INSERT INTO url_group VALUES (1, 'g', '{"name":"g","created_at":1,"updated_at":2,
    "endpoints":[{"url":"https://example.org"}],"headers":[]}');
