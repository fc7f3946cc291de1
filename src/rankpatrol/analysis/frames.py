"""Which Python frames mean which kind of waiting. One table, measured on torch 2.13; a new meaning is a new row.

Its names of torch are held against those of 2.0 to 2.13.

Names are matched without their class (`_MultiProcessingDataLoaderIter._get_data` is `_get_data`): only Python 3.11 and later show it.
"""

import functools

from rankpatrol.analysis.kinds import WaitKind
from rankpatrol.core.records import Record
from rankpatrol.core.snapshot import Frame, ThreadStack


class Row(Record, frozen=True):
    """Frames of this file (matched at its end; `…/`: of any file below) and of these functions (empty: any) mean this kind."""

    file_end: str
    functions: frozenset[str]
    kind: WaitKind

    def knows(self, frame: Frame) -> bool:
        """True where the frame is one of the row's."""
        below = not self.file_end.endswith((".py", ">"))
        return (self.file_end in frame.file if below else frame.file.endswith(self.file_end)) and (
            not self.functions or plain_name(frame) in self.functions
        )


def _row(file_end: str, functions: str, kind: WaitKind) -> Row:
    return Row(file_end, frozenset(functions.split()), kind)


_C10D = "torch/distributed/distributed_c10d.py"
ROWS = (
    # Inside of a collective of objects: making bytes of one, or an object of them, is its own rank's work.
    _row(_C10D, "_object_to_tensor _tensor_to_object", WaitKind.COMPUTE),
    _row(
        _C10D,
        "all_reduce all_reduce_coalesced all_gather all_gather_into_tensor all_gather_object all_gather_coalesced all_to_all "
        "all_to_all_single barrier broadcast broadcast_object_list gather gather_object reduce reduce_scatter reduce_scatter_tensor "
        "scatter scatter_object_list monitored_barrier _all_gather_base _reduce_scatter_base all_reduce_multigpu broadcast_multigpu "
        "reduce_multigpu all_gather_multigpu reduce_scatter_multigpu _broadcast_coalesced all_gather_single reduce_scatter_single",
        WaitKind.COLLECTIVE,
    ),
    _row(
        "torch/distributed/utils.py",
        "_verify_param_shape_across_processes _sync_module_states _sync_params_and_buffers",
        WaitKind.COLLECTIVE,
    ),
    # Before each forward DDP gives all ranks the buffers of the first one: any model with BatchNorm stands there.
    _row(
        "torch/nn/parallel/distributed.py",
        "_sync_buffers _sync_module_buffers _default_broadcast_coalesced _distributed_broadcast_coalesced",
        WaitKind.COLLECTIVE,
    ),
    _row(
        "torch/distributed/_functional_collectives.py",
        "all_reduce all_gather_tensor all_to_all_single broadcast reduce_scatter_tensor wait_tensor all_gather_tensor_autograd "
        "all_gather_single reduce_scatter_single",
        WaitKind.COLLECTIVE,
    ),
    _row("torch/distributed/_composable/fsdp/", "wait_for_unshard foreach_all_gather foreach_reduce", WaitKind.COLLECTIVE),
    _row("torch/distributed/fsdp/_fully_shard/", "wait_for_unshard foreach_all_gather foreach_reduce", WaitKind.COLLECTIVE),
    _row(
        "deepspeed/runtime/zero/partition_parameters.py",
        "wait all_gather_coalesced _all_gather _all_gather_dtype _allgather_params_coalesced _allgather_param",
        WaitKind.COLLECTIVE,
    ),
    _row("deepspeed/comm/torch.py", "all_reduce all_gather_into_tensor reduce_scatter_tensor barrier broadcast", WaitKind.COLLECTIVE),
    _row("distributed/param_and_grad_buffer.py", "finish_grad_sync finish_param_sync", WaitKind.COLLECTIVE),
    _row("horovod/torch/mpi_ops.py", "synchronize allreduce allgather broadcast barrier join", WaitKind.COLLECTIVE),
    _row(_C10D, "send recv batch_isend_irecv send_object_list recv_object_list isend irecv", WaitKind.POINT_TO_POINT),
    _row("p2p_communication.py", "_communicate _batched_p2p_ops _p2p_ops", WaitKind.POINT_TO_POINT),
    _row("deepspeed/runtime/pipe/p2p.py", "send recv wait send_obj recv_obj", WaitKind.POINT_TO_POINT),
    _row(_C10D, "_store_based_barrier", WaitKind.STORE),
    _row(_C10D, "destroy_process_group _abort_process_group _shutdown_backend", WaitKind.TEARDOWN),
    _row(_C10D, "init_process_group new_group _new_group_with_tag _new_process_group_helper split_group new_subgroups", WaitKind.START),
    _row("torch/distributed/rendezvous.py", "", WaitKind.START),
    _row("torch/distributed/elastic/rendezvous/", "", WaitKind.START),
    _row("torch/distributed/elastic/utils/store.py", "synchronize barrier get_all", WaitKind.STORE),
    _row("torch/autograd/graph.py", "_engine_run_backward", WaitKind.BACKWARD),
    _row("torch/autograd/__init__.py", "backward grad", WaitKind.BACKWARD),
    _row("torch/cuda/__init__.py", "synchronize", WaitKind.DEVICE),
    _row("torch/cuda/streams.py", "synchronize", WaitKind.DEVICE),
    _row("torch/accelerator/__init__.py", "synchronize", WaitKind.DEVICE),
    _row("core/module.py", "__to_tensor _LightningModule__to_tensor", WaitKind.DEVICE),
    _row("lightning_fabric/utilities/apply_func.py", "batch_to move_data_to_device", WaitKind.DEVICE),
    _row("lightning/fabric/utilities/apply_func.py", "batch_to move_data_to_device", WaitKind.DEVICE),
    _row("accelerate/utils/operations.py", "send_to_device _send_to_device", WaitKind.DEVICE),
    _row(
        "torch/utils/data/dataloader.py",
        "_shutdown_workers",
        WaitKind.TEARDOWN,
    ),
    _row("torch/utils/data/dataloader.py", "_try_get_data _get_data _try_get_batch _get_batch", WaitKind.DATA),
    _row("nvidia/dali/pipeline.py", "outputs share_outputs _outputs _share_outputs schedule_run", WaitKind.DATA),
    _row("nvidia/dali/plugin/base_iterator.py", "", WaitKind.DATA),
    _row("ffcv/loader/epoch_iterator.py", "__next__", WaitKind.DATA),
    _row("fairseq/data/iterators.py", "__next__", WaitKind.DATA),
    _row("prefetch_generator/__init__.py", "next __next__", WaitKind.DATA),
    _row("tensorflow/python/data/ops/iterator_ops.py", "", WaitKind.DATA),
    _row("ray/data/iterator.py", "", WaitKind.DATA),
    _row("torchdata/", "", WaitKind.DATA),
    _row("torch/utils/data/_utils/fetch.py", "fetch", WaitKind.LOADING),
    _row("webdataset/", "", WaitKind.LOADING),
    _row("torch/distributed/checkpoint/", "", WaitKind.CHECKPOINT),
    _row("torch/serialization.py", "", WaitKind.CHECKPOINT),
    _row("safetensors/torch.py", "save_file save_model", WaitKind.CHECKPOINT),
    _row("deepspeed/runtime/checkpoint_engine/", "", WaitKind.CHECKPOINT),
    _row("megatron/core/dist_checkpointing/", "", WaitKind.CHECKPOINT),
    # `_fn` of the same file stands in every call of what is compiled already, or kept from it.
    _row("torch/_dynamo/eval_frame.py", "catch_errors explain export", WaitKind.COMPILE),
    _row("torch/_dynamo/convert_frame.py", "", WaitKind.COMPILE),
    _row("torch/_inductor/compile_fx.py", "", WaitKind.COMPILE),
    _row("torch/_inductor/codecache.py", "", WaitKind.COMPILE),
    _row("torch/_inductor/async_compile.py", "", WaitKind.COMPILE),
    _row("torch/_inductor/graph.py", "", WaitKind.COMPILE),
    _row("torch/_inductor/scheduler.py", "", WaitKind.COMPILE),
    _row("torch/_inductor/codegen/", "", WaitKind.COMPILE),
    _row("torch/_inductor/select_algorithm.py", "", WaitKind.COMPILE),
    _row("triton/compiler/", "", WaitKind.COMPILE),
    _row("triton/runtime/autotuner.py", "_bench benchmark", WaitKind.COMPILE),
    _row("triton/runtime/jit.py", "compile _do_compile", WaitKind.COMPILE),
    _row("torch/utils/cpp_extension.py", "", WaitKind.COMPILE),
    _row("torch/utils/file_baton.py", "wait", WaitKind.COMPILE),
    # Only while it waits for its user: frames of a debugger that runs a program lie outside of that program's own.
    _row("/pdb.py", "interaction cmdloop _cmdloop", WaitKind.TRACED),
    _row(
        "pydevd",
        "do_wait_suspend _do_wait_suspend block_until_configuration_done wait_for_ready_to_run wait_for_attach",
        WaitKind.TRACED,
    ),
    _row("debugpy/", "wait_for_client", WaitKind.TRACED),
    _row("multiprocessing/util.py", "_exit_function", WaitKind.TEARDOWN),
    _row("/threading.py", "_shutdown", WaitKind.TEARDOWN),
    _row("concurrent/futures/thread.py", "_python_exit", WaitKind.TEARDOWN),
    _row("concurrent/futures/process.py", "_python_exit", WaitKind.TEARDOWN),
    _row("wandb/sdk/wandb_run.py", "finish _finish _on_finish _atexit_cleanup", WaitKind.TEARDOWN),
    _row("huggingface_hub/", "", WaitKind.DOWNLOAD),
    _row("modelscope/hub/", "", WaitKind.DOWNLOAD),
    _row("torch/hub.py", "download_url_to_file load_state_dict_from_url", WaitKind.DOWNLOAD),
    _row("urllib3/", "", WaitKind.DOWNLOAD),
    _row("urllib/request.py", "", WaitKind.DOWNLOAD),
    _row("http/client.py", "", WaitKind.DOWNLOAD),
    _row("botocore/", "", WaitKind.DOWNLOAD),
    _row("s3transfer/", "", WaitKind.DOWNLOAD),
    _row("fsspec/", "", WaitKind.DOWNLOAD),
    _row("s3fs/", "", WaitKind.DOWNLOAD),
    _row("gcsfs/", "", WaitKind.DOWNLOAD),
    _row("google/cloud/storage/", "", WaitKind.DOWNLOAD),
    _row("aiohttp/client", "", WaitKind.DOWNLOAD),
    _row("smart_open/", "", WaitKind.DOWNLOAD),
    _row("importlib/_bootstrap>", "", WaitKind.START),
    _row("<frozen importlib._bootstrap>", "", WaitKind.START),
)

# Frames between a wait and its meaning that carry none themselves.
_PLUMBING = ("torch/distributed/c10d_logger.py", "torch/utils/_contextlib.py")
_LIBRARY = (
    "/rankpatrol/launch/probe/",
    "/site-packages/",
    "/dist-packages/",
    "/lib/python3",
    "/lib64/python3",
    "/python2.7/",
    "<frozen ",
    "<string>",
)


def plain_name(frame: Frame) -> str:
    """The function's name without its class."""
    return frame.name.rpartition(".")[2]


def is_users(frame: Frame) -> bool:
    """True for a frame of the user's own code: neither torch nor the standard library nor another installed package."""
    return not any(part in frame.file for part in _LIBRARY)


@functools.lru_cache(maxsize=1 << 14)
def _kind(frame: Frame) -> WaitKind | None:
    return next((row.kind for row in ROWS if row.knows(frame)), None)


def meaning(thread: ThreadStack) -> tuple[WaitKind, Frame] | None:
    """The innermost frame that a row knows, and its kind; None where the stack reaches user code or its end before one.

    User code stands between: whoever sleeps in a hook that backward called is in the hook, not in backward.
    """
    for frame in thread.frames:
        if any(frame.file.endswith(end) for end in _PLUMBING):
            continue
        if (kind := _kind(frame)) is not None:
            return kind, frame
        if is_users(frame):
            return None
    return None


def users_frame(thread: ThreadStack) -> Frame | None:
    """The innermost frame of the user's own code: the line to name."""
    return next((frame for frame in thread.frames if is_users(frame)), None)


def is_inside(thread: ThreadStack, kind: WaitKind) -> bool:
    """True where any frame of the stack, however deep below user code, has this meaning."""
    return any(_kind(frame) is kind for frame in thread.frames)


def say_frame(frame: Frame) -> str:
    """A frame as a sentence names it: `load_block (data.py:41)`."""
    return f"{plain_name(frame)} ({frame.file.rpartition('/')[2]}:{frame.line})"
