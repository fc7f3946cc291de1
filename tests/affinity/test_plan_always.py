"""What holds of every plan, on machines that nobody built."""

from hypothesis import given
from hypothesis import strategies as st

from rankpatrol.affinity.cpus import format_cpus, parse_cpus
from rankpatrol.affinity.machine import Cores, Gpu, Machine, Node, Witness
from rankpatrol.affinity.plan import BIND, CORE, NODE, Rank, Want, describe, plan
from rankpatrol.affinity.sharing import share
from rankpatrol.affinity.topo_m import read_topo
from rankpatrol.affinity.visible import Choice, LocalRank, choose, local_rank, seen_gpus

cpu_sets = st.frozensets(st.integers(0, 23), max_size=24)
node_numbers = st.integers(0, 4)
gpus = st.builds(
    Gpu,
    address=st.sampled_from(["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]),
    vendor=st.sampled_from(["nvidia", "amd", "ascend", ""]),
    model=st.sampled_from(["a", "b"]),
    node=st.none() | st.integers(0, 6),
    local_cpus=cpu_sets,
    path=st.just("/sys/devices/x"),
    uuid=st.none() | st.sampled_from(["GPU-1", "GPU-12", "GPU-2"]),
    usable=st.booleans(),
)
witnesses = st.dictionaries(st.sampled_from(["0000:01:00.0", "0000:02:00.0"]), st.builds(Witness, cpus=cpu_sets, nodes=cpu_sets))


@st.composite
def machines(draw: st.DrawFn) -> tuple[Machine, Cores]:
    """Nodes with cores of their own, one or two threads each, some without CPUs."""
    nodes, cores, caches, cpu = {}, [], [], 0
    for number in draw(st.lists(node_numbers, unique=True, max_size=4)):
        own = [frozenset(range(cpu + 2 * at, cpu + 2 * at + draw(st.integers(1, 2)))) for at in range(draw(st.integers(0, 4)))]
        cpu += 8
        cores += own
        together = frozenset(one for core in own for one in core)
        if together and draw(st.booleans()):
            caches.append(together)
        distances = draw(st.dictionaries(node_numbers, st.integers(10, 40), max_size=5))
        nodes[number] = Node(number, together, draw(st.booleans()), distances)
    return Machine(nodes), Cores(tuple(cores), tuple(caches))


ranks = st.lists(
    st.builds(
        Rank,
        number=st.integers(0, 7),
        choice=st.builds(Choice, gpus=st.lists(gpus, max_size=3).map(tuple), why=st.just("because")),
        allowed=cpu_sets,
        memory_nodes=st.frozensets(node_numbers),
    ),
    max_size=6,
)


@given(machines(), ranks, witnesses, st.sampled_from([NODE, CORE]))
def test_a_plan_stays_within_what_is_allowed_and_on_its_node(built, them, witness, mode) -> None:
    machine, cores = built
    for rank, made in zip(them, plan(machine, cores, them, witness, Want(mode)), strict=True):
        assert describe(made)
        if made.decision == BIND:
            assert made.cpus
            assert made.cpus <= rank.allowed & machine.nodes[made.node].cpus
            assert made.memory_node is None or made.memory_node in rank.memory_nodes
        else:
            assert not made.cpus
            assert made.why


@given(machines(), st.dictionaries(st.integers(0, 7), cpu_sets.filter(bool), min_size=1, max_size=8))
def test_no_core_is_shared_unless_there_are_too_few(built, wanted) -> None:
    _, cores = built
    allowed = {rank: cpus & frozenset(cpu for core in cores.cores for cpu in core) for rank, cpus in wanted.items()}
    allowed = {rank: cpus for rank, cpus in allowed.items() if cpus}
    given_cpus = share(cores, allowed)
    assert all(given_cpus[rank] and given_cpus[rank] <= allowed[rank] for rank in allowed)
    holders = [[rank for rank in allowed if given_cpus[rank] & core] for core in cores.cores]
    if any(len(them) > 1 for them in holders):
        assert not everyone_can_have_a_core(cores, allowed)


def everyone_can_have_a_core(cores, allowed) -> bool:
    """By trying all ways."""

    def possible(left, free) -> bool:
        if not left:
            return True
        return any(possible(left[1:], free - {core}) for core in free if core & allowed[left[0]])

    return possible(list(allowed), frozenset(cores.cores))


words = st.text("0123456789,-GPUMIG/ x", max_size=12) | st.sampled_from(["GPU-1", "GPU-2,0", "MIG-GPU-1/1/0", "MIG-x", "1,0", "0"])
environments = st.dictionaries(
    st.sampled_from(
        [
            "CUDA_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "ASCEND_RT_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
            "LOCAL_RANK",
            "LOCAL_WORLD_SIZE",
            "SLURM_LOCALID",
            "SLURM_STEP_TASKS_PER_NODE",
        ]
    ),
    words,
)


@given(environments, st.lists(gpus, max_size=4))
def test_any_environment_is_read_without_an_error_and_names_usable_gpus_only(environment, them) -> None:
    seen = seen_gpus(environment, them, {"MIG-x": "0000:01:00.0"})
    chosen = choose(seen, local_rank(environment))
    assert all(gpu.usable for gpu in chosen.gpus)
    assert chosen.why


@given(st.lists(gpus.map(lambda gpu: gpu._replace(usable=True)), min_size=2, max_size=4), st.integers(0, 5), st.integers(0, 5))
def test_one_of_several_gpus_is_chosen_only_where_ranks_and_gpus_are_as_many(them, rank, count) -> None:
    chosen = choose(seen_gpus({}, them, {}), LocalRank(rank, count))
    assert len(chosen.gpus) == len(them) or (len(chosen.gpus) == 1 and count == len(them) and rank < count)


@given(st.frozensets(st.integers(0, 200)))
def test_a_cpu_list_comes_back_as_it_was(cpus) -> None:
    assert parse_cpus(format_cpus(cpus).replace("none", "")) == cpus


@given(st.text("\t GPU0123XSYNIC-,/Aafinty\n\x1b[m", max_size=300))
def test_any_text_is_a_topology_or_is_refused(text) -> None:
    read_topo(text)
