// Loaded into a program first (`node --import`): reports every request of the program to the test.
//
// It changes nothing in the program: Node.js itself publishes requests and answers on these channels.

import { subscribe } from "node:diagnostics_channel";

let count = 0;

subscribe("http.server.request.start", ({ request, response }) => {
  count += 1;
  const id = count;
  process.send({ id, arrived: { path: request.url.split("?")[0], headers: request.headers } });
  response.on("finish", () => process.send({ id, status: response.statusCode }));
  response.on("close", () => process.send({ id, isOver: true }));
});

// Messages keep their order: when the echo has arrived, everything before it has too.
process.on("message", (echo) => process.send({ echo }));
// The test has ended.
process.on("disconnect", () => process.exit());
