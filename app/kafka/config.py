"""How one pipeline is reached: brokers, security by reference, topics, and the partitioner its producers use.

Nothing here holds a secret. A secret is an environment variable's or a file's name, read when a client is made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from app.kafka.errors import BrokerError
from app.kafka.partition import Partitioner
from app.kafka.topics import Section, Topics

# What correctness rests on is not for the `client` table.
_OURS: Final = frozenset(
    {
        "auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store",
        "enable.idempotence", "enable.partition.eof", "group.id", "isolation.level", "metadata.broker.list",
        "partitioner", "sasl.mechanism", "sasl.mechanisms", "security.protocol", "transactional.id",
    }
)  # fmt: skip
_SECRET: Final = re.compile(r"password|secret|\.pem$|token|jaas|credential|assertion")


def _broker(value: str) -> str:
    host, colon, port = value.rpartition(":")
    # An IPv6 address stands in brackets, so that its last colon is the port's.
    bare = re.fullmatch(r"\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\],@]+", host)
    if not colon or not bare or not re.fullmatch(r"\d{1,5}", port) or not 0 < int(port) < 65536:
        raise ValueError(f"{value!r} is not the address of a broker: expected host:port, such as broker-1:9092")
    return value


class Secret(Section):
    """Where a secret is kept: `{ env = "NAME" }` or `{ file = "path" }`."""

    env: str | None = Field(None, description="Environment variable that holds it.", pattern=r"^[A-Za-z_]\w*$")
    file: Path | None = Field(None, description="File that holds it; a line end at its end does not count.")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.env is None) == (self.file is None):
            raise ValueError('a secret is given by reference: either { env = "NAME" } or { file = "path" }')
        return self

    def read(self, pipeline: str, setting: str, environment: Mapping[str, str] | None = None) -> str:
        """Fetch the secret itself. Raises `BrokerError` that names the setting and the place, never the content."""
        if self.env is not None:
            value = (os.environ if environment is None else environment).get(self.env)
            if not value:
                raise BrokerError(
                    pipeline, f"{setting} is to come from the environment variable {self.env}, which is not set"
                )
            return value
        path = self.file or Path()
        try:
            value = path.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise BrokerError(
                pipeline, f"{setting} is to come from the file {path}, which cannot be read: {why}"
            ) from None
        if not value:
            raise BrokerError(pipeline, f"{setting} is to come from the file {path}, which is empty")
        return value


class Security(Section):
    """How the client proves who it is, and how it knows the broker."""

    protocol: Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] = Field(
        "plaintext", description="`plaintext`, `ssl`, `sasl_plaintext` or `sasl_ssl`."
    )
    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None = Field(
        None, description="SASL mechanism: `PLAIN`, `SCRAM-SHA-256`, `SCRAM-SHA-512`, `OAUTHBEARER` or `GSSAPI`."
    )
    username: Secret | None = Field(None, description='SASL user, by reference: `{ env = "NAME" }` or a file.')
    password: Secret | None = Field(None, description="SASL password, by reference.")
    ca: Path | None = Field(None, description="Certificates of the authorities that the brokers' are signed by (PEM).")
    certificate: Path | None = Field(None, description="The client's own certificate (PEM).")
    key: Path | None = Field(None, description="The private key of the client's certificate (PEM).")
    key_password: Secret | None = Field(None, description="Password of that key, by reference.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        sasl = self.protocol.startswith("sasl")
        if sasl and self.mechanism is None:
            raise ValueError(f"protocol {self.protocol} needs a mechanism, such as SCRAM-SHA-512")
        if not sasl and (self.mechanism or self.username or self.password):
            wanted = "mechanism, username and password need protocol sasl_ssl or sasl_plaintext"
            raise ValueError(f"{wanted}, not {self.protocol}")
        if sasl and self.mechanism not in {"OAUTHBEARER", "GSSAPI"} and not (self.username and self.password):
            raise ValueError(f"mechanism {self.mechanism} needs username and password, each by reference")
        if not self.protocol.endswith("ssl") and (self.ca or self.certificate or self.key):
            raise ValueError(f"ca, certificate and key need protocol ssl or sasl_ssl, not {self.protocol}")
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together")
        return self


class Pipeline(Section):
    """One running pipeline, and how Hindcast reaches its topics."""

    name: str = Field(description="What people choose it by; unique.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    brokers: tuple[Annotated[str, AfterValidator(_broker)], ...] = Field(
        description="Addresses to find the cluster by, as `host:port`; two or three are enough.", min_length=1
    )
    security: Security = Security()
    topics: Topics = Field(description="Topic per stream.")
    partitioner: Partitioner | None = Field(
        None,
        description="How the producers of the events topic choose a partition: `murmur2` (Java clients),"
        " `consistent_random` (librdkafka's default), `fnv1a` (Go's Sarama), …; needed to export.",
    )
    isolation: Literal["read_committed", "read_uncommitted"] = Field(
        "read_committed", description="Whether records of open and aborted transactions count; as the pipeline reads."
    )
    group: str | None = Field(
        None, description="Consumer group of the pipeline, if it commits offsets: tells how far it lags.", min_length=1
    )
    client_group: str = Field(
        "hindcast", description="Group name under which Hindcast shows itself; it never commits.", min_length=1
    )
    client: dict[str, str | int | float | bool | Secret] = Field(
        default_factory=dict, description="Further settings of librdkafka by their own names; secrets by reference."
    )
    builds: tuple[str, ...] = Field((), description="Names of the agent builds that ran in it.")

    @field_validator("client")
    @classmethod
    def _client_is_harmless(
        cls, value: dict[str, str | int | float | bool | Secret]
    ) -> dict[str, str | int | float | bool | Secret]:
        for name, setting in value.items():
            if name in _OURS:
                raise ValueError(f"{name!r} is decided by Hindcast or has a setting of its own; remove it from client")
            if _SECRET.search(name) and not isinstance(setting, Secret):
                raise ValueError(f'{name!r} may be secret: give it as {{ env = "NAME" }} or {{ file = "path" }}')
        return value

    def placed(self, base: Path) -> Pipeline:
        """The same pipeline with its relative paths taken from `base`, the folder of the configuration file."""

        def secret(one: Secret) -> Secret:
            return one if one.file is None else one.model_copy(update={"file": base / one.file.expanduser()})

        changes: dict[str, object] = {}
        for name in Security.model_fields:
            value = getattr(self.security, name)
            if isinstance(value, Path):
                changes[name] = base / value.expanduser()
            elif isinstance(value, Secret):
                changes[name] = secret(value)
        client = {name: secret(value) if isinstance(value, Secret) else value for name, value in self.client.items()}
        return self.model_copy(update={"security": self.security.model_copy(update=changes), "client": client})
