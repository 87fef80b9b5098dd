// One request by one of Node's ways, `ask.mjs WAY URL [PACKAGES]`. Prints what came back.
import http2 from "node:http2";
import https from "node:https";
import { createRequire } from "node:module";
import { Worker } from "node:worker_threads";

const [way, url, packages] = process.argv.slice(2);
const ways = {
  fetch: async () => (await fetch(url)).text(),
  https: () =>
    new Promise((done, failed) => {
      https.get(url, { agent: new https.Agent() }, (answer) => {
        let text = "";
        answer.on("data", (piece) => (text += piece)).on("end", () => done(text));
      }).on("error", failed);
    }),
  undici: async () => {
    const { Agent, request } = createRequire(`${packages}/`)("undici");
    return (await request(url, { dispatcher: new Agent() })).body.text();
  },
  worker: () =>
    new Promise((done, failed) => {
      const code = `const { parentPort } = require("node:worker_threads");
        fetch(${JSON.stringify(url)}).then((answer) => answer.text()).then((text) => parentPort.postMessage(text));`;
      new Worker(code, { eval: true }).on("message", done).on("error", failed);
    }),
  http2: () =>
    new Promise((done, failed) => {
      const session = http2.connect(new URL(url).origin).on("error", failed);
      const stream = session.request({ ":path": new URL(url).pathname });
      let text = "";
      stream.on("data", (piece) => (text += piece)).on("end", () => { session.close(); done(text); }).on("error", failed);
    }),
};
process.stdout.write(await ways[way]());
