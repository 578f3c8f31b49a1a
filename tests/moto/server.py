"""AWS on loopback for the tests: `server.py PORT_FILE` takes a free port and writes its number to PORT_FILE.

One thread: moto's own server answers in several, and then two racing conditional writes may both win.
"""

import os
import sys

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=False)
port_file = sys.argv[1]
with open(port_file + ".new", "w") as file:
    file.write(str(server.server_port))
os.rename(port_file + ".new", port_file)  # whoever finds the file finds it whole
server.serve_forever()
