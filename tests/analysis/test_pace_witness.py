"""What GPUs say beside a slow spell."""

from rankpatrol.analysis.pace.witness import driver_errors, witness
from rankpatrol.collect.gpus import GpuSample
from rankpatrol.core.records import Missing
from rankpatrol.formats.xid import xids

NO = Missing("not told")


def gpu(**facts):
    plain = {name: NO for name in GpuSample.__struct_fields__ if name not in {"address", "pids"}}
    return GpuSample(**{"address": "0000:18:00.0", **plain, **facts})


def test_a_gpu_that_is_held_back_is_told_with_its_rank():
    hot = gpu(slowed_by=("hardware thermal slowdown",), sm_clock_mhz=1035, sm_clock_most_mhz=1980, temperature_c=91, pids=(7, 4242))
    assert witness([hot], {4242: 3}) == ("GPU 0000:18:00.0 of rank 3 is held back by hardware thermal slowdown: 1035 of 1980 MHz, 91 °C",)


def test_what_is_not_known_or_well_says_nothing():
    assert witness([gpu(), gpu(slowed_by=(), uncorrected_errors=0)], {}) == ()


def test_errors_that_the_driver_reported_lately_are_told_once():
    log = """[  100.000001] NVRM: Xid (PCI:0000:9d:00): 31, pid=1, name=python
[ 5000.500000] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', GPU has fallen off the bus.
[ 5000.600000] NVRM: Xid (PCI:0000:18:00): 79, again
[ 5001.000000] something else
"""
    assert [xid.number for xid in xids(log)] == [31, 79, 79]
    assert driver_errors(xids(log), since_boot_s=4000.0) == ("the driver reports Xid 79 of GPU 0000:18:00: the GPU has fallen off the bus",)
