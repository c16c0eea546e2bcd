// The handler that Restate calls for each message: `handler PORT SINK`. It POSTs the message and returns. If the POST
// fails, Restate retries. Publishing needs no driver: it is a POST to Restate's own ingress.

import * as restate from "@restatedev/restate-sdk";
import { deliver } from "./driver.mjs";

const [, port, sink] = process.argv.slice(2);
const relay = restate.service({
  name: "relay",
  handlers: { forward: (_context, message) => deliver(`${sink}/x`, message) },
});
await restate.serve({ services: [relay], port: Number(port) });
