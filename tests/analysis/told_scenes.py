"""Situations that people report, as frames: the mechanism of public threads, in our own rendering and with invented numbers."""

from stack_texts import F, P

C10D = "torch/distributed/distributed_c10d.py"
MAIN = F("<module>", "train.py", 88)
STEP = (F("train_step", "train.py", 40), F("main", "train.py", 71), MAIN)
ALL_REDUCE = (F("all_reduce", C10D, 2810), F("wrapper", "torch/distributed/c10d_logger.py", 83), F("reduce_loss", "train.py", 35), *STEP)
BARRIER = (
    F("barrier", C10D, 3696),
    F("wrapper", "torch/distributed/c10d_logger.py", 83),
    F("wait_for_all", "train.py", 60),
    F("main", "train.py", 73),
    MAIN,
)
RECV = (
    F("recv", C10D, 1640),
    F("recv_forward", "megatron/p2p_communication.py", 221),
    F("forward_backward", "megatron/schedules.py", 618),
    MAIN,
)
QUEUE = (F("select", "selectors.py", 415), F("wait", "multiprocessing/connection.py", 947), F("get", "multiprocessing/queues.py", 113))
DATA = (
    *QUEUE,
    F("_try_get_data", "torch/utils/data/dataloader.py", 1243),
    F("_get_data", "torch/utils/data/dataloader.py", 1400),
    F("next_batch", "train.py", 30),
    *STEP,
)
WORKER = (
    F("fetch", "torch/utils/data/_utils/fetch.py", 54),
    F("_worker_loop", "torch/utils/data/_utils/worker.py", 374),
    F("main", "train.py", 70),
    MAIN,
)
IDLE_WORKER = (*QUEUE, F("_worker_loop", "torch/utils/data/_utils/worker.py", 340), F("main", "train.py", 70), MAIN)
FIRST = (
    F("barrier", C10D, 3696),
    F("main_process_first", "transformers/training_args.py", 2088),
    F("__enter__", "contextlib.py", 135),
    F("get_dataset", "data.py", 18),
    MAIN,
)


def ranks(world, odd, frames, others=ALL_REDUCE, **facts):
    """`world` ranks, of which one stands elsewhere."""
    return [P(rank, 4100 + rank, frames if rank == odd else others, **(facts if rank == odd else {})) for rank in range(world)]


def child(rank, frames, native=(), number=0, idle=True):
    """A loader process of a rank."""
    return P(rank, 9000 + 10 * rank + number, frames, native, child_of=4100 + rank, idle=idle)


def loader_reads_slow_mount(odd=2, world=4):
    return [
        *ranks(world, odd, DATA),
        child(odd, (F("read_shard", "data.py", 44), F("__getitem__", "data.py", 20), *WORKER)),
        child(odd, IDLE_WORKER, number=1),
    ]


def loader_after_fork(odd=1, world=4, frames=(), native=()):
    return [*ranks(world, odd, DATA), child(odd, (*frames, F("__getitem__", "data.py", 20), *WORKER), native)]


LOGGING_LOCK = (
    F("acquire", "logging/__init__.py", 927),
    F("handle", "logging/__init__.py", 977),
    F("warning", "logging/__init__.py", 1501),
    F("decode", "data.py", 33),
)
OPENCV = ("__lll_lock_wait_private", "__cxa_atexit", "cv::initOpenCV", "cv::imdecode_", "_PyEval_EvalFrameDefault")
OPENMP = ("__lll_lock_wait", "__pthread_mutex_lock", "__kmp_lock_suspend_mx", "__kmp_set_num_threads", "at::set_num_threads")
RAYON = ("syscall", "std::sys::futex_wait", "rayon_core::latch::LockLatch::wait_and_reset", "tokenizers::encode_batch")
SAVES = (
    F("_open_zipfile_writer", "torch/serialization.py", 690),
    F("save", "torch/serialization.py", 1002),
    F("save_checkpoint", "train.py", 52),
    F("main", "train.py", 72),
    MAIN,
)
EVALUATES = (
    F("forward", "model.py", 91),
    F("predict", "evals/suite.py", 120),
    F("run_validation", "train.py", 48),
    F("main", "train.py", 72),
    MAIN,
)
DOWNLOADS = (
    F("recv_into", "socket.py", 706),
    F("read", "ssl.py", 1166),
    F("readinto", "http/client.py", 467),
    F("_fp_read", "urllib3/response.py", 810),
    F("http_get", "huggingface_hub/file_download.py", 552),
    F("fetch_weights", "train.py", 12),
    MAIN,
)
TOKENIZES = (
    F("sleep", "time"),
    F("iflatmap_unordered", "datasets/utils/py_utils.py", 705),
    F("map", "datasets/arrow_dataset.py", 3163),
    F("get_dataset", "data.py", 22),
    MAIN,
)
COMPILES = (
    F("communicate", "subprocess.py", 1209),
    F("run", "subprocess.py", 550),
    F("compile", "triton/compiler/compiler.py", 300),
    F("compile_fx_inner", "torch/_inductor/compile_fx.py", 640),
    F("forward", "model.py", 80),
    *STEP,
)
DESTROYS = (F("destroy_process_group", C10D, 1990), F("main", "train.py", 80), MAIN)
JOINS = (
    F("poll", "multiprocessing/popen_fork.py", 28),
    F("wait", "multiprocessing/popen_fork.py", 44),
    F("join", "multiprocessing/process.py", 149),
    F("_shutdown_workers", "torch/utils/data/dataloader.py", 1450),
    F("_next_data", "torch/utils/data/dataloader.py", 1329),
    F("main", "train.py", 70),
    MAIN,
)
QUEUE_OF_FAIRSEQ = (F("wait", "threading.py", 302), F("get", "queue.py", 170), F("__next__", "fairseq/data/iterators.py", 648), *STEP)
LOCKED_FILE = (F("wait", "threading.py", 312), F("acquire", "filelock/_api.py", 210), F("build_cache", "data.py", 61), *STEP)
SAVES_BEST = (
    F("_all_gather_base", C10D, 2110),
    F("summon", "torch/distributed/fsdp/fully_sharded_data_parallel.py", 2211),
    F("save_best", "train.py", 55),
    F("main", "train.py", 75),
    MAIN,
)
FORWARD = (
    F("_all_gather_base", C10D, 2110),
    F("_pre_forward", "torch/distributed/fsdp/fully_sharded_data_parallel.py", 1288),
    F("train_one_epoch", "train.py", 44),
    F("main", "train.py", 70),
    MAIN,
)
SYNCS = (F("synchronize", "torch/cuda/__init__.py", 783), F("log_step", "train.py", 45), *STEP)
BACKWARD = (
    F("_engine_run_backward", "torch/autograd/graph.py", 979),
    F("backward", "torch/autograd/__init__.py", 354),
    F("backward", "torch/_tensor.py", 626),
    *STEP,
)
