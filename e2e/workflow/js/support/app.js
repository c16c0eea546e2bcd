// The user's program: an Express app whose routes are workflows, and a record of every request that reaches it.
//
// It is the witness of the tests: how often a step was called is what arrived here, not what the server says.

import http from "node:http";
import express from "express";
import * as newest from "@upstash/workflow/express";
import { eventually } from "../../../js/support/wait.js";

/** Larger than any delivery of a test. */
const BODY_LIMIT = "64mb";

export class App {
  /** Every request that has arrived in full, in order of arrival. */
  calls = [];
  /** Called with each request before the SDK sees it; if it gives `false`, the request is dropped unanswered. */
  onArrival = async () => true;
  /** Called with each request when the SDK has its answer and before that is sent. */
  onAnswer = async () => {};
  /** Called with each request when its answer has been sent. */
  onAnswered = async () => {};
  /** Called with each request when it is over, answered or not. */
  onOver = () => {};
  #sdk;
  #express = express();
  #server;

  /** Starts an app that serves workflows with this version of the SDK's Express adapter. */
  static async start(sdk = newest) {
    const app = new App();
    app.#sdk = sdk;
    const verify = (request, _, body) => (request.raw = Buffer.from(body));
    app.#express.use(express.json({ limit: BODY_LIMIT, strict: false, verify }));
    app.#express.use(express.text({ limit: BODY_LIMIT, type: "*/*", verify }));
    app.#express.use((request, response, next) => app.#record(request, response, next));
    app.#server = http.createServer(app.#express);
    await new Promise((resolve) => app.#server.listen(0, "127.0.0.1", resolve));
    return app;
  }

  /** The address of a path. */
  url(path) {
    return `http://127.0.0.1:${this.#server.address().port}${path}`;
  }

  /** Serves a workflow at a path. */
  workflow(path, route, options) {
    this.#express.use(path, this.#sdk.serve(route, options));
  }

  /** Serves several workflows below a path; they can invoke each other. `routes` makes them with `createWorkflow`. */
  workflows(path, routes, options) {
    this.#express.use(path, this.#sdk.serveMany(routes(this.#sdk.createWorkflow), options));
  }

  /** Serves anything else at a path. */
  route(path, handler) {
    this.#express.use(path, handler);
  }

  /** The requests that carried the id of this run, in order of arrival. */
  callsOf(run) {
    return this.calls.filter((call) => call.run === run);
  }

  /** The requests at a path. */
  callsAt(path) {
    return this.calls.filter((call) => call.path === path);
  }

  /** Waits until every request that has arrived is answered or has lost its sender. */
  async idle() {
    const open = () => this.calls.filter((call) => !call.isOver);
    await eventually(
      () => `${open().length} requests to be answered`,
      () => open().length === 0,
    );
  }

  async stop() {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #record(request, response, next) {
    const { headers } = request;
    const call = {
      path: request.path,
      run: headers["upstash-workflow-runid"],
      kind: kindOf(headers),
      retried: Number(headers["upstash-retried"]),
      messageId: headers["upstash-message-id"],
      headers,
      body: request.raw ?? Buffer.alloc(0),
      at: Date.now(),
      /** What was answered; nothing if the sender was gone. */
      status: undefined,
      answer: undefined,
      isOver: false,
    };
    this.calls.push(call);
    response.on("finish", () => this.onAnswered(call));
    response.on("close", () => {
      call.isOver = true;
      this.onOver(call);
    });
    const send = response.send.bind(response);
    response.send = (body) => {
      Promise.resolve(this.onAnswer(call)).then(() => {
        call.status = response.statusCode;
        call.answer = body;
        send(body);
      });
      return response;
    };
    if (await this.onArrival(call)) next();
    else request.destroy();
  }
}

function kindOf(headers) {
  if (headers["upstash-workflow-callback"]) return "callback";
  if (headers["upstash-workflow-is-failure"]) return "failure";
  return headers["upstash-workflow-sdk-version"] ? "step" : "raw";
}
