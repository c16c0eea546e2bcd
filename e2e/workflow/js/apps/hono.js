// A program with Hono on Node.js.

import { serve as listen } from "@hono/node-server";
import { createWorkflow, serve, serveMany } from "@upstash/workflow/hono";
import { Hono } from "hono";
import { failed, family, order } from "./workflows.js";

const app = new Hono();
app.post("/order", serve(order, { failureFunction: failed }));
app.post("/family/*", serveMany(family(createWorkflow)));
listen({ fetch: app.fetch, hostname: "127.0.0.1", port: 0 }, ({ port }) => console.log(`http://127.0.0.1:${port}`));
