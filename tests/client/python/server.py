"""A server of the build for tests, in a folder of its own, and what it ought to encrypt, from the openssl command."""
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from millrace import Contract

BUILD = Path(os.environ["MILLRACE_BINARY_DIR"])
SOURCE = Path(__file__).resolve().parents[3]
KEY = bytes(range(16))
MS = 1_000_000
# Admission is another test's: this is granted wherever there is anything free.
CONTRACT = Contract(packet_bytes=1408, burst_packets=64, interval_ns=20 * MS, latency_ns=1000 * MS)

seed = int(os.environ.get("MILLRACE_SEED") or random.SystemRandom().randrange(2**32))
print(f"MILLRACE_SEED={seed}", flush=True)
draw = random.Random(seed)


class Server:
    """Runs while its `with` does. Listens on `address`, and on `tcp` and `tls` where ports are given."""

    def __init__(self, extra: str = "", listeners: str = "") -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="millrace-")
        self.folder = Path(self._folder.name)
        self.address = f"unix:{self.folder}/socket"
        self._config = f"""
listeners:
  - address: {self.address}
{listeners}
profile: cpu-only
gpus: none
threads: {{io: 1, workers: 1, realtime: off, pin: false}}
client_iv: true
{extra}
"""

    def __enter__(self) -> "Server":
        (self.folder / "millraced.yaml").write_text(self._config)
        self._log = (self.folder / "log").open("w+")
        self._process = subprocess.Popen([BUILD / "server/millraced", self.folder / "millraced.yaml"],
                                         stdout=self._log, stderr=self._log, stdin=subprocess.DEVNULL)
        while not (self.folder / "socket").exists():
            if self._process.poll() is not None:
                self._log.seek(0)
                raise RuntimeError(f"the server did not start:\n{self._log.read()}")
            time.sleep(0.01)
        return self

    def terminate(self) -> None:
        """As an operator ends it; it delivers what it has accepted."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        if kind is not None:
            self._log.seek(0)
            print(self._log.read())
        self._log.close()
        self._folder.cleanup()


def openssl_cbc(plaintext: bytes, iv: bytes, key: bytes = KEY, pad: bool = False) -> bytes:
    """What AES-CBC makes of it."""
    command = ["openssl", "enc", f"-aes-{len(key) * 8}-cbc", "-K", key.hex(), "-iv", iv.hex()]
    return subprocess.run(command + ([] if pad else ["-nopad"]), input=plaintext, capture_output=True, check=True).stdout
