"""The settings of a source as a trainer looks for them."""

from __future__ import annotations

from collections.abc import Collection

from rollout_audit.trainers.configfile import ConfigSource, load_config
from rollout_audit.trainers.section import Section

ANYWHERE = Section()


def read_config(source: ConfigSource, section: Section = ANYWHERE, known: Collection[str] = ()) -> dict[str, object]:
    return section.of(load_config(source).tree, known)
