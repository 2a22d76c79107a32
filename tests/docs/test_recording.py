"""Every snippet of docs/recording.md does what it says, against stubs of the trainers' hooks."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import rollout_audit as ra
from rollout_audit.__main__ import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
SNIPPETS = dict(re.findall(r"^```python (\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
NO = -9.75

MU = torch.tensor([[-0.5, -0.25, -1.5], [-2.0, -0.75, 0.0]])
PI = torch.tensor([[-0.25, -0.5, -1.25], [-2.5, -0.5, NO]])
MASK = torch.tensor([[1, 0, 1], [1, 1, 0]])
IDS = torch.tensor([[5, 6, 7], [8, 9, 0]])
ADVANTAGES = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, 0.0]])
EXPECTED = [
    ([-0.5, -0.25, -1.5], [-0.25, -0.5, -1.25], [True, False, True]),
    ([-2.0, -0.75], [-2.5, -0.5], [True, True]),
]
"""rollout, old, mask of each response, without padding"""


def recorded(step: int) -> ra.Dump:
    dump = ra.open_dump("run/dumps")
    rows = [(r.rollout_log_probs.tolist(), r.old_log_probs.tolist(), r.response_mask.tolist()) for r in dump.rows()]
    assert rows == EXPECTED
    assert {row.step for row in dump.rows()} == {step}
    return dump


@pytest.fixture
def snippet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """snippet("verl", {"verl.trainer.ppo.ray_trainer": {...}}) → the names it defines, run in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def _run(name: str, modules: dict[str, dict[str, Any]] | None = None, **given: Any) -> dict[str, Any]:
        for path, content in (modules or {}).items():
            for end in range(1, path.count(".") + 2):
                part = ".".join(path.split(".")[:end])
                monkeypatch.setitem(sys.modules, part, sys.modules.get(part) or ModuleType(part))
            vars(sys.modules[path]).update(content)
            parent, _, last = path.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, sys.modules[path])
        namespace: dict[str, Any] = dict(given)
        exec(compile(SNIPPETS[name], f"recording.md {name}", "exec"), namespace)
        return namespace

    return _run


def test_plain_loop(snippet: Any) -> None:
    batch = {"rollout_log_probs": MU, "old_log_probs": PI, "response_mask": MASK, "advantages": ADVANTAGES}
    trained: list[Any] = []
    snippet("plain", batches=[{**batch, "reward": torch.tensor([1.0, 0.0])}], train=trained.append)
    assert [row.reward for row in recorded(0).rows()] == [1.0, 0.0]
    assert len(trained) == 1


def test_verl(snippet: Any) -> None:
    class RayPPOTrainer:
        global_steps = 4

        def _update_actor(self, batch: Any) -> str:
            return "updated"

    names = snippet("verl", {"verl.trainer.ppo.ray_trainer": {"RayPPOTrainer": RayPPOTrainer}})
    data = {
        "rollout_log_probs": MU,
        "old_log_probs": PI,
        "response_mask": MASK,
        "advantages": ADVANTAGES,
        "responses": IDS,
    }
    batch = SimpleNamespace(batch=data, non_tensor_batch={"uid": ["p", "p"]})
    assert names["RecordingTrainer"]()._update_actor(batch) == "updated"
    first = next(recorded(4).rows())
    assert (first.group_id, first.token_ids.tolist(), first.advantages.tolist()) == ("p", [5, 6, 7], [1.0] * 3)
    batch.batch = {}
    with pytest.warns(RuntimeWarning, match="step 4 is not recorded: no log-probs given"):
        assert names["RecordingTrainer"]()._update_actor(batch) == "updated"


@pytest.mark.parametrize("tools", [True, False])
def test_trl(snippet: Any, tools: bool) -> None:
    made = {
        "completion_ids": IDS,
        "completion_mask": torch.tensor([[1, 1, 1], [1, 1, 0]]) if tools else MASK,
        "sampling_per_token_logps": MU,
        "old_per_token_logps": PI,
        "advantages": torch.tensor([1.0, -1.0]),
        **({"tool_mask": torch.tensor([[1, 0, 1], [1, 1, 1]])} if tools else {}),
    }

    class GRPOTrainer:
        state = SimpleNamespace(global_step=11)
        model = SimpleNamespace(training=True)

        def _generate_and_score_completions(self, inputs: Any) -> Any:
            return made

    names = snippet("trl", {"trl": {"GRPOTrainer": GRPOTrainer}})
    evaluating = names["RecordingTrainer"]()
    evaluating.model = SimpleNamespace(training=False)
    assert evaluating._generate_and_score_completions([]) is made
    assert not Path("run/dumps").exists()
    assert names["RecordingTrainer"]()._generate_and_score_completions([]) is made
    assert [row.advantages.tolist() for row in recorded(11).rows()] == [[1.0] * 3, [-1.0] * 2]


def test_skyrl(snippet: Any) -> None:
    class RayPPOTrainer:
        global_step = 2

        def train_critic_and_policy(self, data: Any) -> str:
            return "status"

    names = snippet("skyrl", {"skyrl.train.trainer": {"RayPPOTrainer": RayPPOTrainer}})

    def right(values: torch.Tensor, fill: float) -> torch.Tensor:
        """SkyRL's response stands at the right end of the row; prompt values may stand before it."""
        return torch.stack([values[0], torch.cat((torch.full((1,), fill).to(values.dtype), values[1, :2]))])

    data = {"rollout_logprobs": right(MU, 0.0), "action_log_probs": right(PI, NO), "loss_mask": right(MASK, 0).float()}
    assert names["RecordingTrainer"]().train_critic_and_policy(data) == "status"
    recorded(2)


def test_openrlhf(snippet: Any) -> None:
    made = [
        SimpleNamespace(rollout_log_probs=MU[:1], action_log_probs=PI[:1], action_mask=MASK[:1]),
        SimpleNamespace(rollout_log_probs=MU[1:, :2], action_log_probs=PI[1:, :2], action_mask=MASK[1:, :2]),
    ]

    class RemoteExperienceMaker:
        def make_experience_batch(self, rollout_samples: Any) -> Any:
            return made

    path = "openrlhf.trainer.ppo_utils.experience_maker"
    names = snippet("openrlhf", {path: {"RemoteExperienceMaker": RemoteExperienceMaker}})
    assert sys.modules[path].RemoteExperienceMaker is names["RecordingMaker"]
    maker = names["RecordingMaker"]()
    assert maker.make_experience_batch([]) is made
    recorded(0)
    made[0].rollout_log_probs = None
    maker.make_experience_batch([])
    assert maker.batches_made == 2
    recorded(0)


def test_nemo_rl(snippet: Any) -> None:
    names = snippet("nemo_rl")

    def with_prompt(values: torch.Tensor) -> torch.Tensor:
        return torch.cat((torch.zeros(2, 2).to(values.dtype), values), dim=1)

    train_data = {
        "generation_logprobs": with_prompt(MU),
        "prev_logprobs": with_prompt(PI),
        "token_mask": with_prompt(MASK),
        "sample_mask": torch.ones(2),
        "advantages": with_prompt(ADVANTAGES),
        "input_ids": with_prompt(IDS),
    }
    names["record"](6, train_data)
    assert next(recorded(6).rows()).token_ids.tolist() == [5, 6, 7]


def test_safe_export(snippet: Any) -> None:
    snippet("export", batch={"rollout_log_probs": MU.T.contiguous().T, "old_log_probs": PI, "response_mask": MASK})
    rows = list(ra.open_dump("step_7.safetensors").rows())
    assert [row.rollout_log_probs.tolist() for row in rows] == [[-0.5, -0.25, -1.5], [-2.0, -0.75]]


def test_no_snippet_is_left_untried() -> None:
    tried = {"plain", "verl", "trl", "skyrl", "openrlhf", "nemo_rl", "export"}
    assert set(SNIPPETS) == tried
    assert len(re.findall(r"^```python", PAGE, re.MULTILINE)) == len(tried)


def test_commands_read_what_slime_and_miles_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("slime", "miles_cp2"):
        (tmp_path / name).symlink_to(ROOT / "tests" / "formats" / name)
    (console,) = re.findall(r"^```console\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    commands = [shlex.split(line[2:]) for line in console.splitlines()]
    assert [main(command[1:]) for command in commands] == [0, 0]
