// A handler of trivial steps for Restate: `handler PORT TALLY_PORT STEPS`. `run` journals each step. A run counts as ended
// when the handler returns, before Restate has stored that.

import http from "node:http";
import * as restate from "@restatedev/restate-sdk";
import { Ledger, readMarker, result } from "./steps.mjs";

const [, port, tallyPort, steps] = process.argv.slice(2);
const ledger = new Ledger();
http.createServer((request, response) => response.end(ledger.show(request.url))).listen(Number(tallyPort), "127.0.0.1");

const service = restate.service({
  name: "steps",
  handlers: {
    run: async (context, message) => {
      const marker = readMarker(message.m);
      ledger.add("deliveries", marker.run);
      for (let step = 1; step <= Number(steps); step++) {
        await context.run(`step ${step}`, () => {
          ledger.add("steps", marker.run);
          return result(step);
        });
      }
      ledger.ended(marker);
    },
  },
});
await restate.serve({ services: [service], port: Number(port) });
