// Make Node's own HTTP clients use the proxy that the environment names.
//
// Node before 22.21 ignores HTTPS_PROXY. A newer one with NODE_USE_ENV_PROXY uses it for `fetch` and for the two global
// agents, but not for agents that libraries create. So this file opens a tunnel (CONNECT) wherever `http`, `https`, `http2`
// and `fetch` open connections. It needs only Node, version 18 or later, and does not change what a program sends or
// receives.
"use strict";

const { Duplex } = require("node:stream");
const http = require("node:http");
const https = require("node:https");
const http2 = require("node:http2");
const net = require("node:net");
const tls = require("node:tls");
const { syncBuiltinESMExports } = require("node:module");

const GLOBAL_DISPATCHER = Symbol.for("undici.globalDispatcher.1");

const proxy = proxyOf(process.env);
const rules = noProxyRules(process.env);

function proxyOf(env) {
  const url = env.https_proxy || env.HTTPS_PROXY || env.all_proxy || env.ALL_PROXY;
  if (!url || !URL.canParse(url)) return null;
  const { protocol, hostname, port, username, password } = new URL(url);
  if (protocol !== "http:") return null;
  const credentials = `${decodeURIComponent(username)}:${decodeURIComponent(password)}`;
  return {
    host: hostname.replace(/^\[|\]$/g, ""),
    port: Number(port) || 80,
    headers: username ? { "proxy-authorization": `Basic ${Buffer.from(credentials).toString("base64")}` } : {},
  };
}

function noProxyRules(env) {
  const list = env.no_proxy || env.NO_PROXY || "";
  return list.split(/[\s,]+/).filter(Boolean).map((rule) => rule.toLowerCase().replace(/^\*?\./, ""));
}

/** Whether a connection does not use the proxy: it goes to the proxy itself, or to a host in NO_PROXY. */
function isDirect(host, port) {
  const name = host.toLowerCase().replace(/^\[|\]$/g, "");
  if (name === proxy.host && Number(port) === proxy.port) return true;
  return rules.some((rule) => matches(rule, name, port));
}

function matches(rule, name, port) {
  if (rule === "*" || rule === name || rule === `${name}:${port}`) return true;
  return net.isIP(name) === 0 && name.endsWith(`.${rule}`);
}

/** Open a TCP connection through the proxy to host:port, and pass it to the callback. */
function openTunnel(host, port, done) {
  const target = `${net.isIPv6(host) ? `[${host}]` : host}:${port}`;
  const request = http.request({
    host: proxy.host,
    port: proxy.port,
    method: "CONNECT",
    path: target,
    headers: { host: target, ...proxy.headers },
    agent: false,
  });
  request.once("connect", (response, socket, head) => {
    if (response.statusCode !== 200) {
      socket.destroy();
      return done(refusal(target, response));
    }
    if (head.length > 0) socket.unshift(head);
    return done(null, socket);
  });
  request.once("response", (response) => {
    response.destroy();
    done(refusal(target, response));
  });
  request.once("error", done);
  request.end();
  return request;
}

function refusal(target, response) {
  const said = `${response.statusCode} ${response.statusMessage}`.trim();
  const error = new Error(`The proxy at ${proxy.host}:${proxy.port} did not connect to ${target}: ${said}`);
  return Object.assign(error, { code: "ERR_PROXY_TUNNEL", statusCode: response.statusCode });
}

/**
 * A tunnel that can be returned before it is open, because agents need their socket at once.
 * It resembles a net.Socket enough for `http` and `tls`, which both wait for its `connect`.
 */
class Tunnel extends Duplex {
  connecting = true;
  #socket = null;
  #opened = [];

  constructor(host, port) {
    super({ allowHalfOpen: true });
    const request = openTunnel(host, port, (error, socket) => this.#open(error, socket));
    this.once("close", () => (this.#socket ?? request).destroy());
  }

  #open(error, socket) {
    if (error || this.destroyed) {
      socket?.destroy();
      this.destroy(error ?? undefined);
      return;
    }
    this.#socket = socket;
    socket.on("data", (data) => this.push(data) || socket.pause());
    socket.once("end", () => this.push(null));
    socket.once("error", (failure) => this.destroy(failure));
    socket.once("close", () => this.destroy());
    socket.on("timeout", () => this.emit("timeout"));
    this.connecting = false;
    for (const act of this.#opened.splice(0)) act(socket);
    this.emit("connect");
    this.emit("ready");
  }

  #whenOpen(act) {
    if (this.#socket) act(this.#socket);
    else this.#opened.push(act);
    return this;
  }

  _read() {
    this.#socket?.resume();
  }

  _write(data, encoding, done) {
    this.#whenOpen((socket) => socket.write(data, encoding, done));
  }

  _final(done) {
    this.#whenOpen((socket) => socket.end(done));
  }

  setTimeout(delay, listener) {
    if (listener) this.once("timeout", listener);
    return this.#whenOpen((socket) => socket.setTimeout(delay));
  }

  setNoDelay(on) {
    return this.#whenOpen((socket) => socket.setNoDelay(on));
  }

  setKeepAlive(on, delay) {
    return this.#whenOpen((socket) => socket.setKeepAlive(on, delay));
  }

  ref() {
    return this.#whenOpen((socket) => socket.ref());
  }

  unref() {
    return this.#whenOpen((socket) => socket.unref());
  }

  destroySoon() {
    if (this.writable) this.end();
    if (this.writableFinished) this.destroy();
    else this.once("finish", this.destroy);
  }

  get remoteAddress() {
    return this.#socket?.remoteAddress;
  }

  get remotePort() {
    return this.#socket?.remotePort;
  }

  get bytesWritten() {
    return this.#socket?.bytesWritten ?? 0;
  }
}

/** Use the tunnel in every agent that opens its connections as Node's own agents do. */
function patchAgents() {
  const plain = http.Agent.prototype.createConnection;
  http.Agent.prototype.createConnection = function createConnection(options, ...rest) {
    if (needsNoTunnel(this, options, 80)) return plain.call(this, options, ...rest);
    return new Tunnel(hostOf(options), options.port || 80);
  };
  const secure = https.Agent.prototype.createConnection;
  https.Agent.prototype.createConnection = function createConnection(options, ...rest) {
    if (needsNoTunnel(this, options, 443)) return secure.call(this, options, ...rest);
    const tunnel = new Tunnel(hostOf(options), options.port || 443);
    return passRefs(secure.call(this, { ...options, socket: tunnel }, ...rest), tunnel);
  };
}

/** Pass ref and unref on to the tunnel, which TLS over a stream does not: agents unref idle connections, so that programs end. */
function passRefs(socket, tunnel) {
  for (const name of ["ref", "unref"]) {
    const own = socket[name];
    socket[name] = function () {
      tunnel[name]();
      return own.call(this);
    };
  }
  return socket;
}

function hostOf(options) {
  return options.host || options.hostname || "localhost";
}

/** Whether a connection needs no tunnel: another transport, a direct host, or an agent that Node itself sends through the proxy. */
function needsNoTunnel(agent, options, port) {
  if (options === null || typeof options !== "object") return true;
  if (options.socketPath || options.socket || agent?.options?.proxyEnv) return true;
  return isDirect(hostOf(options), options.port || port);
}

/** Make the `ws` package, which opens its connections by a function of its own, use the agent. */
function patchUpgrades(module, port) {
  const request = module.request;
  module.request = function (...given) {
    const options = given.find((one) => typeof one?.createConnection === "function");
    const upgrade = Object.entries(options?.headers ?? {}).some(([name, value]) => /^upgrade$/i.test(name) && value === "websocket");
    if (!upgrade || options.agent || needsNoTunnel(null, options, port)) return request.apply(this, given);
    return request.apply(this, given.map((one) => (one === options ? { ...one, createConnection: undefined } : one)));
  };
}

function patchHttp2() {
  const connect = http2.connect;
  http2.connect = function (authority, options, listener) {
    const settings = typeof options === "function" ? { } : { ...options };
    const heard = typeof options === "function" ? options : listener;
    if (!settings.createConnection && !settings.socket) settings.createConnection = http2Connector(settings);
    return connect.call(this, authority, settings, heard);
  };
}

/** Create connections like `http2.connect`, but through the tunnel. */
function http2Connector(settings) {
  return (url) => {
    const host = url.hostname.replace(/^\[|\]$/g, "");
    const secure = url.protocol === "https:";
    const port = Number(url.port) || (secure ? 443 : 80);
    const socket = isDirect(host, port) ? net.connect(port, host) : new Tunnel(host, port);
    if (!secure) return socket;
    const servername = net.isIP(host) ? "" : host;
    return passRefs(tls.connect({ ALPNProtocols: ["h2"], servername, ...settings, host, socket }), socket);
  };
}

/** Give `fetch`, and the `undici` package, which shares its dispatcher, one that connects through the tunnel. */
function patchFetch() {
  void globalThis.Response; // loads Node's undici, which then sets its global dispatcher
  const usual = globalThis[GLOBAL_DISPATCHER];
  const Agent = usual?.constructor;
  if (Agent?.name !== "Agent") return; // none, or a program's or Node's own choice, which stays
  class ThroughProxy extends Agent {
    dispatch(options, handler) {
      const { hostname, port, protocol } = new URL(options.origin);
      const past = isDirect(hostname, port || (protocol === "https:" ? 443 : 80));
      return past ? usual.dispatch(options, handler) : super.dispatch(options, handler);
    }
  }
  globalThis[GLOBAL_DISPATCHER] = new ThroughProxy({ connect: connectThrough });
}

/** A connector for undici: it passes a ready socket to the callback. */
function connectThrough({ hostname, port, protocol, servername }, done) {
  const secure = protocol === "https:";
  const host = hostname.replace(/^\[|\]$/g, "");
  openTunnel(host, port || (secure ? 443 : 80), (error, tunnel) => {
    if (error) return done(error, null);
    tunnel.setNoDelay(true);
    if (!secure) return done(null, tunnel);
    const name = servername || (net.isIP(host) ? "" : host);
    const socket = tls.connect({ socket: tunnel, host, servername: name, ALPNProtocols: ["http/1.1"] });
    socket.once("error", done);
    return socket.once("secureConnect", () => {
      socket.removeListener("error", done);
      done(null, socket);
    });
  });
}

if (proxy) {
  patchAgents();
  patchUpgrades(http, 80);
  patchUpgrades(https, 443);
  patchHttp2();
  patchFetch();
  syncBuiltinESMExports();
}
