// Loaded into a program before anything else (`node --import`): tells the test of every request that the program gets.
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

// Messages keep their order: when the echo is there, everything before it is, too.
process.on("message", (echo) => process.send({ echo }));
// The test is gone.
process.on("disconnect", () => process.exit());
