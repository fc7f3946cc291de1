"""What the probe costs a training step: the optimizer hook alone, and a small training's step with and without it, by turns."""

import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from rankpatrol.launch.probe.hooks import step_hook
from rankpatrol.launch.probe.sheet import Sheet, open_marks
from rankpatrol.launch.shim.marks import make_marks

CALLS = 200_000
ROUNDS, STEPS = 1000, 10


def main() -> None:
    torch.set_num_threads(1)
    sheet = open_marks(make_marks(tempfile.gettempdir()))
    assert sheet is not None
    sheet.sign()
    print(f"optimizer hook: {hook_us(sheet):.2f} us in a loop of its own")
    step = training()
    for _ in range(10 * STEPS):
        step()
    print(f"optimizer hook: {hook_in_training_us(step, sheet):.2f} us between a training's steps, whose work fills the caches")
    plain, hooked = by_turns(step, sheet)
    ratios = [one / other for one, other in zip(hooked, plain, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"a step of {statistics.median(plain):.0f} us, with / without the hook: {middle:.4f} (quartiles {low:.4f} and {high:.4f})")


def hook_us(sheet: Sheet) -> float:
    hook = step_hook(sheet, torch)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(CALLS):
            hook(None, (), {})
        with_hook = time.perf_counter() - began
        took.append(with_hook / CALLS * 1e6)
    return min(took)


def hook_in_training_us(step: Callable[[], None], sheet: Sheet) -> float:
    hook, clock = step_hook(sheet, torch), time.perf_counter_ns
    took: list[int] = []

    def timed(*arguments: object) -> None:
        before, began = clock(), clock()
        hook(*arguments)
        took.append((clock() - began) - (began - before))

    handle = register_optimizer_step_post_hook(timed)
    for _ in range(1000):
        step()
    handle.remove()
    return statistics.median(took) / 1e3


def training() -> Callable[[], None]:
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(32, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def by_turns(step: Callable[[], None], sheet: Sheet) -> tuple[list[float], list[float]]:
    """Microseconds a step, in pairs that change their order each time."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    for number in range(ROUNDS):
        for with_probe in (number % 2 == 0, number % 2 == 1):
            handle = register_optimizer_step_post_hook(step_hook(sheet, torch)) if with_probe else None
            began = time.perf_counter()
            for _ in range(STEPS):
                step()
            taken[with_probe].append((time.perf_counter() - began) / STEPS * 1e6)
            if handle is not None:
                handle.remove()
    return taken[False], taken[True]


main()
