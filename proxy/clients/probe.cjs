// Request a URL with one Node client: `node probe.cjs CLIENT URL`. Exit status 42: the client is not installed for the agent.
"use strict";

const https = require("node:https");
const { createRequire } = require("node:module");
const path = require("node:path");

const NOT_INSTALLED = 42;
const TIMEOUT = 15_000;

const probes = {
  async fetch(url) {
    console.log(process.versions.node);
    await (await fetch(url, { signal: AbortSignal.timeout(TIMEOUT) })).arrayBuffer();
  },

  async https(url) {
    console.log(process.versions.node);
    await new Promise((done, fail) => {
      https.get(url, { timeout: TIMEOUT }, (response) => response.resume().once("end", done)).once("error", fail);
    });
  },

  async openai(url) {
    const here = createRequire(path.join(process.cwd(), "agent.js"));
    const OpenAI = requireOrExit(here, "openai");
    console.log(here("openai/version").VERSION);
    await new OpenAI({ apiKey: "none", baseURL: url, timeout: TIMEOUT, maxRetries: 0 }).models.list();
  },
};

function requireOrExit(here, name) {
  try {
    return here(name).default;
  } catch (error) {
    if (error.code !== "MODULE_NOT_FOUND") throw error;
    return process.exit(NOT_INSTALLED);
  }
}

const [client, url] = process.argv.slice(2);
probes[client](url).catch((error) => {
  console.error(error.cause?.message ?? error.message);
  process.exit(1);
});
