"""gunicorn: two processes with threads, for requests that wait for a database and a gateway."""

import os
from typing import Any

bind = f"127.0.0.1:{os.environ.get('PORT', '8000')}"
workers = int(os.environ.get("WEB_WORKERS", "2"))
worker_class = "gthread"
threads = int(os.environ.get("WEB_THREADS", "4"))
# Import once and fork: half the work at a start, and a worker that dies is replaced at once.
# Nothing connects at import, so there is no connection to share.
preload_app = True
# Seconds without a heartbeat of the worker's main thread, not of a request.
timeout = 30
# What a request in progress gets at a stop. Under the default lease of 30 seconds, so that a
# request which is cut off is recovered soon after.
graceful_timeout = 10
keepalive = 5
# Else a client on this machine could name SCRIPT_NAME in a header, and so the paths in answers.
forwarder_headers = ""
# Nor the scheme: Django reads the one header that PROXY_PROTO_HEADER names, and no other.
secure_scheme_headers: dict[str, str] = {}
# A heartbeat must not wait for a disk.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: PTH112, S108
# Its default path is in the home folder, which two stacks would share.
control_socket_disable = True


def child_exit(server: Any, worker: Any) -> None:
    """What a worker counted stays counted; what it showed as its present state ends with it."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(worker.pid)
