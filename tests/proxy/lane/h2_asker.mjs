// node:http2 through a proxy: a hundred uploads at once on one connection. Prints the length that the upstream counted for each.
import http2 from 'node:http2';
import net from 'node:net';
import tls from 'node:tls';
import fs from 'node:fs';
import { once } from 'node:events';

const [port, authority, ca] = process.argv.slice(2);
const tunnel = net.connect(Number(port), '127.0.0.1');
tunnel.write(`CONNECT ${authority} HTTP/1.1\r\nHost: ${authority}\r\n\r\n`);
await once(tunnel, 'data');
const secure = tls.connect({ socket: tunnel, servername: 'localhost', ALPNProtocols: ['h2'], ca: fs.readFileSync(ca) });
await once(secure, 'secureConnect');
const client = http2.connect(`https://${authority}`, { createConnection: () => secure });

async function upload(size) {
  const stream = client.request({ ':method': 'POST', ':path': '/' });
  stream.end('y'.repeat(size));
  let told = '';
  for await (const piece of stream) told += piece;
  return told;
}

console.log((await Promise.all([...Array(100).keys()].map(upload))).join(','));
client.close();
