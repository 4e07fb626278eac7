"""What a reader of a statement must know besides its table."""

from __future__ import annotations

from collections.abc import Sequence

from privfl.algorithms.base import Tensors
from privfl.data.targets import counted
from privfl.federation.cohorts import keeps_its_word
from privfl.federation.read_off import READ_OFF_FILES, READ_OFF_ROWS, judged_by_clients
from privfl.federation.task import Task
from privfl.privacy.accounting.stated import stating_class
from privfl.privacy.channel.channel import ChannelSpec
from privfl.privacy.mechanisms.registry import UPDATE_MECHANISMS
from privfl.privacy.sizes.local_randomizers import SIZE_MECHANISMS
from privfl.references import shipped
from privfl.simulation.plan import Plan

SHARED = "Some samples are held by more than one client; every claim is about one client's copy."
SECRET_DRAW = (
    "The claim for clients before the public holds while it stays secret who took part: publish this cell of "
    "the table alone, and of the run directory neither checkpoint, timings nor the server's transcript; metrics and "
    "summary leave out what the draw decides."
)
ADAPTED = "The sampling rate follows from the size answers; the claim composes the rates that these answers led to."

OWN_ROWS = (
    "{} metrics are measured on examples that clients hold back; no claim covers them, and publishing "
    "them is one more release."
)
OWN_MODELS = (
    "The test figures are those of the clients' own models, which no claim covers; publishing them is one more release."
)
TRUSTED_SUM = (
    "Secure sums were computed by a trusted party (mode 'ideal'); the column 'server' holds for a run of the protocol, "
    "not for this one."
)
SECURE_SUM = {
    "active": "The column 'server' rests on secure aggregation: a server that lies as it likes (active) and works with "
    "at most {corrupt:g} % of {whose} opens one sum a round at most, of 3 or more honest clients, except with "
    "probability about 2^-40, as long as the cryptography holds and the clients' signing keys did not come from it.",
    "semi-honest": "The column 'server' rests on secure aggregation: a server that follows the protocol (semi-honest) "
    "and works with at most {corrupt:g} % of {whose} sees sums only, except with probability about 2^-40 and as long "
    "as the cryptography holds. A server that lies about who survived reads every upload.",
}
DIFFERENCES = (
    "Secure sums do not hide what several of them tell together: of two cohorts that differ in one client the "
    "difference is that client's upload, as far as the others' stayed the same."
)
SERVER = {"active": "the server may lie, with", "semi-honest": "only if the server keeps to the protocol, with"}


AUTHORS = "The claims rest on parts that are not privfl's own, and on what their authors say of them: {}."


PUBLIC = "Public, by assumption: {}, {}, inputs of shape {}, {}every setting{}."
READ_OFF = "Read off the data, and covered by no claim unless it is known anyway: {}."


def assumptions(task: Task, holders: Sequence[str] = ()) -> str:
    """What every claim about a run of ``task`` takes as known to everybody, what ``holders`` hold included."""
    shape = " x ".join(map(str, task.inputs.shape[1:]))
    if task.vocabulary is not None:
        shape += f" with {task.vocabulary} token ids"
    held = f", the arrays of {' and of '.join(holders)}" if holders else ""
    clients = len(task.clients)
    who = "who the one client is" if clients == 1 else f"who the {clients} clients are"
    tests = "" if judged_by_clients(task.read_off) else f"{len(task.test_targets)} test examples, "
    said = PUBLIC.format(counted(task.kind, task.classes), who, shape, tests, held)
    from_file = task.recipe is not None and task.recipe.arrays is not None
    read_off = [(READ_OFF_FILES if from_file else READ_OFF_ROWS)[name] for name in task.read_off]
    return f"{said} {READ_OFF.format(', '.join(read_off))}" if read_off else said


def caveats(plan: Plan, server: Tensors) -> list[str]:
    """The sentences that hold for a run of ``plan`` that ended in the state ``server``."""
    found = []
    if plan.task.clients.overlap:
        found.append(SHARED)
    if "rate" in server and plan.privacy.size is not None and plan.privacy.training is not None:
        found.append(ADAPTED)
    own = ["Test"] * judged_by_clients(plan.task.read_off)
    own += ["local", "personal"] * (plan.task.local_tests is not None)
    if own:
        whose = " and ".join([", ".join(own[:-1]), own[-1]] if len(own) > 1 else own)
        found.append(OWN_ROWS.format(whose[0].upper() + whose[1:]))
    covered = plan.privacy.training is not None and plan.channel.noise is None and not plan.algorithm.local_only
    if plan.algorithm.ensemble and not covered:
        found.append(OWN_MODELS)
    if plan.channel.amplified:
        found.append(SECRET_DRAW)
    if believed := _believed(plan):
        found.append(AUTHORS.format(", ".join(believed)))
    if plan.channel.secure is not None:
        words = SECURE_SUM[plan.channel.secure.adversary] if plan.channel.secure.mode == "protocol" else TRUSTED_SUM
        found.append(words.format(corrupt=100 * plan.channel.secure.corrupt, whose=plan.channel.secure.whose))
        if plan.channel.noise is None and not plan.channel.protects:
            found.append(DIFFERENCES)
    return found


def adversary(channel: ChannelSpec) -> str:
    """What the server may do where a claim before it rests on secure aggregation; empty where none does."""
    secure = channel.secure
    if secure is None or channel.chain.shares is None:
        return ""
    return f"{SERVER[secure.adversary]} {100 * secure.corrupt:g} % of {secure.whose}"


def _believed(plan: Plan) -> list[str]:
    """Parts of somebody else's class that a claim rests on, each with what is believed of it."""
    privacy, channel = plan.privacy, plan.channel
    own = {base for kind in UPDATE_MECHANISMS.values() for base in kind.__mro__}
    found = []
    for link in privacy.update if channel.noise is not None or channel.noise_at_server else ():
        claim = {"noise": "cover", "sum": "honest"}.get(link.kind, "at_client")
        if claim == "at_client" and link.side_values:
            claim = "update_multiplier"
        if stating_class(link, claim) not in own:
            what = "that it treats every update on its own" if claim == "at_client" else f"its {claim}"
            if claim == "at_client" and channel.noise_at_server and link.nonexpansive:
                what += " and moves two of them no further apart"
            found.append(f"{type(link).__name__} ({what})")
    size = privacy.size
    if size is not None and stating_class(size, "client_cost") not in SIZE_MECHANISMS.values():
        found.append(f"{type(size).__name__} (its client_cost)")
    if channel.protects or size is not None:
        rules: list[object] = [] if keeps_its_word(plan.cohort) else [plan.cohort]
        rules += [] if shipped(type(plan.availability)) else [plan.availability]
        found += [f"{type(rule).__name__} (that who takes part depends on nobody's data)" for rule in rules]
    return found
