"""The transport between machines: messages over NVIDIA FLARE. Only this file and a recipe import ``nvflare``.

A job ships no code: it names the classes in ``silvan.deploy.jobs``, which build on those here, and carries the study's
text. Messages are FLARE's auxiliary messages, bytes in and bytes out; we check their senders ourselves (``signed.py``).
"""

import contextlib
import io
import logging
import queue
import threading
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.flare_api.flare_api import new_secure_session

from silvan.errors import FederationError, FormatError, RefusedError, SiteError
from silvan.federation.chunks import ChunkServer, PieceSize, ping, send_in_chunks
from silvan.federation.message import Verb
from silvan.federation.outgoing import DeclinedError, UnreachedError
from silvan.federation.transport import Transport

log = logging.getLogger("silvan.flare")

TOPIC = "silvan"
_DATA = "data"

WAIT = 30.0
"""Seconds to wait for the response to a chunk before it is sent again; a busy site responds earlier."""

_AT_ONCE, GONE = 2.0, 10.0
"""Seconds within which a site should respond, and after which a silent site has left."""

STARTING = 60.0
"""Seconds that the process of a site's job may take to respond for the first time, on a busy machine."""

_PAUSE = 0.1
"""Seconds between two attempts to send the same chunk."""

_NOT_NOW = {
    ReturnCode.TIMEOUT: "it has not answered yet",
    ReturnCode.COMMUNICATION_ERROR: "it cannot be reached",
    ReturnCode.TOPIC_UNKNOWN: "it is not ready yet",
    ReturnCode.SERVER_NOT_READY: "the server is not ready yet",
}


class _NotReady(logging.Filter):
    """Drops FLARE's log lines about messages that arrive before the site is ready: they are sent again."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line should be logged."""
        return f"unknown aux message topic {TOPIC}" not in record.getMessage()


logging.getLogger("nvflare.private.aux_runner.AuxRunner").addFilter(_NotReady())
logging.getLogger("nvflare").addHandler(logging.NullHandler())  # print nothing if logging is not set up


class AbortedError(FederationError):
    """FLARE ends the job: a process died, or somebody stopped it. It can be submitted again."""


@dataclass(frozen=True)
class JobFolders:
    """The folders of a job, from FLARE's workspace object."""

    name: str  # of the site, or FLARE's name of the server
    job: str
    root: Path  # the folder of the site or server, which is kept after jobs
    startup: Path
    local: Path
    results: Path  # of this job, downloaded with it from the server


def _folders(fl_ctx: Any) -> JobFolders:
    workspace, job = fl_ctx.get_workspace(), str(fl_ctx.get_job_id())
    folders = (workspace.get_root_dir(), workspace.get_startup_kit_dir(), workspace.get_site_config_dir())
    results = workspace.get_result_root(job)
    return JobFolders(str(fl_ctx.get_identity_name()), job, *(Path(path).resolve() for path in (*folders, results)))


# -- at the coordinator


class FlareTransport(Transport):
    """Carries messages through FLARE to sites that are other processes.

    Parameters
    ----------
    controller
        The job's controller, which gives access to FLARE.
    sites
        Their names.
    without
        Sites that no longer take part, and why.
    """

    def __init__(self, controller: "Controlling", sites: list[str], without: dict[str, str]) -> None:
        self._controller, self._without = controller, without
        self.spent: defaultdict[str, float] = defaultdict(float)  # seconds: the slowest site of each wave, and the rest
        self._last_seen: dict[str, float] = {}  # when each site last responded
        self._missed: dict[str, float] = {}  # since when each site has been looked for that has never responded
        self._sizes = {site: PieceSize() for site in sites}
        self._closed = False
        self._pool = ThreadPoolExecutor(2 * len(sites), thread_name_prefix="silvan-post")

    def deliver(
        self, messages: dict[str, bytes], verb: Verb, timeout: float | None
    ) -> Iterator[tuple[str, bytes | Exception]]:
        """Send all messages at once; yield replies as they arrive, and check on slow sites."""
        done: queue.SimpleQueue[tuple[str, bytes | Exception]] = queue.SimpleQueue()
        worked: dict[str, float] = {}
        pending, begun = set(messages), self.now()

        def bring(site: str, data: bytes) -> None:
            def carry(piece: bytes) -> bytes:
                reply = self._controller.carry(site, piece, WAIT if timeout is None else min(WAIT, timeout))
                self._last_seen[site] = self.now()
                return reply

            def give_up() -> bool:
                late = timeout is not None and self.now() - begun >= timeout
                if late or self._closed or self.now() - self._last_seen.get(site, -GONE) >= GONE:
                    return True
                self.pause(_PAUSE)
                return False

            try:
                answer, seconds = send_in_chunks(carry, data, verb, self._sizes[site], give_up)
                worked[site] = seconds
                done.put((site, answer))
            except RefusedError as error:
                done.put((site, RefusedError(f"site {site!r} takes no part: {error}")))
            except DeclinedError as error:
                done.put((site, SiteError(site, str(error))))
            except FormatError as error:
                done.put((site, SiteError(site, f"answered with something unusable: {error}")))
            except Exception as error:
                done.put((site, error))

        for site, data in messages.items():
            if site in self._without:
                done.put((site, SiteError(site, self._without[site])))
            else:
                self._pool.submit(bring, site, data)
        while pending:
            try:
                site, answer = done.get(timeout=_AT_ONCE)
            except queue.Empty:
                self._look_after(pending - set(self._without))
                continue
            if isinstance(answer, UnreachedError):
                self._look_after({site})
            elif isinstance(answer, AbortedError):
                raise answer
            pending.discard(site)
            if not pending:
                self.spent["sites"] += max(worked.values(), default=0.0)
                self.spent["wire"] += self.now() - begun - max(worked.values(), default=0.0)
            yield site, answer

    def _look_after(self, sites: set[str]) -> None:
        """Raise ``AbortedError`` for a site that has left the job; a slow site answers a ping."""

        def look(site: str) -> None:
            with contextlib.suppress(UnreachedError):
                ping(lambda piece: self._controller.carry(site, piece, _AT_ONCE))
                self._last_seen[site] = self.now()

        begun = self.now()
        silent = [site for site in sites if begun - self._last_seen.get(site, 0.0) > _AT_ONCE]
        for looking in [self._pool.submit(look, site) for site in silent]:
            looking.result()
        for site in silent:
            seen = self._last_seen.get(site)
            since, patience = (self._missed.setdefault(site, begun), STARTING) if seen is None else (seen, GONE)
            if self.now() - since > patience:
                raise AbortedError(f"site {site!r} has left the job")

    def pause(self, seconds: float) -> None:
        """Wait, unless the job ends."""
        self._controller.pause(seconds)

    def close(self) -> None:
        """Release threads."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


class Controlling(Controller):
    """Runs a study in the server's process of a job."""

    def __init__(self, study: str) -> None:
        super().__init__()
        self.study = study
        self._abort: Any = None

    @abstractmethod
    def work(self, folders: JobFolders) -> None:
        """Run the study, given the server's folders."""

    def start_controller(self, fl_ctx: Any) -> None:
        """Do nothing."""

    def stop_controller(self, fl_ctx: Any) -> None:
        """Do nothing."""

    def control_flow(self, abort_signal: Any, fl_ctx: Any) -> None:
        """Run the study; ``work`` records errors."""
        self._abort = abort_signal
        self.work(_folders(fl_ctx))

    def carry(self, site: str, data: bytes, wait: float) -> bytes:
        """Carry bytes to a site, and return its response."""
        self._check()
        engine = self._engine
        request = Shareable()
        request[_DATA] = data
        with engine.new_context() as fl_ctx:
            replies = engine.send_aux_request([site], TOPIC, request, wait, fl_ctx, optional=True)
        self._check()
        reply: Any = (replies or {}).get(site, make_reply(ReturnCode.COMMUNICATION_ERROR))
        code, answer = reply.get_return_code(), reply.get(_DATA)
        if code != ReturnCode.OK or not isinstance(answer, bytes):
            raise UnreachedError(_NOT_NOW.get(code, "it could not take the message"))
        return answer

    def takes_part(self, site: str) -> bool:
        """Whether FLARE started the job at a site."""
        return site in {client.name for client in self._engine.get_clients()}

    def pause(self, seconds: float) -> None:
        """Wait, unless the job ends."""
        ended = threading.Event()
        step = 0.05
        while seconds > 0:
            self._check()
            ended.wait(min(step, seconds))
            seconds -= step

    def _check(self) -> None:
        if self._abort is not None and self._abort.triggered:
            raise AbortedError("FLARE ended the job")


# -- at a site


class Answering(Executor):
    """Answers messages in a site's process, which lives as long as the job."""

    def __init__(self, study: str) -> None:
        super().__init__()
        self.study = study
        self._server: ChunkServer | None = None

    @abstractmethod
    def make_server(self, folders: JobFolders) -> ChunkServer:
        """Make the object that receives messages, given the site's folders."""

    def handle_event(self, event_type: str, fl_ctx: Any) -> None:
        """Register for messages when the job starts."""
        if event_type == EventType.START_RUN:
            self._server = self.make_server(_folders(fl_ctx))
            fl_ctx.get_engine().register_aux_message_handler(TOPIC, self._take)

    def execute(self, task_name: str, shareable: Any, fl_ctx: Any, abort_signal: Any) -> Any:
        """Refuse tasks: all requests are messages."""
        return make_reply(ReturnCode.TASK_UNKNOWN)

    def _take(self, topic: str, request: Any, fl_ctx: Any) -> Any:
        """Return a reply to a message, and nothing else."""
        data = request.get(_DATA)
        if self._server is None or not isinstance(data, bytes):
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        try:
            reply = Shareable()
            reply[_DATA] = self._server.take(data)
        except FormatError:
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        except Exception:
            log.exception("could not take a message")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        return reply


# -- for running studies


class Session:
    """The coordinator's connection to a running FLARE server: connected sites, submission, status.

    All errors of FLARE become ``ConnectionError``.
    """

    def __init__(self, kit: Path, user: str, timeout: float = 10.0) -> None:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints
            self._session = _trying(lambda: new_secure_session(user, str(kit), timeout=timeout))

    def sites(self) -> dict[str, float]:
        """Return the connected sites, and when each last answered (seconds since 1970)."""
        return {c.name: float(c.last_connect_time or 0) for c in _trying(self._session.get_connected_client_list)}

    def submit(self, job: Path) -> str:
        """Submit a job; return its id."""
        return str(_trying(lambda: self._session.submit_job(str(job))))

    def status(self, job: str) -> str:
        """Return the status of a job, in FLARE's words."""
        return str(_trying(lambda: self._session.get_job_status(job)) or "")

    def abort(self, job: str) -> None:
        """End a job."""
        _trying(lambda: self._session.abort_job(job))

    def close(self) -> None:
        """Log out."""
        try:
            self._session.close()
        except Exception:
            log.debug("could not log out", exc_info=True)


def _trying(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # FLARE has a dozen types of errors, which only its developers understand
        raise ConnectionError("the FLARE server does not answer") from error
