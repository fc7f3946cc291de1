"""Which CPUs and which memory a rank belongs to: topology, plan, binding, audit.

What the shim binds with (binder, cpus, kernel, machine, nvml, plan, sharing, sysfs, tuples, visible) runs under the training's own Python:
standard library alone, 3.8 and later, and without typing.
"""
