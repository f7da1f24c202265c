"""A real Apache Kafka on this machine, one node in KRaft mode, for tests and benchmarks.

It needs Java 17 or later, and Maven once, to fetch the jars that `scripts/kafka.xml` names into the user's cache.
It listens on the loopback address only and is gone, with its data, when its owner is.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).with_name("kafka.xml")
PLUGIN: Final = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
OLDEST_JAVA: Final = 17
HOST: Final = "127.0.0.1"
CLUSTER: Final = "aGluZGNhc3QtdGVzdHMtMQ"
# Not secret: opens a broker on the loopback address that lives as long as a test run.
USER, PASSWORD = "hindcast", "loopback-only"

_FETCH_S: Final = 900.0
_START_S: Final = 300.0  # ends what hangs; a busy machine may take a minute
_STOP_S: Final = 20.0
_PR_SET_PDEATHSIG: Final = 1

_PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAIN://{host}:{plain},SASL://{host}:{sasl},CONTROLLER://{host}:{controller}
advertised.listeners=PLAIN://{host}:{plain},SASL://{host}:{sasl}
listener.security.protocol.map=PLAIN:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAIN
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
required user_{user}="{password}";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
log.dirs={data}
num.partitions=4
log.retention.ms=-1
log.cleaner.backoff.ms=200
message.max.bytes=67108864
replica.fetch.max.bytes=67108864
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""
_LOGGING: Final = """\
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d %p %c{1}: %m%n
"""


class KafkaMissing(Exception):
    """What a real Kafka needs is not on this machine; the message says what, and how to get it."""


@dataclass(frozen=True)
class Addresses:
    """Where clients find the broker: without any proof of who they are, and as the user `hindcast`."""

    plain: str
    sasl: str


class Kafka:
    """One broker from `start` to `stop`; a context manager does both. Start it from the main thread."""

    def __init__(self, *, port: int = 0) -> None:
        self._port = port
        self._folder: Path | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self) -> Addresses:
        """Fetch what is missing, and start. Raises `KafkaMissing`, or `RuntimeError` with the broker's last words."""
        java, libraries = _java(), jars()
        self._folder = Path(tempfile.mkdtemp(prefix="hindcast-kafka-"))
        try:
            with held_ports(self._port, 0, 0) as (plain, sasl, controller):
                shutil.copytree(_formatted(java, libraries), self._folder / "data")
                told = _properties(self._folder / "data", plain, sasl, controller)
                (self._folder / "server.properties").write_text(told)
                self._launch(java, libraries, self._folder)
                self._await_ready(plain)
        except BaseException:
            self.stop()
            raise
        return Addresses(f"{HOST}:{plain}", f"{HOST}:{sasl}")

    def stop(self) -> None:
        """End it and remove its data; nobody will want them again, so it is not asked to stop in good order."""
        if self._server is not None:
            self._server.kill()
            self._server.wait(_STOP_S)
            self._server = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __enter__(self) -> Addresses:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _launch(self, java: str, libraries: Path, folder: Path) -> None:
        command = [*_command(java, libraries), "kafka.Kafka", str(folder / "server.properties")]
        with (folder / "log").open("wb") as log:
            self._server = subprocess.Popen(
                command,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with(os.getpid()),
            )

    def _await_ready(self, port: int) -> None:
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": f"{HOST}:{port}", "log_level": 0, "reconnect.backoff.max.ms": 100})
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            if self._server is None or self._server.poll() is not None:
                break
            try:
                client.list_topics(timeout=1.0)
            except KafkaException:
                continue
            return
        last = (self._folder or Path()) / "log"
        raise RuntimeError(f"Apache Kafka did not start:\n{last.read_text(errors='replace')[-3000:]}")


def jars() -> Path:
    """The folder of Kafka's jars, fetched if need be. Raises `KafkaMissing`."""
    wanted = re.findall(r"<version>([\d.]+)</version>\s*</dependency>", POM.read_text())
    folder = _cache() / f"kafka-{'-'.join(wanted)}"
    with _alone(_beside(folder, ".lock")):
        if not folder.is_dir():
            _fetch(folder)
    return folder


def java_command() -> list[str]:
    """What runs a class of Kafka's, to be followed by its name. Raises `KafkaMissing`."""
    return _command(_java(), jars())


def _fetch(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaMissing("no Maven to fetch Kafka with; run: sudo apt-get install maven")
    print("==> fetching Apache Kafka (45 MB, once)", file=sys.stderr)
    scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    command = [maven, "--batch-mode", "--quiet", "--strict-checksums", "--file", str(POM), PLUGIN]
    command += [f"-DoutputDirectory={scratch}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_S, check=False)
        if done.returncode:
            raise KafkaMissing(f"Maven could not fetch Kafka:\n{(done.stdout + done.stderr).strip()[-2000:]}")
        scratch.chmod(0o755)
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _formatted(java: str, libraries: Path) -> Path:
    """A storage folder ready for its first start; made once, since that alone takes seconds."""
    folder = _beside(libraries, "-storage")
    with _alone(_beside(folder, ".lock")):
        if folder.is_dir():
            return folder
        scratch = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
        try:
            told = scratch / "server.properties"
            told.write_text(_properties(scratch / "data", 1, 2, 3))
            command = [*_command(java, libraries), "kafka.tools.StorageTool", "format"]
            command += ["--config", str(told), "--cluster-id", CLUSTER]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S, check=False)
            if done.returncode:
                said = (done.stdout + done.stderr)[-2000:]
                raise RuntimeError(f"Apache Kafka could not format its storage:\n{said}")
            (scratch / "data").rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _properties(data: Path, plain: int, sasl: int, controller: int) -> str:
    return _PROPERTIES.format(
        host=HOST, plain=plain, sasl=sasl, controller=controller, data=data, user=USER, password=PASSWORD
    )


def _command(java: str, libraries: Path) -> list[str]:
    logging = _beside(libraries, ".log4j2.properties")
    if not logging.exists():
        logging.write_text(_LOGGING)
    # A test's broker lives for seconds: quick to start matters more than fast in the long run. It is sent values of
    # many megabytes, whose buffers Java would otherwise keep for ever.
    options = ["-Xmx1g", "-Djdk.nio.maxCachedBufferSize=1000000", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java, *options, "-cp", f"{libraries}/*", f"-Dlog4j2.configurationFile={logging}"]


def _java() -> str:
    java = shutil.which("java")
    if java is None:
        raise KafkaMissing("no Java; run: sudo apt-get install default-jre-headless")
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', told)
    if found is None or int(found[1]) < OLDEST_JAVA:
        version = found[1] if found else "unknown"
        raise KafkaMissing(f"Java {version} is too old for Kafka; Java {OLDEST_JAVA} or later is needed")
    return java


def _cache() -> Path:
    told = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(told) if told else Path.home() / ".cache") / "hindcast"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def held_ports(*wanted: int) -> Iterator[list[int]]:
    """Ports of the loopback address, 0 for any free one, which nobody is given by chance while the block runs.

    A program that binds with `SO_REUSEADDR`, as Java does, can listen on them all the same: we only hold them.
    """
    with ExitStack() as held:
        ports = []
        for port in wanted:
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if port == 0:
                one.bind((HOST, 0))
            ports.append(port or one.getsockname()[1])
        yield ports


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(folder.name + ending)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock between processes for the length of a block."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _die_with(parent: int) -> Callable[[], None]:
    """Prepare, before the fork, what ends a child when its parent is gone."""
    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def main() -> int:
    """Run a broker in the foreground until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="make kafka", description="A real Apache Kafka on the loopback address.")
    parser.add_argument("--port", type=int, default=9092, help="port to listen on (default 9092, 0: any free one)")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    broker = Kafka(port=chosen.port)
    try:
        with broker as addresses:
            print(f"Apache Kafka listens on {addresses.plain}")
            print(f"and, for SASL PLAIN as {USER} with password {PASSWORD}, on {addresses.sasl}")
            print(f"Tests use it with HINDCAST_TEST_KAFKA={addresses.plain},{addresses.sasl}", flush=True)
            signal.pause()
    except KeyboardInterrupt:
        print()
    except (KafkaMissing, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
