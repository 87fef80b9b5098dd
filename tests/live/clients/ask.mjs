// Ask a model API with Node clients: `node ask.mjs CLIENT,… BASE_URL…`. Each prints what it got from each as a JSON line.

import { createHash } from "node:crypto";
import http from "node:http";
import https, { Agent } from "node:https";
import http2 from "node:http2";
import { createRequire } from "node:module";

const CHAT = { model: "example-large", messages: [{ role: "user", content: "refund?" }] };
const STREAMED = { ...CHAT, stream: true };
const KEY = "sk-live-0123456789abcdef0123456789abcdef";
const HEADERS = { "content-type": "application/json", authorization: `Bearer ${KEY}` };
const here = createRequire(`${process.cwd()}/ask.js`);

const digest = (data) => ({ sha256: createHash("sha256").update(data).digest("hex"), size: data.length });
const path = "/v1/chat/completions";

async function fetched(base, fetch_ = fetch) {
  const response = await fetch_(base + path, { method: "POST", headers: HEADERS, body: JSON.stringify(STREAMED) });
  return digest(Buffer.from(await response.arrayBuffer()));
}

function posted(base, options = {}) {
  const module = base.startsWith("https:") ? https : http;
  return new Promise((done, fail) => {
    const request = module.request(base + path, { method: "POST", headers: HEADERS, ...options }, (response) => {
      const pieces = [];
      response.on("data", (piece) => pieces.push(piece));
      response.once("end", () => done(digest(Buffer.concat(pieces))));
    });
    request.once("error", fail);
    request.end(JSON.stringify(STREAMED));
  });
}

function overHttp2(base) {
  return new Promise((done, fail) => {
    const session = http2.connect(base);
    session.once("error", fail);
    const body = JSON.stringify(STREAMED);
    const request = session.request({ ":method": "POST", ":path": path, "content-length": body.length, ...HEADERS });
    const pieces = [];
    request.on("data", (piece) => pieces.push(piece));
    request.once("error", fail);
    request.once("end", () => {
      session.close();
      done(digest(Buffer.concat(pieces)));
    });
    request.end(body);
  });
}

const openai = (base, name = "openai") => {
  const OpenAI = here(name).default;
  return new OpenAI({ apiKey: KEY, baseURL: `${base}/v1`, maxRetries: 0 });
};

async function collected(stream) {
  const chunks = [];
  for await (const chunk of await stream) chunks.push(chunk);
  return chunks;
}

const clients = {
  fetch: (base) => fetched(base),
  https: (base) => posted(base),
  https_own_agent: (base) => posted(base, { agent: new (base.startsWith("https:") ? Agent : http.Agent)({ keepAlive: true }) }),
  https_no_agent: (base) => posted(base, { agent: false }),
  http2: (base) => overHttp2(base),
  openai: (base) => openai(base).chat.completions.create(CHAT),
  openai_streamed: (base) => collected(openai(base).chat.completions.create(STREAMED)),
  openai4_streamed: (base) => collected(openai(base, "openai4").chat.completions.create(STREAMED)),
  undici: (base) => fetched(base, here("undici").fetch),
  async axios(base) {
    const answer = await here("axios").post(base + path, STREAMED, { headers: HEADERS, responseType: "arraybuffer" });
    return digest(answer.data);
  },
};

const [names, ...bases] = process.argv.slice(2);
for (const name of names.split(","))
  for (const base of bases) console.log(JSON.stringify(await clients[name](base)));
process.exit(0);
