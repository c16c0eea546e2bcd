// BullMQ on a Redis that syncs every write: `worker READY_PORT REDIS_PORT SINK` takes jobs and POSTs them,
// `publish REDIS_PORT RUN SECONDS RATE IN_FLIGHT` adds them, one `add` per message.

import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";
import { deliver, publishAll, tellReady } from "./driver.mjs";

const QUEUE = "bench";
const CONCURRENCY = 64;
const connect = (port) => new IORedis({ host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null });

const [command, ...args] = process.argv.slice(2);
if (command === "worker") {
  const [readyPort, redisPort, sink] = args;
  const options = { connection: connect(redisPort), concurrency: CONCURRENCY };
  const worker = new Worker(QUEUE, (job) => deliver(`${sink}/x`, job.data), options);
  worker.on("failed", (job, error) => console.error(`job ${job?.id} failed: ${error}`));
  await worker.waitUntilReady();
  tellReady(Number(readyPort));
} else {
  const [redisPort, run, seconds, rate, inFlight] = args.map(Number);
  const connection = connect(redisPort);
  const queue = new Queue(QUEUE, { connection });
  const options = { removeOnComplete: true, attempts: 4, backoff: { type: "exponential", delay: 1000 } };
  await queue.waitUntilReady();
  await publishAll({ run, seconds, rate, inFlight }, (message) => queue.add("post", message, options));
  await queue.close();
  connection.disconnect();
}
