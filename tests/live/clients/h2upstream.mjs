// An upstream that speaks HTTP/2 and HTTP/1.1 over TLS: `node h2upstream.mjs PEM BODY`. It prints its port.
// It sends the file BODY in pieces of 300 bytes as the answer to everything.

import { readFileSync } from "node:fs";
import { createSecureServer } from "node:http2";

const [pem, file] = process.argv.slice(2);
const [key, body] = [readFileSync(pem), readFileSync(file)];

const server = createSecureServer({ key, cert: key, allowHTTP1: true }, (request, response) => {
  request.resume().once("end", () => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    for (let at = 0; at < body.length; at += 300) response.write(body.subarray(at, at + 300));
    response.end();
  });
});
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
