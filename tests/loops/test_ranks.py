"""Two real processes that train together over gloo, on loopback and a file store."""

import textwrap

import pytest
from fork_server import GLOO

from hookline.loops.distributed import ProcessGroup, rank, world_size

TRAIN = """
    import sys
    import torch
    import torch.distributed as dist
    import hookline as hl

    rank, store = int(sys.argv[1]), sys.argv[2]
    torch.set_default_device(sys.argv[3])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    seen = []
    callbacks = [hl.on("step_end", lambda loop: seen.append(loop.step), ranks="zero")]
    saved = []
    with hl.run(callbacks=callbacks, root=store + "-out", save=saved.append, strict=True, summary=False) as run:
        for i in run.steps(100):
            run.request_checkpoint()
            if rank == 1 and i == 4:
                run.request_stop("loss is NaN")
    print(run.rank, run.world_size, run.step, run.stop_reason, len(seen), len(saved), sep="|")
    dist.destroy_process_group()
"""


@pytest.mark.parametrize("default_device", ["cpu", "meta"])
def test_stop_requested_on_one_rank_stops_all_at_the_same_step(torch_programs, tmp_path, default_device):
    arguments = ["-c", textwrap.dedent(TRAIN)]
    started = [
        torch_programs.start(*arguments, str(rank), tmp_path / "store", default_device, env=GLOO, merge=False)
        for rank in (0, 1)
    ]
    out = [program.communicate(120)[0].strip() for program in started]
    assert out == ["0|2|5|loss is NaN (requested by rank 1)|5|5", "1|2|5|loss is NaN|0|0"]


def test_agree_in_a_process_alone_keeps_its_request():
    alone = ProcessGroup()
    assert (alone.agree(None), alone.agree("enough")) == ((None, ()), ("enough", ()))


def test_rank_and_world_size_come_from_the_launcher(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (rank(), world_size()) == (3, 8)
    monkeypatch.setenv("RANK", "nonsense")
    assert rank() == 0
