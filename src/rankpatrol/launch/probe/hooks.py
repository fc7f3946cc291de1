"""What is marked, and where in torch: one function a module, called when the training has imported it."""

from __future__ import annotations

import _thread
import sys
import time

from . import layout
from .wrapping import follow, quietly, wrap

TYPE_CHECKING = False  # typing is not imported into a user's interpreter for our sake
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any

    from .sheet import Sheet

# eval() of the wrapped model is an evaluation; that of a part (frozen batch norms, a teacher) is none.
_WHOLE_MODELS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "DeepSpeedEngine"})
_GROUP_MAKERS = ("new_group", "split_group", "shrink_group")


class Hooks:
    """The probe's hooks in one rank."""

    def __init__(self, sheet: Sheet, socket: str) -> None:
        self._sheet, self._socket = sheet, socket
        self._main_thread = _thread.get_ident()
        self.is_rank = True

    def detach(self) -> None:
        """After a fork, in the child: it is no rank, neither marks nor serves."""
        self.is_rank = False
        self._sheet.detach()

    def wanted(self) -> dict[str, Callable[[ModuleType], None]]:
        """What to do when which module was imported."""
        return {
            "torch": quietly(self._at_torch),
            "torch.nn.modules.module": quietly(self._at_modules),
            "torch.serialization": quietly(self._at_saves),
            "torch.distributed.checkpoint.state_dict_saver": quietly(self._at_saves),
            "torch.distributed.distributed_c10d": quietly(self._at_groups),
            "torch._dynamo.callback": quietly(self._at_compilations),
            "torch._dynamo.eval_frame": quietly(self._at_patches),
        }

    def note_exception(self) -> None:
        """At exit: Python keeps in sys.last_type what it has printed as unhandled, whoever's excepthook that was. Ctrl-C is no failure.

        Interpreters within a program (code, IPython) and C's PyErr_Print keep there what they have handled: only what has left the program
        itself has ended it.
        """
        raised = issubclass(getattr(sys, "last_type", SystemExit), Exception)
        if self.is_rank and raised and _left_the_program(getattr(sys, "last_traceback", None)):
            self._sheet.raises()

    def _at_torch(self, torch: ModuleType) -> None:
        # Before threads are waited for at exit, which may last; Python has no public name for that (3.9 to 3.14).
        register = getattr(sys.modules.get("threading"), "_register_atexit", None)
        if register is not None:
            register(quietly(self.note_exception))
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(step_hook(self._sheet, torch))

    def _at_modules(self, module: ModuleType) -> None:
        follow(module.Module, "eval", quietly(self._evaluates))

    def _evaluates(self, _result: object, args: tuple[Any, ...], _keywords: object) -> None:
        # The next optimizer step ends it.
        if self._sheet.base == layout.TRAIN_STEP and type(args[0]).__name__ in _WHOLE_MODELS:
            self._sheet.begin(layout.EVALUATION)

    def _at_saves(self, module: ModuleType) -> None:
        for name in ("save", "async_save", "save_state_dict"):
            wrap(module, name, before=quietly(self._save_begins), ended=quietly(self._save_ended))

    def _save_begins(self, *_: object) -> None:
        # A thread that saves beside the training does not hold it up.
        if _thread.get_ident() == self._main_thread:
            self._sheet.saving(1)

    def _save_ended(self) -> None:
        if _thread.get_ident() == self._main_thread:
            self._sheet.saving(-1)

    def _at_compilations(self, module: ModuleType) -> None:
        module.on_compile_start(quietly(lambda *_: self._sheet.compiling(True)))
        module.on_compile_end(quietly(lambda *_: self._sheet.compiling(False)))

    def _at_patches(self, module: ModuleType) -> None:
        # Until 2.2 the compiler took the hooks away from all of torch's optimizers when it was first used (pytorch/pytorch#115772).
        if sys.modules["torch"].__version__.startswith(("2.0.", "2.1.", "2.2.")):
            follow(module.TorchPatcher, "patch", quietly(lambda *_: self._sheet.flag(layout.UNCOUNTED)))

    def _at_groups(self, c10d: ModuleType) -> None:
        from .groups import GroupBook  # ruff: ignore[PLC0415] - needs modules that only a training has imported by now

        book = GroupBook(c10d, self._sheet)
        follow(c10d, "_new_process_group_helper", quietly(book.note_timeout))
        for name in _GROUP_MAKERS:
            follow(c10d, name, quietly(lambda *_: book.write()))

        def initialised(*_: object) -> None:
            if self._sheet.base in {layout.INITIALISATION, layout.TEARDOWN}:
                self._sheet.begin(layout.FIRST_STEP)
            book.write()
            self._serve()

        def leaves(args: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            group = args[0] if args else keywords.get("group")
            if group is None or group is c10d._world.default_pg:
                self._sheet.begin(layout.TEARDOWN)

        follow(c10d, "init_process_group", quietly(initialised))
        wrap(c10d, "destroy_process_group", before=quietly(leaves), ended=quietly(book.write))

    def _serve(self) -> None:
        from .server import serve  # ruff: ignore[PLC0415] - needed once

        socket, self._socket = self._socket, ""
        if socket and self.is_rank and serve(socket):
            self._sheet.flag(layout.SERVES)


def _left_the_program(traceback: TracebackType | None) -> bool:
    """True where it begins at the top level of the program, below runpy's own frames (python -m)."""
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__") == "runpy":
        traceback = traceback.tb_next
    if traceback is None or hasattr(sys, "ps1"):
        return False
    frame = traceback.tb_frame
    # Since 3.13 a console leaves its own frames out, and may run in the program's own names.
    typed = frame.f_code.co_filename in {"<input>", "<console>"}
    return frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__" and not typed


def step_hook(sheet: Sheet, torch: ModuleType) -> Callable[..., None]:
    """Counts optimizer steps; runs once a step, so it is as short as can be."""
    clock, boot_time = time.clock_gettime_ns, time.CLOCK_BOOTTIME
    steps, last_step, train_step = layout.STEPS, layout.LAST_STEP_NS, layout.TRAIN_STEP
    # Of an optimizer step that is compiled nothing of ours may become a part: the compiler folds this question to a constant.
    is_traced = getattr(getattr(torch, "compiler", None), "is_dynamo_compiling", bool)

    def step_is_compiled() -> bool:
        sheet.flag(layout.UNCOUNTED)
        return True

    # Called once while the step is traced, never in what becomes of it (torch.compiler.assume_constant_result, which would import much).
    step_is_compiled._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def on_step(*_: object) -> None:
        if is_traced():
            step_is_compiled()
            return
        words = sheet.words
        words[steps] += 1
        words[last_step] = clock(boot_time)
        if sheet.base != train_step:
            sheet.begin(train_step)

    return on_step
