"""A user of nostr-sdk: `with_nostr_sdk.py send|read|verify`, a JSON request on stdin, a JSON answer on stdout.

What each takes and answers is said in tests/it/interop.rs.
"""

import asyncio
import json
import sys
from datetime import timedelta

from nostr_sdk import (
    Client,
    Event,
    EventBuilder,
    Filter,
    Keys,
    Kind,
    PublicKey,
    RelayUrl,
    ReqTarget,
    Tag,
    UnwrappedGift,
    nip04_decrypt,
    nip04_encrypt,
    nip17_make_private_msg,
)

PATIENCE = timedelta(seconds=30)


async def send(client, request):
    """Sends `text` to the key `to`."""
    keys, to = Keys.parse(request["secret_key"]), PublicKey.parse(request["to"])
    if request["protocol"] == "nip17":
        event = nip17_make_private_msg(keys, to, request["text"])
    else:
        content = nip04_encrypt(keys.secret_key(), to, request["text"])
        event = EventBuilder(Kind(4), content).tags([Tag.public_key(to)]).finalize(keys)
    output = await client.send_event(event)
    must(output.success, f"the relay refused the message: {output.failed}")


async def read(client, request):
    """What `from` wrote to the reader, oldest first."""
    keys = Keys.parse(request["secret_key"])
    kind, opened = (1059, unwrap) if request["protocol"] == "nip17" else (4, decrypt)
    events = await fetch(client, Filter().kind(Kind(kind)).pubkey(keys.public_key()))
    messages = [message for message in (opened(keys, event) for event in events) if message["pubkey"] == request["from"]]
    messages.sort(key=lambda message: message["created_at"])
    return [{"kind": m["kind"], "text": m["content"], "tags": m["tags"]} for m in messages]


def decrypt(keys, event):
    must(event.verify(), "an event's signature does not hold")
    text = nip04_decrypt(keys.secret_key(), event.author(), event.content())
    return json.loads(event.as_json()) | {"content": text}


def unwrap(keys, wrap):
    """The rumor. The library itself checks the seal's signature."""
    must(wrap.verify(), "a wrap's signature does not hold")
    gift = UnwrappedGift.from_gift_wrap(keys, wrap)
    must(gift.sender() == gift.rumor().author(), "the seal's signer is not the rumor's author")
    return json.loads(gift.rumor().as_json())


async def verify(client, _request):
    """The ids of those events on the relay that verify."""
    events = [Event.from_json(event.as_json()) for event in await fetch(client, Filter())]
    return [event.id().to_hex() for event in events if event.verify()]


async def fetch(client, wanted):
    return await client.fetch_events(ReqTarget.auto([wanted]), PATIENCE)


def must(holds, otherwise):
    if not holds:
        raise RuntimeError(otherwise)


async def main():
    request = json.load(sys.stdin)
    client = Client()
    await client.add_relay(RelayUrl.parse(request["relay"]))
    await client.connect(and_wait=PATIENCE)
    answer = await {"send": send, "read": read, "verify": verify}[sys.argv[1]](client, request)
    await client.shutdown()
    json.dump(answer, sys.stdout)


asyncio.run(main())
