"""What is said before the comparison: where the dump or the settings are not those of the golden file."""

from __future__ import annotations

from collections.abc import Mapping

from rollout_audit.errors import suggest
from rollout_audit.golden.model import Golden
from rollout_audit.golden.tolerances import is_logged

__all__ = ["remarks_on", "unlogged"]

UNCOUNTED = (
    "the golden file does not say how many lines it was written with, as those of earlier versions: "
    "what it lacks cannot be told from what was deleted; --update writes it anew"
)


def remarks_on(old: Golden, new: Golden, *, update: bool) -> list[str]:
    """What the golden file was made of and with that is not so now, and what in it does nothing or cannot be known."""
    uncounted = [] if old.is_counted or update else [UNCOUNTED]
    return [*_other_dump(old, new), *_other_settings(old, new), *uncounted, *old.remarks]


def _other_dump(old: Golden, new: Golden) -> list[str]:
    """Which files are not those that the golden file was made of."""
    if old.digests == new.digests:
        return []
    kinds = {
        "changed": [n for n, digest in new.digests.items() if n in old.digests and old.digests[n] != digest],
        "missing": [n for n in old.digests if n not in new.digests],
        "added": [n for n in new.digests if n not in old.digests],
    }
    texts = [f"{', '.join(names[:3])}{' …' if len(names) > 3 else ''} {kind}" for kind, names in kinds.items() if names]
    return [f"not the dump that the golden file was made of: {'; '.join(texts)}"]


def _other_settings(old: Golden, new: Golden) -> list[str]:
    """Of two configurations of one trainer the settings that differ; of two trainers their names say enough."""
    was, now = old.settings.model_dump(), new.settings.model_dump()
    for tree in (was, now):
        config = tree.pop("config") or {}
        if was["trainer"] == now["trainer"]:
            tree |= {f"{tree['trainer']}'s {name}": value for name, value in config.items()}
    names = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    return [f"{name} is {now.get(name)!r}, in the golden file {was.get(name)!r}" for name in names]


def unlogged(new: Golden, asked: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Tolerances of metrics that the trainer of the run does not log: a name that is misspelt does nothing."""
    names = [name for name in new.tolerances if is_logged(name)]
    lost = [name for name in asked if name.partition(":")[0] == new.settings.trainer and name not in names]
    return [f"check.metrics: {name!r} is not logged with these settings{suggest(name, names)}" for name in lost]
