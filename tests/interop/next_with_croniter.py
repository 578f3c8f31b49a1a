"""A user of croniter: `next_with_croniter.py next`, a JSON request on stdin, a JSON answer on stdout.

{"from": unix, "count": n, "expressions": [[expression, either], ...]} becomes a list of lists of Unix seconds in UTC, or null
for an expression that croniter does not take or finds no instant for. `either` says what two given days mean: either of them,
or both at once.
"""

import json
import sys
from datetime import datetime, timezone

from croniter import croniter
from croniter.croniter import CroniterError


def instants(expression, either, start, count):
    try:
        start = datetime.fromtimestamp(start, timezone.utc)
        times = croniter(expression, start, day_or=either, max_years_between_matches=41)
        return [int(times.get_next(datetime).timestamp()) for _ in range(count)]
    except CroniterError:
        return None


request = json.load(sys.stdin)
json.dump([instants(*e, request["from"], request["count"]) for e in request["expressions"]], sys.stdout)
