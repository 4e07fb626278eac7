"""The server of a federation: opens a run by a signed policy, drives its rounds, and keeps the ledger and the model."""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privfl.deploy.agreement import Federation, Policy
from privfl.deploy.client import KEY_MEND
from privfl.deploy.convictions import Convictions
from privfl.deploy.engine import FederationEngine
from privfl.deploy.link import Link
from privfl.deploy.local import settings_of
from privfl.deploy.members import guarded
from privfl.deploy.sizes import AskedSizes
from privfl.deploy.transport import SMALL, Transport
from privfl.engine.choice import Choice
from privfl.engine.workspace import phases_of
from privfl.errors import ConfigError, DataError
from privfl.experiment import Experiment
from privfl.federation.task import Task
from privfl.files import read_json, write_json
from privfl.privacy.secagg.primitives import KEY_BYTES, SigningKey
from privfl.privacy.secagg.store import FolderStore
from privfl.simulation.callbacks import Callback
from privfl.simulation.fingerprint import POLICY as AGREED
from privfl.simulation.health import CONNECT, LOG, SILENT
from privfl.simulation.plan import Plan, RunSettings, prepare
from privfl.simulation.result import Run
from privfl.simulation.run_directory import RunDirectory
from privfl.simulation.simulation import ENGINE, begin, calibrate, run
from privfl.simulation.state import State

POLICY = "policy.json"
"""In the run directory: the policy that every client agreed to, by which a run is the same after an interruption."""

BYTES_A_NUMBER, BYTES_A_CLIENT = 16, 4096
"""More than a number takes in any encoding, and more than a secure sum's letters and shares for one other client."""


def refuse(plan: Plan, experiment: Experiment) -> None:
    """Refuse a run that no federation can do, before any work.

    Raises:
        ConfigError: naming the part that cannot, with the mend.
    """
    algorithm, secure = plan.algorithm, plan.channel.secure
    if algorithm.pools_data:
        raise ConfigError(f"{algorithm.name} trains on all data as one, which no federation does; simulate it")
    if algorithm.ensemble:
        raise ConfigError(f"{algorithm.name} tests the clients' own models, which stay with them here; simulate it")
    if secure is not None and secure.mode == "ideal":
        raise ConfigError("SecureSum(mode='ideal') needs a trusted party, and a federation has none; leave mode out")
    if experiment.record:
        raise ConfigError("record is set, and a federation keeps no transcript; leave it out, or simulate")


def largest_reply(plan: Plan) -> int:
    """Bytes that no honest reply exceeds: all that a phase sends, in clear or masked, and keys beside it."""
    numbers = [
        sum(plan.channel.size if one.shape is None else math.prod(one.shape) for one in phase.channel.sent)
        for phase in phases_of(plan.algorithm, plan.channel.usual)
    ]
    return SMALL + BYTES_A_NUMBER * max(numbers, default=0) + BYTES_A_CLIENT * len(plan.task.clients)


@dataclass
class FederationServer:
    """The server of one federation.

    Args:
        folder: its memory: the signing key, and nothing of any client.
        experiment, federation: what was agreed.
        data: the file with the held-out rows.
        transport: to the clients.
    """

    folder: Path
    experiment: Experiment
    federation: Federation
    data: Path
    transport: Transport

    def __post_init__(self) -> None:
        self._secret = FolderStore(self.folder).signing_key()
        self.key = SigningKey(self._secret)
        if self.key.public.hex() != self.federation.server:
            raise ConfigError(
                f"the federation lists another key for its server than {self.key.public.hex()}, which is the key in "
                f"this folder; {KEY_MEND}"
            )

    def run(
        self,
        out: Path,
        *,
        resume: bool = False,
        callbacks: Sequence[Callback] = (),
        identity: bytes | None = None,
    ) -> Run:
        """Run the experiment to its end.

        Args:
            out: run directory; a checkpoint is written after every round.
            resume: go on with an interrupted run there.
            callbacks: called after every round.
            identity: 32 bytes that this run has and no other; drawn unless given. With a fixed noise key the noise
                follows from both, so a simulation of this identity has the same noise.

        Raises:
            ConfigError: a setting is impossible, or somebody is missing without whom the run cannot begin.
            DataError: a file of the run that is to go on is missing, damaged, or another run's.
        """
        task = self.federation.task.of_server(len(self.federation.clients), self.data)
        asked = settings_of(self.experiment, task)
        asked = replace(asked, execution=replace(asked.execution, checkpoint_seconds=0.0))
        plan = guarded(prepare(asked))
        refuse(plan, self.experiment)
        self.transport.expect(largest_reply(plan))
        directory = RunDirectory(out)
        with directory.held():
            policy = self._policy(directory, identity, resume=resume)
            link = Link(self.transport, self.federation, policy, self.key)
            finished = self._run(asked, task, plan, directory, link, callbacks, resume=resume)
            link.end()
            return finished

    def _run(
        self,
        asked: RunSettings,
        task: Task,
        plan: Plan,
        directory: RunDirectory,
        link: Link,
        callbacks: Sequence[Callback],
        *,
        resume: bool,
    ) -> Run:
        fixed = plan.source if plan.source.reproducible else None
        plan, checkpoint = begin(asked, plan, directory, resume=resume, policy=link.policy.digest)
        if fixed is not None:
            plan = replace(plan, source=fixed.for_run(link.policy.run))
        state = State.start(plan) if checkpoint is None else State.load(checkpoint, plan)
        absent = link.join(range(len(self.federation.clients)), state.round)
        if len(absent) == len(self.federation.clients) and all(why.startswith(SILENT) for why in absent.values()):
            LOG.warning("no client answered within %g s; %s", self.federation.seconds, CONNECT)
        sizes = AskedSizes(
            len(task.clients), plan.privacy.size, state.ledger, state.sizes.responses, link, hidden=plan.hides_weights
        )
        state.sizes = sizes
        if (plan.needs_sizes or plan.hides_weights) and state.round == 0:
            sizes.begin(plan.source)
        elif plan.needs_sizes:
            sizes.tell_exact()
        plan = guarded(calibrate(plan, state, directory))
        convictions = Convictions(directory.path)
        engine = FederationEngine(plan, link, self._of_run(link.policy), sizes, convictions)
        engine.see_repeated({}, state.round)
        with engine:
            engine.notes += [f"client {client} was not there at the start: {why}" for client, why in absent.items()]
            directory.write_json(ENGINE, {**Choice("loop", None, "a federation").to_dict(), "workers": 1})
            return run(plan, state, engine, directory, callbacks)

    def _policy(self, directory: RunDirectory, identity: bytes | None, *, resume: bool) -> Policy:
        """The policy of the run in ``directory``, or a new one.

        Raises:
            DataError: it is missing, damaged, or not the one that the run began with.
            PolicyDiffers: the party's own files have changed since.
        """
        path = directory.path / POLICY
        record = directory.read_json("fingerprint.json")
        if resume and (directory.begun or path.exists() or record is not None):  # the policy is written before these
            if not path.exists():
                raise DataError(
                    f"{path} is missing, and under another policy the clients would answer the rounds of this run a "
                    "second time; restore it, or start anew with another --out"
                )
            policy = Policy.from_dict(read_json(path))
            if directory.begun and record is not None and record["parts"].get(AGREED) != policy.digest:
                raise DataError(
                    f"{path} is not the policy that the run began with; restore it, or start anew with another --out"
                )
            policy.check(self.experiment, self.federation)
            return policy
        policy = Policy.of(identity or secrets.token_bytes(KEY_BYTES), self.experiment, self.federation)
        if not directory.begun:
            write_json(path, policy.to_dict())
        return policy

    def _of_run(self, policy: Policy) -> bytes:
        """A secret of this server and this run."""
        kdf = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=policy.run, info=b"privfl secure sums of a run")
        return kdf.derive(self._secret)
