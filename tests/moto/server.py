"""AWS on loopback for the tests: `server.py PORT_FILE` takes a free port and writes its number to PORT_FILE.

One thread: moto's own server answers in several, and then two racing conditional writes may both win.
"""

import copy
import os
import sys

from moto.dynamodb.models import DynamoDBBackend
from moto.dynamodb.models.table import Table
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

# Two short cuts, without which a table of a thousand rows takes twice as long. What is answered stays the same.

# For each write of a transaction moto copies the whole table, in case it has to go back. The rows that the transaction
# names are enough.
whole_transaction = DynamoDBBackend.transact_write_items
named_rows = set()


def transact_write_items(backend, actions):
    named_rows.clear()
    for action in actions:
        for operation in action.values():
            key = operation.get("Key") or operation["Item"]
            named_rows.add((key["pk"]["S"], key["sk"]["S"]))
    return whole_transaction(backend, actions)


def copy_of_table(table, memo):
    twin = copy.copy(table)
    twin.items = copy.copy(table.items)
    for pk, rows in table.items.items():
        twin.items[pk] = {
            sk: copy.deepcopy(row, memo) if (pk.value, sk.value) in named_rows else row for sk, row in rows.items()
        }
    return twin


# For each query moto sorts the whole table, and then what it found.
def all_items(table):
    return [row for rows in table.items.values() for row in rows.values()]


DynamoDBBackend.transact_write_items = transact_write_items
Table.__deepcopy__ = copy_of_table
Table.all_items = all_items

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
port_file = sys.argv[1]
with open(port_file + ".new", "w") as file:
    file.write(str(server.server_port))
os.rename(port_file + ".new", port_file)  # whoever finds the file finds it whole
server.serve_forever()
