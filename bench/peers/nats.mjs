// NATS JetStream that syncs every message: `worker READY_PORT NATS_PORT SINK` creates the stream, takes messages and POSTs
// them, `publish NATS_PORT RUN SECONDS RATE IN_FLIGHT` publishes them and waits for each acknowledgement.

import { AckPolicy, connect, JSONCodec, RetentionPolicy, StorageType } from "nats";
import { deliver, publishAll, tellReady } from "./driver.mjs";

const NAME = "bench";
const CONCURRENCY = 64;
const ACK_WAIT_NS = 30e9;
const codec = JSONCodec();

const [command, ...args] = process.argv.slice(2);
if (command === "worker") {
  const [readyPort, port, sink] = args;
  const connection = await connect({ servers: `127.0.0.1:${port}` });
  const manager = await connection.jetstreamManager();
  const retention = RetentionPolicy.Workqueue;
  await manager.streams.add({ name: NAME, subjects: [NAME], storage: StorageType.File, retention });
  const limits = { ack_wait: ACK_WAIT_NS, max_ack_pending: CONCURRENCY * 4 };
  await manager.consumers.add(NAME, { durable_name: NAME, ack_policy: AckPolicy.Explicit, ...limits });
  const consumer = await connection.jetstream().consumers.get(NAME, NAME);
  const messages = await consumer.consume({ max_messages: CONCURRENCY * 4 });
  tellReady(Number(readyPort));
  const underWay = new Set();
  for await (const message of messages) {
    const attempt = deliver(`${sink}/x`, codec.decode(message.data))
      .then(
        () => message.ack(),
        (error) => {
          console.error(`a delivery failed: ${error}`);
          message.nak(1000);
        },
      )
      .finally(() => underWay.delete(attempt));
    underWay.add(attempt);
    if (underWay.size >= CONCURRENCY) await Promise.race(underWay);
  }
} else {
  const [port, run, seconds, rate, inFlight] = args.map(Number);
  const connection = await connect({ servers: `127.0.0.1:${port}` });
  const stream = connection.jetstream();
  await publishAll({ run, seconds, rate, inFlight }, (message) => stream.publish(NAME, codec.encode(message)));
  await connection.close();
}
