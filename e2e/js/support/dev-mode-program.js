// A user's program in the SDK's development mode, configured only by QSTASH_DEV and QSTASH_DEV_PORT.
// It sends itself a message, verifies the delivery, and prints the result.

import http from "node:http";
import { Client, Receiver as Verifier } from "@upstash/qstash";

let deliver;
const delivered = new Promise((resolve) => (deliver = resolve));
const server = http.createServer(async (request, response) => {
  let body = "";
  for await (const chunk of request) body += chunk;
  response.end();
  deliver({ body, headers: request.headers });
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const url = `http://127.0.0.1:${server.address().port}/mine`;
const { messageId } = await new Client({ retry: false }).publishJSON({ url, body: { dev: true } });
const { body, headers } = await delivered;
const verified = await new Verifier().verify({ signature: headers["upstash-signature"], body, url });
console.log(JSON.stringify({ body, verified, sameId: headers["upstash-message-id"] === messageId }));
server.closeAllConnections();
server.close();
