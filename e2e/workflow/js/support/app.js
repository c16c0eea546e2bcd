// The user's program in the process of the test: an Express app whose routes are workflows.

import http from "node:http";
import express from "express";
import * as newest from "@upstash/workflow/express";
import { Witnessed, callOf } from "./calls.js";

/** Larger than any delivery of a test. */
const BODY_LIMIT = "64mb";

export class App extends Witnessed {
  /** Called with each request before the SDK sees it; if it returns `false`, the request is dropped without a response. */
  onArrival = async () => true;
  /** Called with each request when the SDK has its response, before it is sent. */
  onAnswer = async () => {};
  /** Called with each request when its response has been sent. */
  onAnswered = async () => {};
  /** Called with each request when it is over, with or without a response. */
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

  /** Serves several workflows below a path; they can invoke each other. `routes` creates them with `createWorkflow`. */
  workflows(path, routes, options) {
    this.#express.use(path, this.#sdk.serveMany(routes(this.#sdk.createWorkflow), options));
  }

  /** Serves anything else at a path. */
  route(path, handler) {
    this.#express.use(path, handler);
  }

  async stop() {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #record(request, response, next) {
    const call = callOf(request.path, request.headers);
    call.body = request.raw ?? Buffer.alloc(0);
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
