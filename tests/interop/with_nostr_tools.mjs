// A user of nostr-tools: `with_nostr_tools.mjs send|read|verify`, a JSON request on stdin, a JSON answer on stdout.
// What each takes and answers is said in tests/it/interop.rs.

import { readFileSync } from "node:fs";
import * as nip04 from "nostr-tools/nip04";
import * as nip17 from "nostr-tools/nip17";
import { SimplePool, useWebSocketImplementation } from "nostr-tools/pool";
import { finalizeEvent, getEventHash, getPublicKey, verifyEvent } from "nostr-tools/pure";
import { hexToBytes } from "nostr-tools/utils";
import WebSocket from "ws";

useWebSocketImplementation(WebSocket); // Node has one of its own only from 22 on
const pool = new SimplePool();

/** Sends `text` to the key `to`, as clients do: for NIP-17 with a copy to the sender. */
async function send({ relay, secret_key, to, protocol, text }) {
  const key = hexToBytes(secret_key);
  const events = protocol === "nip17" ? nip17.wrapManyEvents(key, [{ publicKey: to }], text) : [kind4(key, to, text)];
  for (const event of events) {
    await Promise.all(pool.publish([relay], event));
  }
  return null;
}

function kind4(key, to, text) {
  const created_at = Math.floor(Date.now() / 1000);
  return finalizeEvent({ kind: 4, created_at, tags: [["p", to]], content: nip04.encrypt(key, to, text) }, key);
}

/** What `from` wrote to the reader, oldest first. */
async function read({ relay, secret_key, from, protocol }) {
  const key = hexToBytes(secret_key);
  const kind = protocol === "nip17" ? 1059 : 4;
  const events = await pool.querySync([relay], { kinds: [kind], "#p": [getPublicKey(key)] });
  return events
    .map((event) => (kind === 4 ? decrypt(event, key) : unwrap(event, key)))
    .filter((message) => message.pubkey === from)
    .sort((a, b) => a.created_at - b.created_at)
    .map(({ kind, content, tags }) => ({ kind, text: content, tags }));
}

function decrypt(event, key) {
  must(isSigned(event), "an event's signature does not hold");
  return { ...event, content: nip04.decrypt(key, event.pubkey, event.content) };
}

/** The rumor. nostr-tools itself checks the seal: its signature, and that its signer is the rumor's author. */
function unwrap(wrap, key) {
  must(isSigned(wrap), "a wrap's signature does not hold");
  const rumor = nip17.unwrapEvent(wrap, key);
  must(rumor.id === getEventHash(rumor), "a rumor's id is not its hash");
  return rumor;
}

/** The ids of those events on the relay that verify. */
async function verify({ relay }) {
  return (await pool.querySync([relay], {})).filter(isSigned).map((event) => event.id);
}

/** On a copy, since the library remembers in the event itself that it verified it. */
function isSigned(event) {
  return verifyEvent(JSON.parse(JSON.stringify(event)));
}

function must(holds, otherwise) {
  if (!holds) throw new Error(otherwise);
}

const request = JSON.parse(readFileSync(0, "utf8"));
const answer = await { send, read, verify }[process.argv[2]](request);
process.stdout.write(JSON.stringify(answer));
pool.destroy();
